//! Sends, receives and probes of one scope.

use std::future::poll_fn;
use std::task::{Context, Poll};

use ucx_sys_wrap::buffer::{Comm, Port, Recv, next_turn};
use ucx_sys_wrap::{Envelope, Error as Fault, Found, Mark, Rank, Signature, Tag, Wanted};

use super::{Message, Pick, Place};
use crate::context::Ranks;
use crate::data::Element;
use crate::description::{Description, Operation};
use crate::error::{Error, Result};

/// A receive without a posted operation looks after senders once in so many polls, and in each poll after so
/// many, when it mostly sleeps in between. Before it sleeps, it has had few polls if others want the
/// processor: so it looks early too, in polls that are powers of two.
const POLLS_PER_LOOK: u32 = 64;
const POLLS_AWAKE: u32 = 2048;
const FIRST_LOOK: u32 = 8;

/// How many senders a receive from any rank looks after at once. The others have their turns.
const WATCHED_AT_ONCE: u32 = 8;

/// The result of an operation, before it is told in words of the group.
type Outcome<T> = std::result::Result<T, Fault>;

/// The other rank and the tag of a message, as far as they are known.
type About = (Option<Rank>, Option<u32>);

/// A message that a receive has got.
enum Taken<'a, 'env> {
    /// One of this rank to itself, of this tag and so many bytes, which are in their place.
    Own(u32, usize),
    Posted(Found, Recv<'a, 'env, &'env mut [u8]>),
}

/// The polls of a receive without a posted operation.
#[derive(Default)]
pub(super) struct Polls {
    count: u32,
    looks: u32,
}

impl Polls {
    /// Counts a poll. Returns the number of its look after senders, if it is to look.
    pub(super) fn next_look(&mut self) -> Option<u32> {
        self.count = self.count.saturating_add(1);
        let is_early = self.count >= FIRST_LOOK && self.count.is_power_of_two();
        let is_due = is_early || self.count.is_multiple_of(POLLS_PER_LOOK) || self.count >= POLLS_AWAKE;
        is_due.then(|| {
            self.looks = self.looks.wrapping_add(1);
            self.looks
        })
    }
}

/// Sends and receives of one scope, on one group.
#[derive(Clone, Copy)]
pub(crate) struct Mail<'a, 'env> {
    pub(crate) comm: &'a Comm<'env>,
    pub(crate) ranks: &'a Ranks,
}

impl<'a, 'env> Mail<'a, 'env> {
    /// Sends a message. Ends when the bytes may be used again.
    pub(crate) async fn send(self, to: u32, tag: u32, bytes: &'env [u8]) -> Result<()> {
        let member = self.ranks.member(to);
        let sent = if to == self.ranks.own {
            self.send_to_self(tag, bytes).await
        } else {
            let envelope = self.ranks.envelope(Tag::of_user(self.own(), self.ranks.number, tag));
            self.comm.send(member, envelope, bytes).await.map(drop)
        };
        sent.map_err(|fault| self.error("a send to", (Some(member), Some(tag)), fault))
    }

    /// Receives a message.
    pub(crate) async fn recv<T: Element>(self, pick: Pick, place: Place<'env, T>) -> Result<Message> {
        let limit = place.limit();
        let mut about = self.ranks.about(pick);
        let came = match (place, about) {
            (Place::Fixed(elements), (Some(member), Some(tag))) if member != self.own() => {
                let envelope = self.ranks.envelope(Tag::of_user(member, self.ranks.number, tag));
                let came = self.comm.recv(member, envelope, elements).await;
                came.map(|(_, arrival)| arrival.lengths.iter().sum::<usize>() as u64)
            }
            (place, _) => self.recv_found(pick, place, &mut about).await.map(|bytes| bytes as u64),
        };
        let (bytes, is_too_long) = match came {
            Ok(bytes) => (bytes, false),
            Err(Fault::TooLong { sent, .. }) => (sent, true),
            Err(fault) => return Err(self.error("a receive from", about, fault)),
        };
        let (rank, tag) = (about.0.unwrap_or(self.own()), about.1.unwrap_or_default());
        self.ranks.messages.took(rank);
        let element_bytes = size_of::<T>();
        if bytes % element_bytes as u64 != 0 {
            return Err(Error::MessageElements { rank, tag, bytes, element_bytes });
        }
        if is_too_long {
            return Err(Error::MessageTooLong { rank, tag, bytes, limit });
        }
        Ok(self.ranks.message(rank, tag, bytes as usize))
    }

    /// Waits for a message, and leaves it where it is.
    pub(crate) async fn probe(self, pick: Pick) -> Result<Message> {
        let found = self.until(pick, || self.ranks.find(self.comm.port(), pick)).await;
        found.map_err(|fault| self.error("a probe for a message of", self.ranks.about(pick), fault))
    }

