//! Ranks that exchange messages, of which each may fail alone.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ucx_sys_wrap::buffer::OnLoss;
use ucx_sys_wrap::{Failure, Rank};

use super::Group;
use crate::context::{Agreed, Context};
use crate::data::Element;
use crate::engine::Handle;
use crate::error::{Error, Result};
use crate::messages::{Message, serve};

pub use crate::messages::{Handler, Outbox};

/// The ranks of a group, for messages that neither a death nor a deadline ends for the others. No
/// collectives. What a server and its clients use.
///
/// The loss of a rank ends the messages with that rank alone ([`PeerLost`](crate::Error::PeerLost)). A rank
/// that is stopped delays those alone that wait for it. Dropping this closes this rank's side: the others
/// find it [gone](Self::has_gone). Beside that, messages are those of
/// [groups](Group#messages-between-two-ranks).
///
/// Sends have no deadline, but for those that are [given one](Self::start_send_within): whoever waits for a
/// handle decides how long ([`wait_until`](Self::wait_until)).
pub struct Peers {
    group: Group,
}

impl Group {
    /// The ranks of this group for messages that each fail alone. All ranks of the group call this.
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn peers(&self) -> Result<Peers> {
        self.duplicate_for_messages().map(Peers::new)
    }

    /// Starts [`peers`](Self::peers), for ranks of a simulation and for tasks of a runtime. Poll the result
    /// to its end.
    pub fn start_peers(&self) -> impl Future<Output = Result<Peers>> + use<> {
        let duplicate = self.start_duplicate_for_messages();
        async move { duplicate.await.map(Peers::new) }
    }

    /// Like [`peers`](Self::peers), and waits for nobody: what is sent to a rank that has not called this yet
    /// waits for it there. The ranks of the group call it equally often, at any time. `None` for a group that
    /// was made of another one: its ranks must agree on a number.
    ///
    /// # Errors
    /// [`Error::TooManyGroups`] if this rank still has the eighth one before; the call counts all the same.
    /// [`Error::Forked`].
    pub fn peers_at_once(&self) -> Result<Option<Peers>> {
        self.check_process()?;
        let Context { world, settings, ranks, excluded, .. } = &*self.context;
        if ranks.number != 0 {
            return Ok(None);
        }
        let (number, epoch) = world.contexts.take_at_once().ok_or(Error::TooManyGroups)?;
        let (members, excluded) = (Arc::clone(&ranks.members), Arc::clone(excluded));
        let agreed = Agreed { number, epoch, members, slots: None, excluded };
        let context = Context::open(world, agreed, OnLoss::Continue, *settings);
        Ok(Some(Peers::new(Self::of(context).planned(Some(*ranks.plan().machine())))))
    }
}

impl Peers {
    fn new(group: Group) -> Self {
        // What has begun has as long as it takes: nothing closes the group.
        group.set_timeout(Duration::MAX);
        Self { group }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    /// The number of ranks, the lost ones included.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.group.world_size()
    }

    /// The number of a rank in the world, by which errors name it.
    #[must_use]
    pub fn member(&self, rank: u32) -> Rank {
        self.group.context.ranks.member(rank)
    }

    /// Starts a [`send`](Group::send); the handle returns `data`.
    pub fn start_send<T, B>(&self, data: B, to: u32, tag: u32) -> Handle<(B, Result<()>)>
    where
        T: Element,
        B: AsRef<[T]> + Send + 'static,
    {
        self.group.start_send(data, to, tag)
    }

    /// Starts a [`send`](Group::send) that is given up after `timeout`; the handle returns `data`.
    pub fn start_send_within<T, B>(
        &self,
        data: B,
        to: u32,
        tag: u32,
        timeout: Duration,
    ) -> Handle<(B, Result<()>)>
    where
        T: Element,
        B: AsRef<[T]> + Send + 'static,
    {
        self.group.with_timeout(timeout).start_send(data, to, tag)
    }

    /// Starts a [`recv`](Group::recv), for at most `timeout`; the handle returns `data`. A message that has
    /// begun to come then is received to its end.
    pub fn start_recv<T, B>(
        &self,
        data: B,
        from: impl Into<Option<u32>>,
        tag: impl Into<Option<u32>>,
        timeout: Duration,
    ) -> Handle<(B, Result<Message>)>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'static,
    {
        self.group.with_timeout(timeout).start_recv(data, from, tag)
    }

    /// Starts to receive the messages with this tag of all other ranks for `handler`, until it has
    /// [ended](Handler::has_ended). Each message is received by itself: one that is half received holds up no
    /// other. Dropping the handle ends it too.
    pub fn start_serving<H: Handler>(&self, tag: u32, handler: H) -> Handle<(H, Result<()>)> {
        if let Err(error) = self.group.check_process() {
            return self.group.ended((handler, Err(error)));
        }
        self.group
            .start_mail(handler, move |mail, handler: &mut H| Box::pin(serve(mail, tag, handler)))
            .of_receive()
    }

    /// Whether a rank has died, has left, or has closed its side, as far as this rank knows: it sends
    /// nothing any more. Messages that it sent before may still come. Watches it from now on.
    #[must_use]
    pub fn has_gone(&self, rank: u32) -> bool {
        self.group.context.ranks.has_gone(self.group.port(), rank)
    }

    /// Whether a rank has died, and not left, as far as this rank knows: it was lost, or another one has
    /// closed its side for that.
    #[must_use]
    pub fn has_died(&self, rank: u32) -> bool {
        let (port, member) = (self.group.port(), self.member(rank));
        let is_told = |(_, cause): &(Rank, Failure)| *cause == Failure::PeerLost(member);
        rank != self.rank()
            && !port.watch(member)
            && (port.lost().contains(&member)
                || port.departed(self.group.context.ranks.number).iter().any(is_told))
    }

    /// Turns and waits as [`Group::wait_until`].
    pub fn wait_until(&self, longest: Duration, is_done: impl Fn() -> bool) -> bool {
        self.group.wait_until(longest, is_done)
    }

    /// As [`Group::check_process`].
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn check_process(&self) -> Result<()> {
        self.group.check_process()
    }

    /// Whether the network is simulated: then nothing may block, and only virtual time passes.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.group.port().is_simulated()
    }

    /// The transport's clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.group.port().now()
    }

    /// As [`Group::compute`].
    pub async fn compute(&self, lasting: Duration) {
        self.group.compute(lasting).await;
    }
}

impl Drop for Peers {
    /// Tells the others, who may wait for this rank, and whose death it may be for.
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            let port = self.group.port();
            let lost = port.lost().into_iter().find(|lost| self.group.members().contains(lost));
            let cause = lost.map_or(Failure::Aborted(port.rank()), Failure::PeerLost);
            port.fail(self.group.context.ranks.number, cause);
        }
    }
}
