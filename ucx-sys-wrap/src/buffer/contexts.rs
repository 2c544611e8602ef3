//! The contexts of a port: which ranks a message number belongs to, and what closes it.
//!
//! A context is a set of ranks with a number of its own, which the tags of its messages carry. It fails
//! alone: the loss of a member, an abort or a deadline closes the contexts that it concerns, and others go
//! on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::call_log::CallLog;
use super::port::{Inner, Port};
use crate::told::later;
use crate::transport::{CallDigest, News, Notice, Said, Which, check_peer};
use crate::{Error, Failure, Rank, Result};

/// The most contexts of a rank at a time: the group field of a tag has 10 bits.
pub const MAX_CONTEXTS: usize = 1 << 10;

/// What the loss of a member means for a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// It closes the context.
    Close,
    /// It ends the operations with that member alone. Likewise, a member that closes such a context has
    /// [departed](Port::departed), and the others go on.
    Continue,
}

const UNASKED: &str =
    "this rank leaves a group with messages that it never asked for: did all ranks make the same calls?";

/// How many members are told of a wait at a time.
const TOLD_OF_WAIT: usize = 16;

/// The contexts that a rank has opened, by number.
#[derive(Default)]
pub(super) struct Contexts {
    all: Vec<Option<Context>>,
    lost: Vec<(Rank, Error)>,
    /// The epoch and the cause of the last notice of each peer about each number, if this rank has no context
    /// of this epoch: it has not opened it yet, or has forgotten it.
    early: BTreeMap<(u16, Rank), (u8, Failure)>,
    /// Why the transport as a whole has ended.
    ended: Option<(Failure, Error)>,
}

struct Context {
    epoch: u8,
    members: Arc<[Rank]>,
    on_loss: OnLoss,
    closed: Option<Closed>,
    /// Members that have closed it, if it goes on without them, and why.
    departed: Vec<(Rank, Failure)>,
    calls: Arc<CallLog>,
}

#[derive(Clone)]
struct Closed {
    cause: Failure,
    error: Error,
}

impl Contexts {
    fn get_mut(&mut self, number: u16) -> Option<&mut Context> {
        self.all.get_mut(usize::from(number))?.as_mut()
    }

    fn closed(&self, number: u16) -> Option<&Closed> {
        self.all.get(usize::from(number))?.as_ref()?.closed.as_ref()
    }

    /// The numbers of the open contexts with this member that its loss closes.
    fn closed_by_loss(&self, lost: Rank) -> Vec<u16> {
        let is_concerned = |context: &Context| {
            context.closed.is_none() && context.on_loss == OnLoss::Close && context.members.contains(&lost)
        };
        (0u16..)
            .zip(&self.all)
            .filter(|(_, context)| context.as_ref().is_some_and(is_concerned))
            .map(|(n, _)| n)
            .collect()
    }

    /// Whether an operation may meet a closed context.
    fn has_closed(&self) -> bool {
        self.ended.is_some() || self.all.iter().flatten().any(|context| context.closed.is_some())
    }

    /// Why `context` is closed as soon as it is opened, if it is. Forgets earlier notices of its number.
    fn closed_before(&mut self, number: u16, context: &mut Context) -> Option<(Failure, Error)> {
        let mut told = None;
        let notices = (number, Rank(0))..=(number, Rank(u32::MAX));
        while let Some((&key, &(epoch, cause))) = self.early.range(notices.clone()).next() {
            self.early.remove(&key);
            if epoch == context.epoch && context.members.contains(&key.1) {
                match context.on_loss {
                    OnLoss::Close => told = Some((cause, cause.into())),
                    OnLoss::Continue => context.departed.push((key.1, cause)),
                }
            }
        }
        let is_concerned = |lost: &Rank| context.on_loss == OnLoss::Close && context.members.contains(lost);
        let lost = self.lost.iter().find(|(rank, _)| is_concerned(rank));
        self.ended
            .clone()
            .or(told)
            .or_else(|| lost.map(|(rank, error)| (Failure::PeerLost(*rank), error.clone())))
    }
}