    /// Receives the first message that comes, and notes its sender and tag. Returns its length.
    async fn recv_found<T: Element>(
        self,
        pick: Pick,
        place: Place<'env, T>,
        about: &mut About,
    ) -> Outcome<usize> {
        let mut place = Some(place);
        match self.until(pick, || self.take(pick, &mut place)).await? {
            Taken::Own(tag, bytes) => {
                *about = (Some(self.own()), Some(tag));
                Ok(bytes)
            }
            Taken::Posted(found, receive) => {
                *about = (Some(found.tag.source()), found.tag.user());
                receive.await.map(|(_, arrival)| arrival.lengths.iter().sum())
            }
        }
    }

    async fn send_to_self(self, tag: u32, bytes: &[u8]) -> Outcome<()> {
        let to_self = Pick { source: Some(self.ranks.own), tag: None };
        let sending = self.ranks.messages.to_self();
        let put = || sending.put(tag, bytes).then_some(());
        self.until(to_self, || self.ranks.check_open(self.comm.port()).map(|()| put())).await
    }

    /// Calls `look` in each turn until it gives something, the deadline passes, or all that are waited for
    /// have left.
    async fn until<R>(self, pick: Pick, mut look: impl FnMut() -> Outcome<Option<R>>) -> Outcome<R> {
        if pick.source.is_none() && self.ranks.messages.is_turn_due() {
            self.comm.port().progress();
        }
        let mut polls = Polls::default();
        poll_fn(|context| {
            if self.comm.is_given_up() {
                return Poll::Ready(Err(Fault::Canceled));
            }
            if let Some(found) = look().transpose() {
                return Poll::Ready(found);
            }
            self.wait(context, pick, polls.next_look(), &mut look)
        })
        .await
    }

    fn wait<R>(
        self,
        context: &Context<'_>,
        pick: Pick,
        round: Option<u32>,
        look: impl FnOnce() -> Outcome<Option<R>>,
    ) -> Poll<Outcome<R>> {
        let port = self.comm.port();
        if self.comm.has_expired() {
            let rank = self.ranks.about(pick).0.unwrap_or(self.own());
            let waited = self.comm.time().waited(port.now());
            return Poll::Ready(Err(Fault::Timeout { rank, tag: Tag(0), waited }));
        }
        let left = round.and_then(|round| self.ranks.who_has_left(port, pick, round));
        let Some(left) = left else { return next_turn(context) };
        // It may have sent something before it left.
        port.progress();
        Poll::Ready(look().transpose().unwrap_or_else(|| {
            // What is given up meanwhile finds nothing, though there may be something.
            if self.comm.is_given_up() {
                return Err(Fault::Canceled);
            }
            port.lose(left);
            Err(Fault::PeerLost { rank: left })
        }))
    }

