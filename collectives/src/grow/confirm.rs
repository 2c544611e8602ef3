//! How ranks go from their group to a new world: all that are left do, or none.
//!
//! Each of those who are left has joined the new world, or has failed to, as if a member is lost at once.
//!
//! 1. They tell each other on the old group whether all have joined. A rank *knows* that all have if this
//!    call succeeds there. If one is lost meanwhile, some ranks may know it and others not.
//! 2. Those who have joined decide by a majority of the old group to go ([`Group::start_decision`]): if any
//!    that answers knows that all have joined.
//! 3. Who has learned that they go meets those who have come back in a barrier of the new world, and goes on
//!    there even if that fails: then the new group is closed.
//!
//! So whoever dies, those who are left are in the same group:
//!
//! - If one of them has not joined, nobody knows that all have. So nobody goes.
//! - Before a majority has accepted to go, nobody has learned it. The living then ask each other: they go if
//!   one of them knows that all have joined or has accepted, and stay if that died with the others.
//! - Afterwards every candidate finds a member that has accepted. A majority of them may have learned the
//!   decision and answer no more, if the candidate died while it told them. But nobody passes the barrier
//!   without the others, and it fails at the latest when the dead candidate is noticed. Those who have
//!   learned the decision shrink the new group then, and answer those who have not.
//! - In the barrier all know the decision. Some may pass it and others fail: all are in the new group, find
//!   it closed, and shrink it.
//! - Those who have come back decide nothing. If their barrier fails they shrink the new group. Those who are
//!   left come to that only if they have decided to go; if none comes, those who have come back call again.
//!
//! Without a majority of the old group nobody goes on in either: what [`Group::shrink`] says of it holds. Who
//! has accepted to go takes no part in shrinking the old group, or another one of its world, afterwards.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ucx_sys_wrap::Rank;

use crate::data::ReduceOp;
use crate::engine::Handle;
use crate::error::Result;
use crate::group::Group;

/// The timeouts that telling and deciding take at most.
const TIMEOUTS_TO_DECIDE: u32 = 4;

/// How to wait for a call.
#[derive(Clone, Copy)]
enum Calls {
    Block,
    /// In a simulation.
    Await,
}

impl Calls {
    async fn end<T>(self, call: Handle<T>) -> T {
        match self {
            Self::Block => call.wait(),
            Self::Await => call.await,
        }
    }

    async fn shrink(self, group: &Group) -> Result<Group> {
        match self {
            Self::Block => group.shrink(),
            Self::Await => group.start_shrink().await,
        }
    }
}

/// The output of a future whose calls block.
fn block<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("all of its calls block"),
    }
}

impl Group {
    /// Goes to the group that this rank has `joined`, if the others go too; `None` if they stay. `left` are
    /// the numbers in that group of this one's members, in their order. Joining has taken at most `longest`.
    pub(super) fn confirm(
        &self,
        joined: Option<Self>,
        left: &[u32],
        longest: Duration,
    ) -> Result<Option<Self>> {
        block(self.go_with(joined, left, longest, Calls::Block))
    }

    /// Meets the others as one that has come back. Fails if those who are `left`, by their numbers in this
    /// group, do not come. Joining has taken them at most `longest`.
    pub(crate) fn confirm_return(self, left: &[u32], longest: Duration) -> Result<Self> {
        block(self.return_with(left, longest, Calls::Block))
    }

    /// What `grow` does after joining, for ranks of a simulation: poll it to its end.
    #[doc(hidden)]
    pub async fn start_confirm(&self, joined: Option<Self>, left: &[u32]) -> Result<Option<Self>> {
        self.go_with(joined, left, Duration::ZERO, Calls::Await).await
    }

    /// What a rank that comes back does after joining, likewise.
    #[doc(hidden)]
    pub async fn start_confirm_return(self, left: &[u32]) -> Result<Self> {
        self.return_with(left, Duration::ZERO, Calls::Await).await
    }

    async fn go_with(
        &self,
        joined: Option<Self>,
        left: &[u32],
        longest: Duration,
        calls: Calls,
    ) -> Result<Option<Self>> {
        let has_joined = joined.as_ref().is_some_and(|next| !next.is_closed());
        let failures = vec![u32::from(!has_joined)];
        // Others may still be joining.
        let patient = self.with_timeout(longest.saturating_add(self.timeout()));
        let (failures, told) = calls.end(patient.start_all_reduce(failures, ReduceOp::Max)).await;
        let knows = told.is_ok() && failures == [0];
        let next = match joined {
            Some(next) if knows || told.is_err() => next,
            _ => return told.map(|()| None),
        };
        // Why its messages have failed does not matter, only what was decided.
        let (((), agreement), _) = calls.end(next.start_decision(self, left, knows)).await;
        if !self.has_decided(&agreement)? {
            return told.map(|()| None);
        }
        if let ((), Err(error)) = calls.end(next.start_barrier()).await {
            tracing::warn!(%error, "a rank was lost as soon as the group had grown");
        }
        Ok(Some(next))
    }

    async fn return_with(self, left: &[u32], longest: Duration, calls: Calls) -> Result<Self> {
        // Until then they have told each other, and have decided, also if some are silent.
        let patience = longest.saturating_add(self.timeout().saturating_mul(TIMEOUTS_TO_DECIDE));
        let Err(error) = calls.end(self.with_timeout(patience).start_barrier()).await.1 else {
            return Ok(self);
        };
        let is_left =
            |member: &Rank| left.iter().any(|rank| self.members().get(*rank as usize) == Some(member));
        match calls.shrink(&self).await {
            // Those who are left have gone on in this group, and shrink it too. The first call on the new one
            // fails everywhere, so that all of them shrink that next.
            Ok(next) if next.members().iter().any(is_left) => {
                next.abort();
                Ok(next)
            }
            _ => Err(error),
        }
    }
}
