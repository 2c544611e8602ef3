//! Groups of ranks: how they are made, and how a call on them runs.
//!
//! The collectives on plain slices and on shared buffers are in files of their own.

mod collectives;
mod on_host;
mod settings;
mod shared;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::buffer::{Comm, Port};
use ucx_sys_wrap::shm::LocalGroup;
use ucx_sys_wrap::{Owner, Signature, Statistics, Transport};

use crate::call::{Call, Identity, Shared};
use crate::description::Description;
use crate::engine::{Engine, EngineThread, Handle, Sleep};
use crate::error::{Error, Result};
use crate::host::Host;

pub use settings::{DEFAULT_TIMEOUT, Settings};

/// The ranks of a job, for collective calls.
///
/// All ranks make the same calls in the same order. A group can be shared between threads and cloned; clones
/// are the same group. Do not use a group in a forked child, except to drop it. After [`Error::PeerLost`],
/// [`Error::Aborted`], [`Error::Timeout`], [`Error::Mismatch`], [`Error::Payload`], or an
/// [`Error::Transport`] that is due to lack of memory or a peer's invalid message, the group is closed on all
/// ranks: calls that need a peer fail.
#[derive(Clone)]
pub struct Group(Arc<Inner>);

struct Inner {
    /// Ends before everything else.
    thread: Option<EngineThread>,
    owner: Owner,
    engine: Arc<Engine>,
    settings: Settings,
    sequence: AtomicU32,
    local_group: Option<Arc<LocalGroup>>,
    host: Option<Arc<Host>>,
}