    /// Takes the first message that has come, if one has.
    fn take<T: Element>(
        self,
        pick: Pick,
        place: &mut Option<Place<'env, T>>,
    ) -> Outcome<Option<Taken<'a, 'env>>> {
        for is_own in self.ranks.turns(pick) {
            let taken = if is_own { self.take_own(pick, place)? } else { self.take_found(pick, place)? };
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }

    fn take_own<T: Element>(
        self,
        pick: Pick,
        place: &mut Option<Place<'env, T>>,
    ) -> Outcome<Option<Taken<'a, 'env>>> {
        if self.ranks.find_own(self.comm.port(), pick)?.is_none() {
            return Ok(None);
        }
        let open = |bytes| if self.comm.is_given_up() { None } else { place.take()?.open(bytes) };
        let taken = self.ranks.messages.take(pick, open);
        let Some((tag, bytes, place)) = taken else {
            // Or another thread has taken it.
            return if place.is_none() { Err(lacks_memory()) } else { Ok(None) };
        };
        let (sent, capacity) = (bytes.len() as u64, place.len());
        let Some(place) = place.get_mut(..bytes.len()) else {
            return Err(Fault::TooLong { rank: self.own(), part: 0, sent, capacity });
        };
        place.copy_from_slice(&bytes);
        Ok(Some(Taken::Own(tag, bytes.len())))
    }

    fn take_found<T: Element>(
        self,
        pick: Pick,
        place: &mut Option<Place<'env, T>>,
    ) -> Outcome<Option<Taken<'a, 'env>>> {
        let open = |found: &Found| place.take()?.open(found.lengths.iter().sum());
        let found = self.comm.recv_found(&self.ranks.wanted(pick), self.ranks.signature(), open)?;
        match found {
            Some((found, receive)) => Ok(Some(Taken::Posted(found, receive))),
            None if place.is_none() => Err(lacks_memory()),
            None => Ok(None),
        }
    }

    /// What an operation failed for, in words of the group.
    fn error(self, what: &'static str, (rank, tag): About, fault: Fault) -> Error {
        match (fault, self.comm.port().failure(self.ranks.number)) {
            (Fault::Timeout { .. } | Fault::Canceled, None) if self.comm.is_given_up() => Error::Canceled,
            (Fault::Timeout { waited: after, .. }, None) => Error::MessageTimeout { what, rank, tag, after },
            (Fault::Timeout { .. } | Fault::Canceled, Some(cause)) => self.ranks.error(cause.into()),
            (fault, _) => self.ranks.error(fault),
        }
    }

    /// This rank in the world.
    fn own(self) -> Rank {
        self.comm.port().rank()
    }
}

fn lacks_memory() -> Fault {
    Fault::system(
        "can't get memory for a message: receive with a lower limit",
        std::io::ErrorKind::OutOfMemory,
    )
}

impl Ranks {
    /// The first message that has come, if one has. Does not move the transport.
    pub(crate) fn find(&self, port: &Port, pick: Pick) -> Outcome<Option<Message>> {
        for is_own in self.turns(pick) {
            let found = if is_own {
                let found = self.find_own(port, pick)?;
                found.map(|(tag, bytes)| Message { source: self.own, tag, bytes })
            } else {
                port.probe(&self.wanted(pick))?.map(|Found { tag, lengths }| {
                    self.message(tag.source(), tag.user().unwrap_or_default(), lengths.iter().sum())
                })
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The tag and the length of the first message of this rank to itself. Whether the context is closed is
    /// asked where no message of others is looked for.
    fn find_own(&self, port: &Port, pick: Pick) -> Outcome<Option<(u32, usize)>> {
        let found = self.messages.find(pick);
        if found.is_some() || pick.source.is_some() {
            self.check_open(port)?;
        }
        Ok(found)
    }

    /// Where to look, and in which order: at the messages of this rank to itself, at those of others. They
    /// take turns.
    fn turns(&self, pick: Pick) -> impl Iterator<Item = bool> + use<> {
        let own_first = self.messages.last() != self.member(self.own);
        let is_meant =
            move |is_own: &bool, own: u32| pick.source.is_none_or(|source| (source == own) == *is_own);
        let own = self.own;
        [own_first, !own_first].into_iter().filter(move |is_own| is_meant(is_own, own))
    }

    /// Watches the member that a receive waits for, or if that is any, some others in each round: no
    /// operation tells the transport. Returns a member if the receive waits in vain: it has left, or it and
    /// all others have.
    fn who_has_left(&self, port: &Port, pick: Pick, round: u32) -> Option<Rank> {
        let own = self.member(self.own);
        let has_left = |member: &Rank| *member == own || port.watch(*member);
        if let Some(source) = pick.source {
            let member = self.member(source);
            return (member != own && has_left(&member)).then_some(member);
        }
        let watched = self.looked_at(round).map(|place| self.member(place)).filter(|member| *member != own);
        let left = watched.filter(has_left).last()?;
        self.members.iter().all(has_left).then_some(left)
    }

    /// The members that are looked after in a round, by their rank in the context.
    pub(super) fn looked_at(&self, round: u32) -> impl Iterator<Item = u32> + use<> {
        let (first, size) = (round.wrapping_mul(WATCHED_AT_ONCE), self.size());
        (0..WATCHED_AT_ONCE.min(size)).map(move |place| first.wrapping_add(place) % size)
    }

    /// Fails if the context is closed.
    fn check_open(&self, port: &Port) -> Outcome<()> {
        port.failure(self.number).map_or(Ok(()), |cause| Err(cause.into()))
    }

    fn wanted(&self, pick: Pick) -> Wanted {
        let source = pick.source.map(|source| self.member(source));
        let after = self.messages.last();
        Wanted { context: self.number, epoch: self.epoch, source, tag: pick.tag, after }
    }

    /// All messages have the same.
    pub(crate) fn signature(&self) -> Signature {
        Description::new(Operation::MESSAGE, 0, 0).sign(self.epoch, 0)
    }

    pub(crate) fn envelope(&self, tag: Tag) -> Envelope {
        Envelope { tag, signature: self.signature(), mark: Mark::NONE }
    }

    fn about(&self, pick: Pick) -> About {
        (pick.source.map(|source| self.member(source)), pick.tag)
    }

    /// A message of a member.
    fn message(&self, source: Rank, tag: u32, bytes: usize) -> Message {
        // No message of another rank is found.
        Message { source: self.place(source).unwrap_or(u32::MAX), tag, bytes }
    }

    pub(crate) fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::PeerLost { rank } => Error::PeerLost { rank },
            Fault::Aborted { rank } => Error::Aborted { rank },
            Fault::Differs { rank } => Error::Differs { rank, difference: self.difference.clone() },
            other => Error::Transport(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_look_early_then_now_and_then_then_in_every_poll() {
        let mut polls = Polls::default();
        let looks: Vec<u32> = (1..=POLLS_AWAKE + 1).filter(|_| polls.next_look().is_some()).collect();
        assert_eq!(looks[..6], [8, 16, 32, 64, 128, 192]);
        assert_eq!(looks[looks.len() - 3..], [POLLS_AWAKE - 64, POLLS_AWAKE, POLLS_AWAKE + 1]);
    }
}
