//! What the members of a closed group tell each other: little-endian, and nothing follows.
//!
//! | bytes | |
//! | --- | --- |
//! | 2 | number of the closed context |
//! | 4 | its epoch |
//! | 8 | digest of its members |
//! | 1 | kind: 0 prepare, 1 promise, 2 accept, 3 accepted, 4 behind, 5 decided, 6 given up, 7 here |
//! | 8 | ballot; of a decision, and of one that is here, 0 |
//! | | promise: accepted ballot (8) and value, if its ballot is not 0; number of offers (1), each of a context number (2) and an epoch (4) |
//! | | accept, decided: value |
//! | | given up: 0 for no majority, 1 for no context number (1); members that have answered (4) |
//!
//! A value is a context number (2), its epoch (4), the number of members (4), and their ranks in the closed
//! group (4 each), which rise.

use ucx_sys_wrap::buffer::MAX_CONTEXTS;

/// The most context numbers that a member offers.
pub(super) const MOST_OFFERS: usize = 16;

/// Which group is agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupId {
    pub(crate) number: u16,
    pub(crate) epoch: u32,
    /// A digest of its members.
    pub(crate) members: u64,
}

/// An attempt to decide; a later one is larger. The candidate's rank is in the low half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ballot(u64);

impl Ballot {
    /// The first ballot of a rank above this one.
    pub(super) fn next_of(self, rank: u32) -> Self {
        Self(((self.0 >> 32).saturating_add(1) << 32) | u64::from(rank))
    }

    pub(super) fn candidate(self) -> u32 {
        self.0 as u32
    }

    /// Whether it is one that members reach: each candidacy takes a round.
    fn is_likely(self) -> bool {
        self.0 >> 32 < 1 << 31
    }

    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// What can be decided: who goes on, in which context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) number: u16,
    pub(crate) epoch: u32,
    /// Ranks in the closed group, rising.
    pub(crate) members: Vec<u32>,
}

/// A context number that is free on a member, with the epoch that it has there next.
pub(super) type Offer = (u16, u32);

/// Why a candidate gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// So many members have answered.
    NoMajority(u32),
    NoNumber,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Prepare(Ballot),
    Promise {
        ballot: Ballot,
        accepted: Option<(Ballot, Value)>,
        offers: Vec<Offer>,
    },
    Accept(Ballot, Value),
    Accepted(Ballot),
    /// The receiver of a prepare or an accept has promised this ballot.
    Behind(Ballot),
    Decided(Value),
    GivenUp(Ballot, GivenUp),
    /// The sender waits for a candidate. Answered by who knows the decision already.
    Here,
}

impl Message {
    pub(super) fn encode(&self, group: GroupId) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(group.number.to_le_bytes());
        out.extend(group.epoch.to_le_bytes());
        out.extend(group.members.to_le_bytes());
        let (kind, ballot) = match self {
            Self::Prepare(ballot) => (0, *ballot),
            Self::Promise { ballot, .. } => (1, *ballot),
            Self::Accept(ballot, _) => (2, *ballot),
            Self::Accepted(ballot) => (3, *ballot),
            Self::Behind(ballot) => (4, *ballot),
            Self::Decided(_) => (5, Ballot::default()),
            Self::Here => (7, Ballot::default()),
            Self::GivenUp(ballot, _) => (6, *ballot),
        };
        out.push(kind);
        out.extend(ballot.0.to_le_bytes());
        match self {
            Self::Promise { accepted, offers, .. } => {
                let accepted_ballot = accepted.as_ref().map_or(Ballot::default(), |(ballot, _)| *ballot);
                out.extend(accepted_ballot.0.to_le_bytes());
                accepted.iter().for_each(|(_, value)| value.encode(&mut out));
                out.push(offers.len() as u8);
                for (number, epoch) in offers {
                    out.extend(number.to_le_bytes());
                    out.extend(epoch.to_le_bytes());
                }
            }
            Self::Accept(_, value) | Self::Decided(value) => value.encode(&mut out),
            Self::GivenUp(_, GivenUp::NoMajority(answered)) => {
                out.push(0);
                out.extend(answered.to_le_bytes());
            }
            Self::GivenUp(_, GivenUp::NoNumber) => out.extend([1, 0, 0, 0, 0]),
            Self::Prepare(_) | Self::Accepted(_) | Self::Behind(_) | Self::Here => {}
        }
        out
    }

    /// The message in these bytes, if they are one for a group of `size` members.
    pub(super) fn decode(bytes: &[u8], size: u32) -> Option<Self> {
        let mut rest = bytes.get(GroupId::BYTES..)?;
        let kind = u8::from_le_bytes(take(&mut rest)?);
        let ballot =
            Some(Ballot(u64::from_le_bytes(take(&mut rest)?))).filter(|ballot| ballot.is_likely())?;
        let message = match kind {
            0 => Self::Prepare(ballot),
            1 => {
                let accepted = Ballot(u64::from_le_bytes(take(&mut rest)?));
                let accepted = match accepted.is_none() {
                    true => None,
                    false => Some((accepted, Value::decode(&mut rest, size)?)),
                };
                let count = usize::from(u8::from_le_bytes(take(&mut rest)?));
                let offer = |rest: &mut &[u8]| {
                    Some((u16::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?)))
                };
                let offers: Option<Vec<Offer>> = (0..count).map(|_| offer(&mut rest)).collect();
                Self::Promise { ballot, accepted, offers: offers.filter(|all| all.len() <= MOST_OFFERS)? }
            }
            2 => Self::Accept(ballot, Value::decode(&mut rest, size)?),
            3 => Self::Accepted(ballot),
            4 => Self::Behind(ballot),
            5 => Self::Decided(Value::decode(&mut rest, size)?),
            6 => {
                let why = u8::from_le_bytes(take(&mut rest)?);
                let answered = u32::from_le_bytes(take(&mut rest)?);
                match why {
                    0 => Self::GivenUp(ballot, GivenUp::NoMajority(answered)),
                    1 => Self::GivenUp(ballot, GivenUp::NoNumber),
                    _ => return None,
                }
            }
            7 => Self::Here,
            _ => return None,
        };
        rest.is_empty().then_some(message)
    }
}