impl Port {
    /// Opens a context for the messages whose tags have this `number`. `members` contains this rank.
    ///
    /// Messages of another epoch that came before are dropped. The context is closed at once if a member is
    /// lost (unless `on_loss` says otherwise), or if one has closed it already.
    ///
    /// # Panics
    /// When the number is in use, or not below [`MAX_CONTEXTS`], or a member is outside the world.
    pub fn open_context(&self, number: u16, epoch: u8, members: Arc<[Rank]>, on_loss: OnLoss) {
        assert!(usize::from(number) < MAX_CONTEXTS, "context {number}, expected less than {MAX_CONTEXTS}");
        let stranger = members.iter().find(|member| member.0 >= self.world_size());
        assert!(stranger.is_none(), "member {stranger:?} of a context in a world of {}", self.world_size());
        let inner = self.enter();
        let context =
            Context { epoch, members, on_loss, closed: None, departed: Vec::new(), calls: Arc::default() };
        inner.open(number, context, self.rank());
        drop(inner);
        self.tell();
    }

    /// Forgets a context: its number may be opened again, with another epoch. Drops the messages that nobody
    /// has received.
    ///
    /// No operation may be pending on it. No member may send in a new context of this number before all
    /// members have forgotten this one: they drop such messages.
    pub fn forget_context(&self, number: u16) {
        self.heed_abort();
        let inner = self.enter();
        inner.heed_news(self.rank());
        let mut contexts = inner.contexts.borrow_mut();
        if let Some(place) = contexts.all.get_mut(usize::from(number))
            && let Some(context) = place.take()
        {
            inner.discard_unasked(number, context.closed.is_none(), self.rank());
        }
        inner.has_closed.store(contexts.has_closed(), Ordering::Relaxed);
        inner.discard_late(&contexts);
        drop(contexts);
        drop(inner);
        self.tell();
    }

    /// Where the calls on an open context are noted, so that peers whose calls differ are found.
    #[must_use]
    pub fn call_log(&self, context: u16) -> Option<Arc<CallLog>> {
        let inner = self.enter();
        inner.contexts.borrow_mut().get_mut(context).map(|context| Arc::clone(&context.calls))
    }

    /// Tells some members of a context that this rank waits, and which is its `last` call. A member that has
    /// made another one of this number, or others before it, closes the context. `turn` counts these calls
    /// and chooses the members.
    ///
    /// So ranks whose calls differ find out where none of their messages meet. Of all ranks that wait for
    /// ever, take the one whose last call has the lowest number: every other has made a call of this number,
    /// and if all of these were equal, none would wait for ever in a call up to it.
    pub fn tell_of_wait(&self, context: u16, last: CallDigest, turn: u32) {
        let inner = self.enter();
        inner.tell_of_wait(context, last, turn, self.rank());
        inner.heed_news(self.rank());
        drop(inner);
        self.tell();
    }

    /// Drops the messages of a context that nobody has received so far, and warns of them unless it is
    /// closed.
    pub fn discard_unasked(&self, context: u16) {
        self.heed_abort();
        let inner = self.enter();
        inner.heed_news(self.rank());
        let is_open = inner.contexts.borrow().closed(context).is_none();
        inner.discard_unasked(context, is_open, self.rank());
        drop(inner);
        self.tell();
    }

    /// Why a context is closed, if it is.
    #[must_use]
    pub fn failure(&self, context: u16) -> Option<Failure> {
        self.heed_abort();
        let inner = self.enter();
        inner.heed_news(self.rank());
        let closed = inner.contexts.borrow().closed(context).map(|closed| closed.cause);
        drop(inner);
        self.tell();
        closed
    }

    /// Closes a context for `cause` on all its members. Later causes are ignored.
    pub fn fail(&self, context: u16, cause: Failure) {
        let inner = self.enter();
        inner.close(context, cause, cause.into(), self.rank());
        drop(inner);
        self.tell();
    }

    /// Closes a context on purpose. Not for signal handlers: see [`request_abort`](Self::request_abort).
    pub fn abort(&self, context: u16) {
        self.fail(context, Failure::Aborted(self.rank()));
    }

    /// Closes a context because this rank's deadline has passed. Every pending operation on it, on any rank,
    /// ends with [`Error::Timeout`](crate::Error::Timeout) naming the rank that it waits for.
    pub fn time_out(&self, context: u16) {
        self.fail(context, Failure::TimedOut(self.rank()));
    }

    /// Gives a peer up, and closes the contexts that it is a member of. Does nothing for a rank that is none.
    pub fn lose(&self, peer: Rank) {
        if check_peer(peer, self.rank(), self.world_size()).is_err() {
            return;
        }
        let inner = self.enter();
        inner.transport.borrow_mut().lose(peer, Error::PeerLost { rank: peer });
        inner.heed_news(self.rank());
        drop(inner);
        self.tell();
    }

