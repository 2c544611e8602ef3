//! Ranks that are processes (or threads), over UCX.
//!
//! UCX is loaded at run time, once and only when this transport is asked for ([`available`],
//! [`Ucx::connect`]). Every rank has one worker and an endpoint to each peer, made from the worker addresses
//! that all ranks exchange.
//!
//! **Messages** are UCX's active messages: a header of ours (`header.rs`) and a payload that UCX takes from
//! where it lies. Up to [`MAX_EAGER_BYTES`] go at once and are copied once, by the receiver, straight into
//! their place; UCX's own tagged messages would cost a second copy. Above, and when the receiver has
//! [`CREDIT_BYTES`] that it has not asked for, the payload is offered, and fetched straight into its place
//! when its receive is posted. So what a rank keeps unasked is bounded, and no tag blocks another. Of several
//! parts up to [`PACKED_BYTES`] together are packed; above, large parts are active messages of their own.
//! Matching is ours (`inbox.rs`).
//!
//! **Neighbours.** Messages between ranks of one host that share memory go through that memory, as on tcp
//! (`link`): it is faster than UCX's. UCX carries what crosses hosts, and puts and gets.
//!
//! **Failure.** Endpoints have UCX's error handling `NONE`, which is what shared memory is fast with, and
//! which never reports a dead peer. So liveness is ours: who waits for a peer longer than about 20 ms, or
//! goes to sleep, watches it over a control connection (`liveness.rs`). Once a transport fails, its peers are
//! reported, UCX is torn down at once and every operation ends with the cause; nothing is left that could touch
//! memory, because rendezvous is by `get_zcopy` wherever memory is shared (`tuning.rs`), and because a
//! receiver that has fetched from a sender's memory looks afterwards whether the sender had not taken it back
//! (`word.rs`).
//!
//! **Ending early.** A receive whose message has not come can be canceled; one whose parts are on the way
//! ends when they have come. A large send that is canceled asks its receiver, over the control connection, to
//! discard the message; if that does not answer, the send ends when the peer receives, or when the transport
//! is abandoned.
//!
//! Neither UCX's own connections nor the control connections are encrypted; the latter ask for a token that
//! only the work's ranks know. UCX is as trusted as its network.
#![allow(unsafe_code)]

mod closing;
#[cfg(test)]
mod closing_tests;
mod connecting;
mod control;
mod devices;
mod endpoint_info;
mod engine;
mod errands;
mod exiting;
mod failure_flag;
mod flow;
mod fragments;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod greeting;
mod handler;
mod handler_context;
mod header;
#[cfg(test)]
mod header_tests;
mod inbox;
#[cfg(test)]
mod inbox_tests;
mod incoming;
mod library;
mod liveness;
mod mapping;
mod match_queues;
mod neighbours;
mod notice;
mod one_sided;
#[cfg(test)]
mod one_sided_tests;
mod operations;
mod payload;
mod peer_process;
mod receiving;
mod remote;
mod requests;
mod sending;
mod table;
mod tuning;
mod ucp_request;
mod watching;
#[cfg(test)]
mod watching_tests;
#[cfg(test)]
mod worlds;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

pub use connecting::Prepared;
pub use devices::rdma_devices;
pub use endpoint_info::WIRE_VERSION;
pub use flow::CREDIT_BYTES;
pub use library::{Report, available};

use crate::boot;
use crate::bootstrap::Ports;
use crate::link::Links;
use crate::told::later;
use crate::transport::Transport;
use crate::{Error, Failure, MAX_WORLD_SIZE, Owner, Rank, Result};
use endpoint_info::EndpointInfo;
use engine::Engine;
use failure_flag::{Closed, OwnFailureFlag, PeerFailureFlag, Token};
use liveness::Liveness;
use receiving::Receives;
use remote::Accesses;
use sending::Sends;
use tuning::Tuning;
use ucp_request::{Bounces, UcpRequest};

/// The most payload of a message of several parts that is packed into one UCX message, in bytes.
pub const PACKED_BYTES: usize = 4096;

/// The longest payload that is sent before its receiver asks for it, in bytes.
pub const MAX_EAGER_BYTES: usize = 32 << 10;

/// What to do where UCX can't be set up.
const RESOURCES: &str = "check UCX_* variables, enlarge /dev/shm (docker run --shm-size) and the limit of open files (ulimit -n), or \
                         take BREVITY_TRANSPORT=tcp";

/// What to do where UCX takes lanes by which a peer can't be reached.
const UNREACHED: &str = "ranks of one host with different users or user namespaces can't share UCX's memory; take \
                         UCX_TLS=tcp,self or BREVITY_TRANSPORT=tcp";

/// No payload.
const NO_BYTES: (*const u8, usize) = (NonNull::dangling().as_ptr(), 0);