impl GroupId {
    /// The bytes of an id in front of a message.
    const BYTES: usize = 14;

    /// The group that a message is about.
    pub(super) fn of_message(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let number = u16::from_le_bytes(take(&mut rest)?);
        let epoch = u32::from_le_bytes(take(&mut rest)?);
        Some(Self { number, epoch, members: u64::from_le_bytes(take(&mut rest)?) })
    }
}

impl Value {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.number.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend((self.members.len() as u32).to_le_bytes());
        self.members.iter().for_each(|member| out.extend(member.to_le_bytes()));
    }

    fn decode(rest: &mut &[u8], size: u32) -> Option<Self> {
        let number = u16::from_le_bytes(take(rest)?);
        let epoch = u32::from_le_bytes(take(rest)?);
        let count = u32::from_le_bytes(take(rest)?);
        // Before memory is taken for them.
        if count == 0 || count > size {
            return None;
        }
        let members: Vec<u32> =
            (0..count).map(|_| take(rest).map(u32::from_le_bytes)).collect::<Option<_>>()?;
        let rise = members.windows(2).all(|pair| pair[0] < pair[1]);
        let are_members = members.last().is_some_and(|last| *last < size);
        // Of the group of all ranks there is only one.
        let is_number = (1..MAX_CONTEXTS).contains(&usize::from(number));
        (rise && are_members && is_number).then_some(Self { number, epoch, members })
    }
}

/// The longest message about a group of `size` members, in bytes.
pub(super) fn most_bytes(size: u32) -> usize {
    // An id, a kind and a ballot; an accepted ballot and a value; offers.
    GroupId::BYTES + 9 + 8 + 10 + 4 * size as usize + 1 + 6 * MOST_OFFERS
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId { number: 3, epoch: 70_009, members: 0x1234_5678_9abc };

    fn all() -> Vec<Message> {
        let value = Value { number: 7, epoch: 300, members: vec![0, 2, 3] };
        let ballot = Ballot::default().next_of(2);
        vec![
            Message::Prepare(ballot),
            Message::Promise { ballot, accepted: None, offers: vec![(1, 2), (9, 70_000)] },
            Message::Promise {
                ballot,
                accepted: Some((ballot, value.clone())),
                offers: vec![(1, 1); MOST_OFFERS],
            },
            Message::Accept(ballot, value.clone()),
            Message::Accepted(ballot),
            Message::Behind(ballot),
            Message::Decided(value),
            Message::GivenUp(ballot, GivenUp::NoMajority(2)),
            Message::GivenUp(ballot, GivenUp::NoNumber),
            Message::Here,
        ]
    }

    #[test]
    fn messages_come_back_and_nothing_else_does() {
        for message in all() {
            let bytes = message.encode(GROUP);
            assert!(bytes.len() <= most_bytes(4), "{message:?}");
            assert_eq!(GroupId::of_message(&bytes), Some(GROUP));
            assert_eq!(Message::decode(&bytes, 4), Some(message.clone()));
            let cut = (0..bytes.len()).filter_map(|end| Message::decode(&bytes[..end], 4)).count();
            assert_eq!(cut, 0, "{message:?}");
            assert_eq!(Message::decode(&[&bytes[..], &[0]].concat(), 4), None);
        }
    }

    #[test]
    fn values_of_no_members_of_this_group_are_refused() {
        for members in [vec![], vec![1, 1], vec![2, 1], vec![0, 4], vec![0, 1, 2, 3, 4]] {
            let bytes = Message::Decided(Value { number: 1, epoch: 1, members }).encode(GROUP);
            assert_eq!(Message::decode(&bytes, 4), None);
        }
        for number in [0, MAX_CONTEXTS as u16, u16::MAX] {
            let bytes = Message::Decided(Value { number, epoch: 1, members: vec![0] }).encode(GROUP);
            assert_eq!(Message::decode(&bytes, 4), None, "context {number}");
        }
        assert_eq!(Message::decode(&Message::Prepare(Ballot(u64::MAX)).encode(GROUP), 4), None);
        let mut many = Message::Decided(Value { number: 1, epoch: 1, members: vec![0] }).encode(GROUP);
        let count = many.len() - 8;
        many[count..count + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Message::decode(&many, u32::MAX), None, "takes no memory for four billion members");
    }

    #[test]
    fn bytes_of_any_kind_are_no_trouble() {
        let mut state = 1u64;
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length)
                .map(|place| {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    if place == GroupId::BYTES { (state >> 60) as u8 % 8 } else { (state >> 56) as u8 % 3 }
                })
                .collect();
            if let Some(message) = Message::decode(&bytes, 8) {
                assert_eq!(Message::decode(&message.encode(GROUP), 8), Some(message));
            }
        }
    }
}
