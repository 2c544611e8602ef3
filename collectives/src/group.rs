//! A group of ranks and everything that can be called on it.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use brevity_compress::low_rank::{Batch, Factors};
use brevity_compress::{SparseVec, SparseView};
use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::buffer::{Chunk, Comm, Port};
use ucx_sys_wrap::shm::{Neighbourhood, Ticket};
use ucx_sys_wrap::{Rank, Signature, Statistics, Transport};

use crate::call::{Call, Identity, Shared};
use crate::choose::Cost;
use crate::description::{Description, Operation};
use crate::element::{Element, Reduction};
use crate::engine::{Engine, Handle, ProgressThread, Sleep};
use crate::error::{Error, Place, Result};
use crate::host::{self, Host, HostCall, Surroundings};
use crate::sparse::{Gtopk, PutBack};
use crate::{dense, low_rank, sparse};

/// How long a call may take unless told otherwise: dead peers are found at once, so this is for live ones that hang.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// What a group is made with. All but the timeout and the thread must be the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a call may take before it fails with [`Error::Timeout`].
    pub timeout: Duration,
    /// The network that algorithms are chosen for.
    pub cost: Cost,
    /// Whether a thread moves non-blocking calls while nobody else turns the engine. It ends with the group.
    pub progress_thread: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: DEFAULT_TIMEOUT, cost: Cost::default(), progress_thread: false }
    }
}

/// The ranks of a job, to call collectives on.
///
/// All ranks make the same calls in the same order. A group can be shared between threads and cloned; clones are the
/// same group. After [`Error::PeerLost`], [`Error::Aborted`], [`Error::Timeout`], [`Error::Mismatch`] or
/// [`Error::Payload`] it is closed on all ranks: calls that need a peer fail.
#[derive(Clone)]
pub struct Group(Arc<Inner>);

struct Inner {
    /// Ends before anything else does.
    _thread: Option<ProgressThread>,
    engine: Arc<Engine>,
    settings: Settings,
    sequence: AtomicU32,
    neighbourhood: Option<Arc<Neighbourhood>>,
    host: Option<Arc<Host>>,
}

/// The future of a non-blocking call's body; see [`Group::start`].
pub type CallFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

impl Group {
    /// The group of all ranks of `transport`.
    ///
    /// # Panics
    /// As [`opened`](Self::opened).
    #[must_use]
    pub fn new(transport: Box<dyn Transport>, settings: Settings) -> Self {
        Self::opened(Opened { transport, neighbourhood: None }, settings)
    }

    /// The group of all ranks of a job that was joined.
    ///
    /// # Panics
    /// When the system has no thread left and the settings ask for one, as [`std::thread::spawn`] does.
    #[must_use]
    pub fn opened(opened: Opened, settings: Settings) -> Self {
        Self::try_opened(opened, settings).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`opened`](Self::opened).
    ///
    /// # Errors
    /// When the system has no thread left and the settings ask for one.
    pub(crate) fn try_opened(Opened { transport, neighbourhood }: Opened, settings: Settings) -> Result<Self> {
        let port = Port::new(transport);
        let engine = Engine::new(Arc::clone(&port), neighbourhood.clone());
        let host = neighbourhood
            .as_ref()
            .and_then(|all| Host::new(all, port.world_size(), &settings.cost, engine.moves_of_others()))
            .map(Arc::new);
        let thread = settings.progress_thread.then(|| ProgressThread::start(&engine)).transpose();
        let thread = thread.map_err(Error::Transport)?;
        let sequence = AtomicU32::new(0);
        Ok(Self(Arc::new(Inner { _thread: thread, engine, settings, sequence, neighbourhood, host })))
    }

    /// A group of this rank alone.
    #[must_use]
    pub fn solo() -> Self {
        let alone = ucx_sys_wrap::local::world(1);
        let transport = alone.into_iter().next().unwrap_or_else(|| unreachable!("a world of one has one rank"));
        Self::new(Box::new(transport), Settings::default())
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.port().rank().0
    }