    /// The members that have closed a context which [goes on](OnLoss::Continue) without them, and why.
    #[must_use]
    pub fn departed(&self, context: u16) -> Vec<(Rank, Failure)> {
        let inner = self.enter();
        inner.heed_news(self.rank());
        let departed = inner.contexts.borrow_mut().get_mut(context).map(|context| context.departed.clone());
        drop(inner);
        self.tell();
        departed.unwrap_or_default()
    }

    /// The ranks that are lost, in the order in which they were found lost.
    #[must_use]
    pub fn lost(&self) -> Vec<Rank> {
        let inner = self.enter();
        inner.heed_news(self.rank());
        let lost = inner.contexts.borrow().lost.iter().map(|(rank, _)| *rank).collect();
        drop(inner);
        self.tell();
        lost
    }
}

impl Inner {
    /// Fails if the context is closed, or the transport has ended.
    #[cold]
    pub(super) fn check_context(&self, number: u16) -> Result<()> {
        let contexts = self.contexts.borrow();
        let closed = contexts.closed(number).map(|closed| &closed.error);
        let closed = closed.or(contexts.ended.as_ref().map(|(_, error)| error));
        closed.map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Why a context is closed, if it is.
    pub(super) fn failure(&self, number: u16) -> Option<Failure> {
        self.contexts.borrow().closed(number).map(|closed| closed.cause)
    }

    /// Whether a rank is a member of a context.
    pub(super) fn is_member(&self, number: u16, rank: Rank) -> bool {
        let mut contexts = self.contexts.borrow_mut();
        contexts.get_mut(number).is_some_and(|context| context.members.contains(&rank))
    }

    fn discard_unasked(&self, number: u16, is_open: bool, rank: Rank) {
        let messages = self.transport.borrow_mut().discard(number, Which::All);
        if messages > 0 && is_open {
            later!(WARN, %rank, context = number, messages, "{UNASKED}");
        }
    }

    /// Drops the messages that peers have sent in contexts which they have closed and which this rank does
    /// not have. They may come after the notice.
    fn discard_late(&self, contexts: &Contexts) {
        let mut transport = self.transport.borrow_mut();
        for ((number, peer), (epoch, _)) in &contexts.early {
            transport.discard(*number, Which::From(*peer, *epoch));
        }
    }

    fn open(&self, number: u16, mut context: Context, own: Rank) {
        let mut contexts = self.contexts.borrow_mut();
        self.discard_late(&contexts);
        let index = usize::from(number);
        if contexts.all.len() <= index {
            contexts.all.resize_with(index + 1, || None);
        }
        assert!(contexts.all[index].is_none(), "context {number} is open already");
        self.transport.borrow_mut().discard(number, Which::OfOtherEpochs(context.epoch));
        let cause = contexts.closed_before(number, &mut context);
        contexts.all[index] = Some(context);
        drop(contexts);
        if let Some((cause, error)) = cause {
            self.close(number, cause, error, own);
        }
    }

    #[cold]
    fn tell_of_wait(&self, number: u16, last: CallDigest, turn: u32, own: Rank) {
        let mut contexts = self.contexts.borrow_mut();
        let open = contexts.get_mut(number).filter(|context| context.closed.is_none());
        let Some(Context { epoch, members, .. }) = open else { return };
        let place = members.iter().position(|member| *member == own).unwrap_or_default();
        let notice = Notice { context: number, epoch: *epoch, said: Said::Waits(last) };
        // Those after this rank, then those after these.
        let first = place + 1 + turn as usize % members.len().div_ceil(TOLD_OF_WAIT) * TOLD_OF_WAIT;
        let told =
            (first..first + TOLD_OF_WAIT.min(members.len())).map(|place| members[place % members.len()]);
        let told: Vec<Rank> = told.filter(|member| *member != own).collect();
        drop(contexts);
        let mut transport = self.transport.borrow_mut();
        told.into_iter().for_each(|member| transport.tell(member, notice));
    }

    /// Closes a context, ends its operations with `error`, and tells its members.
    #[cold]
    pub(super) fn close(&self, number: u16, cause: Failure, error: Error, own: Rank) {
        // Borrowed only if a call inside the transport exits the process.
        let Ok(mut transport) = self.transport.try_borrow_mut() else { return };
        let mut contexts = self.contexts.borrow_mut();
        let has_ended = contexts.ended.is_some();
        let Some(context) = contexts.get_mut(number).filter(|context| context.closed.is_none()) else {
            return;
        };
        context.closed = Some(Closed { cause, error: error.clone() });
        let notice = Notice::closed(number, context.epoch, cause);
        let members = Arc::clone(&context.members);
        self.has_closed.store(true, Ordering::Relaxed);
        later!(DEBUG, rank = %own, context = number, ?cause, "a context is closed");
        transport.end_context(number, cause, &error);
        transport.discard(number, Which::All);
        // A lost member is not told: the transport knows it.
        for member in members.iter().filter(|member| **member != own && !has_ended) {
            transport.tell(*member, notice);
        }
    }

    /// Closes contexts for what the transport has learned before an operation of `context` failed, so that
    /// later operations of the caller fail too. Returns the error to report.
    ///
    /// A peer that closes a context and leaves is lost, but the cause is what it told before.
    #[cold]
    pub(super) fn heed_failure(&self, error: Error, context: Option<u16>, own: Rank) -> Error {
        self.heed_news(own);
        let contexts = self.contexts.borrow();
        match (&error, context.and_then(|context| contexts.closed(context))) {
            (Error::PeerLost { .. }, Some(closed)) => closed.error.clone(),
            _ => error,
        }
    }

    /// Closes contexts for what the transport has learned of peers.
    #[inline]
    pub(super) fn heed_news(&self, own: Rank) {
        loop {
            let news = self.transport.borrow_mut().next_news();
            let Some(news) = news else { return };
            self.heed(news, own);
        }
    }

    #[cold]
    fn heed(&self, news: News, own: Rank) {
        match news {
            News::Told(peer, notice) => self.heed_notice(peer, notice, own),
            News::Lost(rank, error) => {
                let mut contexts = self.contexts.borrow_mut();
                contexts.lost.push((rank, error.clone()));
                let concerned = contexts.closed_by_loss(rank);
                drop(contexts);
                for number in concerned {
                    self.close(number, Failure::PeerLost(rank), error.clone(), own);
                }
            }
            News::Ended(cause, error) => self.end(cause, &error, own),
        }
    }

    /// A peer tells of a context, perhaps one that this rank has not opened yet, or has forgotten.
    fn heed_notice(&self, peer: Rank, notice: Notice, own: Rank) {
        let mut contexts = self.contexts.borrow_mut();
        let open = contexts.get_mut(notice.context).filter(|context| context.epoch == notice.epoch);
        let is_member = open.as_ref().is_some_and(|context| context.members.contains(&peer));
        match (notice.said, open) {
            (Said::Closed(cause), Some(context)) if is_member && context.on_loss == OnLoss::Continue => {
                if !context.departed.iter().any(|(departed, _)| *departed == peer) {
                    context.departed.push((peer, cause));
                }
            }
            (Said::Closed(cause), Some(_)) if is_member => {
                drop(contexts);
                self.close(notice.context, cause, cause.into(), own);
                // What the peer has sent before it closed the context is dropped now.
                self.transport.borrow_mut().discard(notice.context, Which::All);
            }
            // The last one is of the last context of this number that the peer has opened.
            (Said::Closed(cause), None) => {
                contexts.early.insert((notice.context, peer), (notice.epoch, cause));
                self.transport.borrow_mut().discard(notice.context, Which::From(peer, notice.epoch));
            }
            (Said::Waits(theirs), Some(context)) if is_member && context.calls.differs(theirs) => {
                drop(contexts);
                let cause = Failure::Differs(own);
                self.close(notice.context, cause, cause.into(), own);
            }
            (Said::Closed(_) | Said::Waits(_), _) => {}
        }
    }

    /// Closes every context, because the transport as a whole has ended.
    pub(super) fn end(&self, cause: Failure, error: &Error, own: Rank) {
        let mut contexts = self.contexts.borrow_mut();
        contexts.ended.get_or_insert_with(|| (cause, error.clone()));
        let open: Vec<u16> =
            (0u16..).zip(&contexts.all).filter(|(_, context)| context.is_some()).map(|(n, _)| n).collect();
        drop(contexts);
        self.has_closed.store(true, Ordering::Relaxed);
        if let Failure::PeerLost(rank) = cause {
            self.contexts.borrow_mut().lost.push((rank, error.clone()));
        }
        open.into_iter().for_each(|number| self.close(number, cause, error.clone(), own));
    }
}

#[cfg(test)]
#[path = "contexts_tests.rs"]
mod tests;