impl Drop for Inner {
    /// In a forked child, all state belongs to the parent, whose threads do not exist here.
    fn drop(&mut self) {
        if !self.owner.is_here() {
            std::mem::forget((self.thread.take(), Arc::clone(&self.engine)));
        }
    }
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
        Self::opened(Opened::in_process(transport, None), settings)
    }

    /// The group of all ranks of a joined job.
    ///
    /// # Panics
    /// When the system has no thread or descriptor left, as [`std::thread::spawn`] does.
    #[must_use]
    pub fn opened(opened: Opened, settings: Settings) -> Self {
        Self::try_opened(opened, settings).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`opened`](Self::opened).
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub(crate) fn try_opened(opened: Opened, settings: Settings) -> Result<Self> {
        let Opened { transport, local_group, is_crowded } = opened;
        let port = Port::new(transport);
        let engine = Engine::new(Arc::clone(&port), local_group.clone(), is_crowded);
        let host = local_group
            .as_ref()
            .and_then(|all| Host::new(all, port.world_size(), &settings.cost, engine.course()))
            .map(Arc::new);
        // A single rank has no peer to tell of an abort, and a simulated network allows no other thread.
        let is_needed = settings.progress_thread || (port.world_size() > 1 && !port.is_simulated());
        let thread = is_needed.then(|| EngineThread::start(&engine, settings.progress_thread)).transpose();
        let thread = thread.map_err(Error::Transport)?;
        let sequence = AtomicU32::new(0);
        Ok(Self(Arc::new(Inner {
            thread,
            owner: Owner::here(),
            engine,
            settings,
            sequence,
            local_group,
            host,
        })))
    }

    /// A group of this rank only.
    #[must_use]
    pub fn solo() -> Self {
        let alone = ucx_sys_wrap::local::world(1);
        let transport =
            alone.into_iter().next().unwrap_or_else(|| unreachable!("a world of one has one rank"));
        Self::new(Box::new(transport), Settings::default())
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.port().rank().0
    }

    /// The number of ranks in the group.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.port().world_size()
    }

    /// The transport's name, as "tcp".
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.port().name()
    }

    /// The counters of this rank.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let bytes_shared = self.0.host.as_ref().map_or(0, |host| host.written.load(Ordering::Relaxed));
        Statistics { bytes_shared, ..self.port().statistics() }
    }

    /// The memory that this rank shares with the others of its host, if it does.
    #[must_use]
    pub fn local_group(&self) -> Option<&Arc<LocalGroup>> {
        self.0.local_group.as_ref()
    }

    /// The settings of the group.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// The progress engine of this group, for point-to-point messages. Their tags must have a group number
    /// that no group of collectives uses.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Closes the group on all ranks: pending and later calls of all ranks fail with [`Error::Aborted`]
    /// naming this rank.
    ///
    /// Async-signal-safe: a signal handler may call it at any time, also during a call on this group. It
    /// takes no lock, allocates nothing and never panics.
    ///
    /// Peers are told by the call that is using the transport, at its next turn (within 10 ms if it sleeps),
    /// else by the group's thread. This waits for that at most 100 ms (2 ms while a thread is in the
    /// transport), so that a caller may exit afterwards. In a handler that has interrupted a call, peers may
    /// not have been told yet when this returns. If the process ends before that call goes on, they find this
    /// rank lost instead. In a simulation, peers are told at this rank's next turn or call, or when it drops
    /// the group.
    pub fn abort(&self) {
        self.0.engine.abort();
    }

    /// Moves the transport and all non-blocking calls once, without blocking. Returns whether anything
    /// happened.
    pub fn progress(&self) -> bool {
        self.0.engine.turn()
    }

    /// For event loops: moves all non-blocking calls once and prepares for sleeping. Returns the descriptor
    /// to watch and the longest sleep; `None` if something has moved: check the handles, then call this
    /// again.
    ///
    /// The wake-up is guaranteed only until something turns the engine or starts a call, so call this before
    /// each sleep. While no handle is pending there is nothing to watch for.
    ///
    /// ```
    /// use brevity_collectives::{Group, Reduction};
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// let group = Group::solo();
    /// let handle = group.start_all_reduce(vec![1.0f32; 4], Reduction::Sum);
    /// while !handle.test() {
    ///     let Some(sleep) = group.prepare_sleep() else { continue };
    ///     // The runtime's own descriptors may be polled too.
    ///     let longest = Timespec { tv_sec: 0, tv_nsec: sleep.longest().as_nanos() as i64 };
    ///     poll(&mut [PollFd::new(&sleep, PollFlags::IN)], Some(&longest)).unwrap();
    /// }
    /// let (sum, result) = handle.wait();
    /// assert!(result.is_ok() && sum == [1.0; 4]);
    /// ```
    pub fn prepare_sleep(&self) -> Option<Sleep> {
        self.0.engine.prepare_sleep()
    }

    /// Runs a custom call to completion on this thread.
    ///
    /// All ranks must pass equal descriptions. All operations of `body` have ended when this returns.
    pub fn run<'env, R>(&self, description: Description, body: impl AsyncFnOnce(&Call<'_, 'env>) -> R) -> R {
        let (identity, _) = self.next_call(&description);
        self.run_body(identity, description, Shared::default(), body)
    }

    /// Like [`run`](Self::run), for a body with collectives on dense vectors: among ranks of one host these
    /// use shared memory, as those of the group do.
    ///
    /// Calls use that memory in the order in which they were made, each until it ends. So `body` must not
    /// wait for a later call that uses it. Inside the body, collectives use it in the order of their first
    /// polls, which must be equal on all ranks. If ranks make different calls inside, one of them by
    /// messages, they may detect it only when the deadline passes.
    pub fn run_in_order<'env, R>(
        &self,
        description: Description,
        body: impl AsyncFnOnce(&Call<'_, 'env>) -> R,
    ) -> R {
        let (identity, signature) = self.next_call(&description);
        let shared = Shared::new(self.inside(signature, self.0.engine.spins()));
        self.run_body(identity, description, shared, body)
    }

    fn run_body<'env, R>(
        &self,
        identity: Identity,
        description: Description,
        shared: Shared,
        body: impl AsyncFnOnce(&Call<'_, 'env>) -> R,
    ) -> R {
        self.0.engine.run(identity.timeout, async |comm: &Comm<'env>| {
            let result = body(&Call::new(comm, identity, description, &shared)).await;
            leave(comm, &shared);
            result
        })
    }

    /// Starts a custom non-blocking call on `buffers`; the handle returns them with the result.
    ///
    /// The call gets its number here, so all ranks must start their calls in the same order. They may wait
    /// for them in any order.
    pub fn start<B, R, F>(&self, description: Description, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        let (identity, _) = self.next_call(&description);
        self.start_body(identity, description, Shared::default(), buffers, body)
    }

    /// Like [`start`](Self::start), for a body with collectives on dense vectors; see
    /// [`run_in_order`](Self::run_in_order).
    pub fn start_in_order<B, R, F>(&self, description: Description, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        let (identity, signature) = self.next_call(&description);
        self.start_body(identity, description, Shared::new(self.inside(signature, 0)), buffers, body)
    }

    /// The handle of a call that was refused: it has ended with `value` without starting anything.
    pub fn ended<T>(&self, value: T) -> Handle<T> {
        Handle::ended(&self.0.engine, value)
    }

    fn start_body<B, R, F>(
        &self,
        identity: Identity,
        description: Description,
        shared: Shared,
        buffers: B,
        body: F,
    ) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        self.0.engine.spawn(identity.timeout, buffers, move |comm, buffers| {
            Box::pin(async move {
                let call = Call::new(comm, identity, description, &shared);
                let result = body(&call, buffers).await;
                leave(comm, &shared);
                result
            })
        })
    }

    fn port(&self) -> &Arc<Port> {
        self.0.engine.port()
    }

    /// The next call's number, and its identity.
    #[inline]
    fn next_call(&self, description: &Description) -> (Identity, Signature) {
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        let signature = description.encode();
        if let Some(host) = &self.0.host
            && self.is_open()
        {
            host.record(sequence, signature);
        }
        (Identity { group: 0, sequence, timeout: self.0.settings.timeout }, signature)
    }

    /// Whether calls that need a peer can succeed. Otherwise they must send nothing: a rank that does not
    /// know yet why the group is closed would take it for a different call.
    #[inline]
    fn is_open(&self) -> bool {
        !self.0.engine.course().is_closed.load(Ordering::Relaxed)
    }
}

/// Closes the group if a peer has violated the call's protocol: this rank has left the call early, and no
/// rank must wait for it.
fn leave(comm: &Comm<'_>, shared: &Shared) {
    if shared.is_broken() {
        comm.port().abort();
    }
}