    /// Ranks in the group.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.port().world_size()
    }

    /// The transport's name, as "tcp".
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.port().name()
    }

    /// What this rank has sent, received and copied.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.port().statistics()
    }

    /// What this rank shares with the others of its host, where it does.
    #[must_use]
    pub fn neighbourhood(&self) -> Option<&Arc<Neighbourhood>> {
        self.0.neighbourhood.as_ref()
    }

    /// What the group was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// What moves this group's calls: for messages between two ranks without a call around each. Their tags must be of a
    /// group number that no group of collectives has.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Closes the group on all ranks: their pending and later calls fail with [`Error::Aborted`] naming this rank.
    pub fn abort(&self) {
        self.port().abort();
    }

    /// Moves the transport and all non-blocking calls once, without blocking. Says whether anything happened.
    pub fn progress(&self) -> bool {
        self.0.engine.turn()
    }

    /// For a runtime that watches descriptors: moves all non-blocking calls once and prepares for sleeping. Says what to
    /// watch, and when to look again at the latest; `None` when something has moved: look at the handles, then call this
    /// again.
    ///
    /// The promise to be woken holds until something turns the engine or starts a call: call this before each sleep. While
    /// no handle is pending there is nothing to watch for.
    ///
    /// ```
    /// use brevity_collectives::{Group, Reduction};
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// let group = Group::solo();
    /// let handle = group.start_all_reduce(vec![1.0f32; 4], Reduction::Sum);
    /// while !handle.test() {
    ///     let Some(sleep) = group.prepare_sleep() else { continue };
    ///     // Any of the runtime's own descriptors may stand beside it.
    ///     let longest = Timespec { tv_sec: 0, tv_nsec: sleep.longest().as_nanos() as i64 };
    ///     poll(&mut [PollFd::new(&sleep, PollFlags::IN)], Some(&longest)).unwrap();
    /// }
    /// let (sum, result) = handle.wait();
    /// assert!(result.is_ok() && sum == [1.0; 4]);
    /// ```
    pub fn prepare_sleep(&self) -> Option<Sleep> {
        self.0.engine.prepare_sleep()
    }

    /// Makes a call of one's own and runs it to its end on this thread.
    ///
    /// All ranks must pass equal descriptions. Everything that `body` posted has ended when this returns.
    pub fn run<'env, R>(&self, description: Description, body: impl AsyncFnOnce(&Call<'_, 'env>) -> R) -> R {
        let (identity, _) = self.next_call(&description);
        self.0.engine.run(identity.timeout, async |comm: &Comm<'env>| {
            let shared = Shared::default();
            let result = body(&Call::new(comm, identity, description, &shared)).await;
            leave(comm, &shared);
            result
        })
    }

    /// Makes a non-blocking call of one's own on `buffers`; the handle gives them back with the result.
    ///
    /// The call's number is taken here, so ranks must start their calls in the same order, whatever order they wait in.
    pub fn start<B, R, F>(&self, description: Description, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        let (identity, _) = self.next_call(&description);
        self.0.engine.spawn(identity.timeout, buffers, move |comm, buffers| {
            Box::pin(async move {
                let shared = Shared::default();
                let call = Call::new(comm, identity, description, &shared);
                let result = body(&call, buffers).await;
                leave(comm, &shared);
                result
            })
        })
    }

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    /// When a rank is lost, aborts, calls something else or does not come in time.
    pub fn barrier(&self) -> Result<()> {
        self.run(Description::new(Operation::BARRIER, 0, 0), async |call| dense::barrier(call).await)
    }

    /// Copies `data` of rank `root` to all ranks; lengths are equal on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::NoSuchRoot`].
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<()> {
        if root >= self.world_size() {
            return Err(Error::NoSuchRoot { root: Rank(root), world_size: self.world_size() });
        }
        let description = Description::new(Operation::BROADCAST, T::NUMBER, data.len());
        let description = Description { root: Some(Rank(root)), ..description };
        if let Some(host) = self.host_for(size_of_val(data)) {
            return self.run_on_host(host, description, data, nothing_at_once, async |call, data, ()| {
                host::broadcast(call, data, root).await
            });
        }
        self.run(description, async |call| dense::broadcast(call, Chunk::from(data), root).await.map(drop))
    }

    /// Reduces `data` over all ranks, in place: the same bits on every rank.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); `data` is then unspecified.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], reduction: Reduction) -> Result<()> {
        let description = dense::describe_all_reduce::<T>(data.len(), reduction);
        let cost = self.0.settings.cost;
        if let Some(host) = self.host_for(size_of_val(data)) {
            let at_once = |call: &mut HostCall<'_>, data: &mut [T]| host::at_once(call, data, reduction);
            return self.run_on_host(host, description, data, at_once, async |call, data, rest| {
                host::all_reduce_rest(call, data, reduction, rest).await
            });
        }
        self.run(description, async |call| dense::all_reduce(call, Chunk::from(data), reduction, &cost).await.map(drop))
    }

    /// Starts an [`all_reduce`](Self::all_reduce) of a vector that the call owns meanwhile.
    pub fn start_all_reduce<T: Element>(&self, data: Vec<T>, reduction: Reduction) -> Handle<(Vec<T>, Result<()>)> {
        let description = dense::describe_all_reduce::<T>(data.len(), reduction);
        let cost = self.0.settings.cost;
        if let Some(host) = self.host_for(size_of_val(&data[..])) {
            return self.start_on_host(host, description, data, move |call, data| {
                Box::pin(host::all_reduce(call, data, reduction))
            });
        }
        self.start(description, data, move |call, data| {
            Box::pin(
                async move { dense::all_reduce(call, Chunk::from(&mut data[..]), reduction, &cost).await.map(drop) },
            )
        })
    }

    /// Gathers vectors of equal length: `all` gets rank 0's `own`, then rank 1's, and so on.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Length`] unless `all` is `P` times as long as `own`.
    pub fn all_gather<T: Element>(&self, own: &[T], all: &mut [T]) -> Result<()> {
        let expected = own.len() * self.world_size() as usize;
        if all.len() != expected {
            return Err(Error::Length { what: "the gathered vector", found: all.len(), expected });
        }
        let start = own.len() * self.rank() as usize;
        // The one copy that gathering in place leaves: this rank's own part.
        all[start..start + own.len()].copy_from_slice(own);
        let description = Description::new(Operation::ALL_GATHER, T::NUMBER, own.len());
        if let Some(host) = self.host_for(size_of_val(own)) {
            return self.run_on_host(host, description, all, nothing_at_once, async |call, all, ()| {
                host::all_gather(call, all).await
            });
        }
        self.run(description, async |call| dense::all_gather(call, Chunk::from(all)).await.map(drop))
    }

    /// Gathers vectors whose lengths may differ, in rank order.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn all_gather_varying<T: Element>(&self, own: Vec<T>) -> Result<Vec<Vec<T>>> {
        let description = Description::new(Operation::ALL_GATHER, T::NUMBER, 0);
        self.run(description, async |call| dense::all_gather_varying(call, own).await)
    }

    /// Gathers the sparse vectors of all ranks, in rank order. `local` has at most `limit` entries, the same on all
    /// ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Length`] when `local` has more.
    pub fn sparse_all_gather(&self, local: SparseView<'_>, limit: usize) -> Result<Vec<SparseVec>> {
        check_limit(local, limit)?;
        let description = sparse::describe_all_gather(local.dim());
        self.run(description, async |call| sparse::sparse_all_gather(call, local, limit).await)
    }

    /// Sums the sparse vectors of all ranks. `local` has at most `limit` entries, the same on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Length`] when `local` has more.
    pub fn topk_all_reduce(&self, local: SparseView<'_>, limit: usize) -> Result<SparseVec> {
        check_limit(local, limit)?;
        let description = sparse::describe_topk(local.dim());
        self.run(description, async |call| sparse::topk_all_reduce(call, local, limit, 0).await)
    }

    /// Sums the sparse vectors of all ranks and keeps the `k` largest entries; says what goes back to the residual.
    ///
    /// `local` has at most `k` entries, and `k` is the same on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Length`] when `local` has more; [`Error::NonFinite`] on all ranks when a
    /// sum overflows.
    pub fn gtopk_all_reduce(&self, local: SparseView<'_>, k: usize, rule: PutBack) -> Result<Gtopk> {
        check_limit(local, k)?;
        let description = sparse::describe_gtopk(local.dim());
        self.run(description, async |call| {
            let outcome = sparse::gtopk_all_reduce(call, local, k, rule, 0).await?;
            call.check_poison().map(|()| outcome)
        })
    }

    /// Finds the low-rank factors of the mean of all ranks' matrices, one for each state of the batch.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Length`] when a matrix does not fit its state.
    pub fn low_rank_all_reduce(&self, batch: &mut Batch, matrices: &[&[f32]]) -> Result<Factors> {
        let cost = self.0.settings.cost;
        let description = low_rank::describe(batch);
        let tensors: Vec<u32> = (0..matrices.len() as u32).collect();
        self.run(description, async |call| low_rank::low_rank_all_reduce(call, batch, matrices, &tensors, &cost).await)
    }

    /// The slots of the host, if all ranks are on it and calls of `bytes` should use them; the same on all ranks.
    #[inline]
    fn host_for(&self, bytes: usize) -> Option<&Arc<Host>> {
        self.0
            .host
            .as_ref()
            .filter(|host| host.is_always || self.0.settings.cost.prefers_slots(self.world_size(), bytes))
    }

    /// Runs a call over slots to its end on this thread: as much `at_once` as it can, then the rest in `body`.
    fn run_on_host<T, S>(
        &self,
        host: &Host,
        description: Description,
        data: &mut [T],
        at_once: impl FnOnce(&mut HostCall<'_>, &mut [T]) -> ControlFlow<Result<()>, S>,
        body: impl AsyncFnOnce(&mut HostCall<'_>, &mut [T], S) -> Result<()>,
    ) -> Result<()> {
        let (identity, signature) = self.next_call(&description);
        let mut ticket = Ticket::take(&*host.slots);
        let place = Place { description, sequence: identity.sequence, timeout: identity.timeout };
        let (shared, expired) = (Shared::default(), AtomicBool::new(false));
        let around = Surroundings {
            port: self.port(),
            expiry: &expired,
            records: &host.records,
            moves: &host.moves,
            outer: signature,
            shared: &shared,
            spins: self.0.engine.spins(),
        };
        if let Some(mut call) = HostCall::begin_at_once(&mut ticket, around, &place) {
            return match at_once(&mut call, data) {
                ControlFlow::Break(result) => result,
                ControlFlow::Continue(rest) => {
                    let body = async { body(&mut call, data, rest).await };
                    self.0.engine.run_without_scope(identity.timeout, &expired, body)
                }
            };
        }
        self.0.engine.run_without_scope(identity.timeout, &expired, async {
            let mut call = HostCall::begin(&mut ticket, around, &place).await?;
            match at_once(&mut call, data) {
                ControlFlow::Break(result) => result,
                ControlFlow::Continue(rest) => body(&mut call, data, rest).await,
            }
        })
    }

    /// Makes a non-blocking call over slots on `data`, which the handle gives back.
    fn start_on_host<T, F>(
        &self,
        host: &Arc<Host>,
        description: Description,
        data: Vec<T>,
        body: F,
    ) -> Handle<(Vec<T>, Result<()>)>
    where
        T: Element,
        F: for<'a, 'b> FnOnce(&'a mut HostCall<'b>, &'a mut [T]) -> CallFuture<'a, Result<()>> + Send + 'static,
    {
        let (identity, signature) = self.next_call(&description);
        let host = Arc::clone(host);
        let mut ticket = Ticket::take(Arc::clone(&host.slots));
        self.0.engine.spawn(identity.timeout, data, move |comm, data| {
            Box::pin(async move {
                let place = Place { description, sequence: identity.sequence, timeout: identity.timeout };
                let shared = Shared::default();
                let around = Surroundings {
                    port: comm.port(),
                    expiry: comm,
                    records: &host.records,
                    moves: &host.moves,
                    outer: signature,
                    shared: &shared,
                    spins: 0,
                };
                let mut call = HostCall::begin(&mut ticket, around, &place).await?;
                body(&mut call, data).await
            })
        })
    }

    fn port(&self) -> &Arc<Port> {
        self.0.engine.port()
    }

    /// The next call's number, and what it says that it is.
    #[inline]
    fn next_call(&self, description: &Description) -> (Identity, Signature) {
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        let signature = description.encode();
        if let Some(host) = &self.0.host {
            host.record(sequence, signature);
        }
        (Identity { group: 0, sequence, timeout: self.0.settings.timeout }, signature)
    }
}

/// For calls over slots that are not worth a way around the engine.
fn nothing_at_once<T>(_: &mut HostCall<'_>, _: &mut [T]) -> ControlFlow<Result<()>, ()> {
    ControlFlow::Continue(())
}

/// Closes the group if a peer has broken the call's rules: this rank has left the call early, and nobody must wait for it.
fn leave(comm: &Comm<'_>, shared: &Shared) {
    if shared.is_broken() {
        comm.port().abort();
    }
}

fn check_limit(local: SparseView<'_>, limit: usize) -> Result<()> {
    if local.len() > limit {
        return Err(Error::Length { what: "the sparse vector", found: local.len(), expected: limit });
    }
    Ok(())
}