/// The clock is looked at every so many turns.
const TURNS_PER_CLOCK: u32 = 64;

/// How often the operations under way are looked through for peers that are waited for long.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long a transport that is dropped goes on sending what is queued.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// How ranks reach each other before they are connected. A closure that exchanges is one.
pub trait Meeting {
    /// Hands this rank's bytes to all ranks and returns those of all, in the order of ranks; blocks until all
    /// have called.
    ///
    /// # Errors
    /// When that fails.
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Whether all ranks are still there; asked now and then while they connect. Does not block.
    ///
    /// # Errors
    /// Names the rank that is not.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<F: FnMut(&[u8]) -> Result<Vec<Vec<u8>>>> Meeting for F {
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self(mine)
    }
}

/// What can be chosen when a world is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface that peers reach this rank's control listener by; loopback unless set.
    pub interface: IpAddr,
    /// The ports that the control listener may have; the system's choice unless set.
    pub ports: Ports,
    /// UCX settings, such as `("TLS", "tcp,self")`: names without `UCX_`. They win over the environment. A
    /// name that UCX does not know is ignored.
    pub settings: Vec<(String, String)>,
    /// How long UCX may take to connect all ranks once all addresses are known; 60 s unless set.
    pub join_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let (interface, settings) = (Ipv4Addr::LOCALHOST.into(), Vec::new());
        Self { interface, ports: Ports::default(), settings, join_timeout: Duration::from_secs(60) }
    }
}

/// The transport over UCX.
///
/// It may move between threads; its worker is entered by one thread at a time, which `&mut` ensures.
///
/// Dropped, it sends what is queued for at most a second and tells who waits for it that it has left; but not
/// as a copy in a forked child. Then go, in this order: endpoints, worker, context, and last the memory that
/// UCX's callbacks write.
///
/// When the process exits, the transport leaves that a [`Port`](crate::buffer::Port) holds, whatever other
/// threads do with it. Used by itself it must be dropped before: UCX goes with the process, and a thread
/// inside would crash.
pub struct Ucx {
    owner: Owner,
    rank: Rank,
    world_size: u32,
    sends: Sends,
    receives: Receives,
    accesses: Accesses,
    engine: Engine,
    /// After `engine`: UCX may use the memory until it is torn down.
    bounces: Bounces<PACKED_BYTES>,
    liveness: Liveness,
    failure_flag: OwnFailureFlag,
    /// The failure_flags of peers of this host.
    failure_flags: Vec<Option<PeerFailureFlag>>,
    /// Whose memory UCX's puts and gets reach by themselves; other owners are asked.
    is_reached: Vec<bool>,
    /// Whether peers may reach the memory of this rank so.
    is_open: bool,
    /// UCX's descriptor and that of `liveness`.
    epoll: Arc<OwnedFd>,
    /// Whether tearing UCX down ends all access to memory.
    teardown_ends_access: bool,
    closed: Option<Closing>,
    turns: u32,
    /// Turns in which UCX is progressed because something has just moved there.
    busy_turns: u32,
    /// Looks so far.
    round: u32,
    next_check: Duration,
    /// Peers that were found gone while no operation waited for them.
    gone: Vec<Rank>,
    /// Messages to the ranks of this host, if they share memory.
    links: Option<Links>,
    /// The neighbours that operations on links waited for at the last look.
    waited_on_links: Vec<Rank>,
    /// Peers to whom an answer could not be sent, each with the time by which it has gone or is lost.
    unanswered: Vec<(Rank, Duration)>,
    /// Peers that are waited for; scratch of `look`.
    waited: Vec<Rank>,
    may_have_slept: bool,
    /// Whether anything happened since the last [`Transport::arm`].
    has_moved: bool,
    start: Instant,
}

/// Why nothing goes on.
struct Closing {
    /// What operations end with.
    error: Error,
    /// `None` after [`Transport::abandon`].
    cause: Option<Failure>,
    /// What peers were reported.
    reported: Closed,
}

impl Drop for Ucx {
    fn drop(&mut self) {
        // UCX, its threads and all connections are those of the process that has forked this one.
        if !self.owner.is_here() {
            return self.engine.forget();
        }
        let inside = exiting::enter();
        if inside.is_none() {
            self.leave_at_exit(false);
        }
        if std::thread::panicking() {
            self.fail(Failure::PeerLost(self.rank));
        }
        self.flush_links();
        if let Some(Closing { reported, .. }) = &self.closed {
            self.liveness.answer(*reported);
            self.liveness.stop_listening();
            return;
        }
        self.engine.close_endpoints(FLUSH_PATIENCE);
        if let Err(error) = self.failure_flag.write(Closed::Left) {
            later!(WARN, %error, "can't say goodbye");
        }
        self.liveness.answer(Closed::Left);
        self.liveness.stop_listening();
    }
}
