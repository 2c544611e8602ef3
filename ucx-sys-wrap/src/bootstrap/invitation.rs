//! What ranks that come back, and those that are left, are told: who they are now, and where they meet.

use std::collections::BTreeMap;

use super::id::JobId;
use super::identity::{Identity, Introduction};
use crate::Rank;
use crate::fields::Fields;

/// A rank of the job as it began, and how often it has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its number when the job began.
    pub rank: Rank,
    /// 0 for the process that the job began with.
    pub incarnation: u32,
}

/// The members of a world that lost ranks have come back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    id: JobId,
    /// In the order of their numbers, and whether each has come back now.
    members: Vec<(Member, bool)>,
    /// In the order of their numbers.
    absent: Vec<Member>,
}

impl Invitation {
    /// Of these members, without the others; both in the order of their numbers.
    pub(super) fn new(id: JobId, members: Vec<(Member, bool)>, absent: Vec<Member>) -> Self {
        Self { id, members, absent }
    }

    /// The members in the order of their numbers, and whether each has come back now.
    #[must_use]
    pub fn members(&self) -> &[(Member, bool)] {
        &self.members
    }

    /// How a member joins the new world, in the order of the members, within a quarter of the time of
    /// joining: if another one does not, there is time for another attempt. `None` for a rank that is no
    /// member.
    #[must_use]
    pub fn accept(&self, identity: &Identity, own: Rank) -> Option<Identity> {
        let place = self.members.iter().position(|(member, _)| member.rank == own)?;
        let mut accepted = identity.elsewhere();
        (accepted.rank, accepted.world_size) = (Rank(place as u32), self.members.len() as u32);
        accepted.join_timeout /= 4;
        accepted.introduction = Introduction::Id(self.id.clone());
        Some(accepted)
    }

    /// Gives up the port of the new world, if this process has reserved it.
    pub fn forget(&self) {
        self.id.forget();
    }

    /// Ranks that are not there, in the order of their numbers, and their last incarnations.
    #[must_use]
    pub fn absent(&self) -> &[Member] {
        &self.absent
    }

    /// The identifier; the number of ranks that are not there, and of each its number and its last
    /// incarnation; the number of those that have ever come back, and of each its number, its incarnation and
    /// whether it has come back now. Integers little-endian, of 4 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let absent: Vec<u32> =
            self.absent.iter().flat_map(|absent| [absent.rank.0, absent.incarnation]).collect();
        let back = self.members.iter().filter(|(member, _)| member.incarnation > 0);
        let back: Vec<u32> = back
            .flat_map(|(member, is_new)| [member.rank.0, member.incarnation, u32::from(*is_new)])
            .collect();
        let (absentees, returned) = (absent.len() as u32 / 2, back.len() as u32 / 3);
        let words = [vec![absentees], absent, vec![returned], back].concat();
        let words = words.into_iter().flat_map(u32::to_le_bytes);
        self.id.to_bytes().into_iter().chain(words).collect()
    }

    /// `None` if it is none for a job that began with `world_size` ranks.
    #[must_use]
    pub fn decode(bytes: &[u8], world_size: u32) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk::<{ JobId::BYTES }>()?;
        let id = JobId::from_bytes(id).ok()?;
        let mut fields = Fields(rest);
        let mut members: BTreeMap<u32, (u32, bool)> =
            (0..world_size).map(|rank| (rank, (0, false))).collect();
        let mut absent = Vec::new();
        for _ in 0..fields.u32()? {
            let (rank, incarnation) = (fields.u32()?, fields.u32()?);
            members.remove(&rank)?;
            absent.push(Member { rank: Rank(rank), incarnation });
        }
        for _ in 0..fields.u32()? {
            let (rank, incarnation, is_new) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let member = members.get_mut(&rank).filter(|(known, _)| *known == 0 && incarnation > 0)?;
            *member = (incarnation, is_new == 1);
        }
        let is_whole = fields.0.is_empty() && !members.is_empty() && absent.is_sorted();
        let member = |(rank, (incarnation, is_new))| (Member { rank: Rank(rank), incarnation }, is_new);
        is_whole.then(|| Self { id, members: members.into_iter().map(member).collect(), absent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Master;
    use proptest::prelude::*;

    const WORLD_SIZE: u32 = 4;

    const fn member(rank: u32, incarnation: u32) -> Member {
        Member { rank: Rank(rank), incarnation }
    }

    fn invitation(members: &[(Member, bool)], absent: &[Member]) -> Invitation {
        let nowhere = Master { host: "127.0.0.1".into(), port: 0 };
        let id = JobId::of(&Identity { one_host: true, ..Identity::new(Rank(0), 2, nowhere) }).unwrap();
        id.forget();
        Invitation::new(id, members.to_vec(), absent.to_vec())
    }

    #[test]
    fn wrong_invitations_are_refused() {
        let members = [(member(1, 2), true), (member(3, 0), false)];
        let good = invitation(&members, &[member(0, 0), member(2, 5)]).encode();
        assert!(Invitation::decode(&good, WORLD_SIZE).is_some());
        (0..good.len()).for_each(|end| assert_eq!(Invitation::decode(&good[..end], WORLD_SIZE), None));
        for (place, word) in [(0, 5), (1, 7), (1, 2), (3, 1), (5, 9), (6, 9), (6, 2), (7, 0)] {
            let mut wrong = good.clone();
            let at = JobId::BYTES + 4 * place;
            wrong[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
            assert_eq!(Invitation::decode(&wrong, WORLD_SIZE), None, "word {place} is {word}");
        }
        assert_eq!(Invitation::decode(&good, 2), None, "of a smaller job");
    }

    proptest! {
        #[test]
        fn invitations_come_back(ranks in proptest::collection::vec((0u32..9, 0u32..3), 1..40)) {
            let (mut members, mut absent) = (Vec::new(), Vec::new());
            for (rank, (incarnation, state)) in (0..).zip(&ranks) {
                match (rank, state) {
                    (1.., 0) => absent.push(member(rank, *incarnation)),
                    _ => members.push((member(rank, *incarnation), *state == 1 && *incarnation > 0)),
                }
            }
            let invitation = invitation(&members, &absent);
            let world_size = ranks.len() as u32;
            prop_assert_eq!(Invitation::decode(&invitation.encode(), world_size), Some(invitation));
        }

        #[test]
        fn no_bytes_panic(words in proptest::collection::vec(0u32..6, 0..20)) {
            let id = invitation(&[(member(0, 0), false)], &[]).id.to_bytes();
            let bytes: Vec<u8> = id.into_iter().chain(words.into_iter().flat_map(u32::to_le_bytes)).collect();
            let _ = Invitation::decode(&bytes, 5);
        }
    }
}
