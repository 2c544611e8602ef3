//! Ranks that are processes (or threads), over UCX.
//!
//! UCX is loaded at run time, when this transport is first asked for ([`available`], [`Ucx::connect`]). Every
//! rank has one worker and an endpoint to each peer, made from the worker addresses that all ranks exchange.
//!
//! **Messages** are UCX's active messages: a header of ours (`header.rs`) and a payload. Payloads up to
//! [`MAX_EAGER_BYTES`] are eager: the receiver copies them once, straight to their place, where UCX's own
//! tagged messages would cost a second copy. Longer ones, and those that exceed the receiver's credit
//! ([`CREDIT_BYTES`]), go by rendezvous: UCX fetches them straight to their place once their receive is
//! posted. So the memory for unexpected messages is bounded, and no tag blocks another. Several parts are
//! packed up to [`PACKED_BYTES`] together; above that, large parts are fragments, active messages of their
//! own. `inbox.rs` matches messages and receives.
//!
//! **Ranks of one host** that share memory send messages through it (`link`), which is faster than UCX. UCX
//! carries messages between hosts, and puts and gets.
//!
//! **Failure.** A rank that waits long for a peer, or goes to sleep, watches it over a control connection
//! (`liveness.rs`), because UCX may not report a dead peer. Over the same connections ranks tell each other
//! which contexts they have closed. Once a peer is lost, its endpoint is used no more, and its operations end
//! with the error; those with other peers go on:
//!
//! - Where only sockets join two ranks, the endpoint has UCX's error handling `PEER`: closing it by force
//!   ends its operations.
//! - Where UCX's shared memory may join them, it has `NONE`, because shared memory has nothing else. UCX
//!   ends a fetch from a dead process with an error. It does not end a send, but nobody reads its memory any
//!   more: rendezvous is by `get_zcopy` there (`tuning.rs`), that is, the receiver reads, and the slots of a
//!   receiver that is gone, which are full, never have room again. So this takes it back.
//! - What UCX has not ended 100 ms later, or can't end because the peer is lost but alive, or over RDMA, is
//!   the limit of this wire: UCX is torn down, the peers are told, and the transport has ended as a whole.
//!
//! After a tear-down nothing touches memory: a receiver that has fetched from a sender's memory checks that
//! the sender had not taken it back (`failure_flag.rs`).
//!
//! **Canceling.** A receive whose message has not come ends at once; one whose parts are on the way ends when
//! they have come. A canceled rendezvous send asks its receiver, over the control connection, to discard the
//! message; otherwise it ends when the peer receives, or when the transport is abandoned. A context that is
//! closed ends its operations in the same way: all members close it, so a peer that makes progress answers.
//!
//! UCX's connections and the control connections are not encrypted; the latter ask for a token that only the
//! job's ranks know. UCX is as trusted as its network.
#![allow(unsafe_code)]

mod closing;
#[cfg(test)]
mod closing_tests;
mod connecting;
mod control;
mod devices;
mod ending;
mod endpoint_info;
mod engine;
#[cfg(test)]
mod epoch_tests;
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
mod local_peers;
mod mapping;
mod match_queues;
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
mod telling;
mod tuning;
mod ucp_request;
mod watching;
#[cfg(test)]
mod watching_tests;
#[cfg(test)]
mod worlds;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use connecting::Prepared;
pub use devices::rdma_devices;
pub use endpoint_info::WIRE_VERSION;
pub use flow::CREDIT_BYTES;
pub use library::{Report, available};

use crate::bootstrap::Ports;
use crate::link::Links;
use crate::told::later;
use crate::transport::News;
use crate::{Error, Owner, Rank, Result};
use engine::Engine;
use failure_flag::{Closed, OwnFailureFlag, PeerFailureFlag};
use liveness::Liveness;
use remote::Accesses;
use sending::Sends;

/// The most payload of a message of several parts that is packed into one UCX message, in bytes.
pub const PACKED_BYTES: usize = 4096;

/// The longest payload that is sent eagerly, in bytes.
pub const MAX_EAGER_BYTES: usize = 32 << 10;

const NO_BYTES: (*const u8, usize) = (NonNull::dangling().as_ptr(), 0);

/// The clock is read every so many turns.
const TURNS_PER_CLOCK: u32 = 64;

/// How often peers of pending operations are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long a peer may take to give back the memory of a closed context: it does so when it turns its
/// transport, so it may compute for so long. After a deadline it has had time; then it may stand still.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(10);
const GIVEN_BACK_AFTER_DEADLINE: Duration = Duration::from_millis(250);

/// The same for each byte, which may be under way.
const GIVEN_BACK_PER_BYTE: Duration = Duration::from_nanos(20);

/// How long a transport that is dropped goes on sending what is queued.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// How ranks reach each other before they are connected; a closure that exchanges is one.
pub trait Meeting {
    /// Hands this rank's bytes to all ranks and returns those of all, in rank order; blocks until all have
    /// called.
    ///
    /// # Errors
    /// When that fails.
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Checks that all ranks are still there; called now and then while they connect. Does not block.
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

/// The options of a world.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface of this rank's control listener; loopback unless set.
    pub interface: IpAddr,
    /// The ports that the control listener may have; the system's choice unless set.
    pub ports: Ports,
    /// UCX settings, such as `("TLS", "tcp,self")`: names without `UCX_`. They override the environment. UCX
    /// ignores unknown names.
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
/// It may move between threads; `&mut` ensures that one thread at a time enters its worker.
///
/// Dropping it sends what is queued, for at most a second, and tells its watchers that it has left; a copy in
/// a forked child does neither. Then it frees endpoints, worker, context, and last the memory that UCX's
/// callbacks write.
///
/// At process exit, transports that a [`Port`](crate::buffer::Port) holds leave by themselves, whatever other
/// threads do with them. Drop any other before: UCX goes with the process, and a thread inside would crash.
pub struct Ucx {
    owner: Owner,
    rank: Rank,
    world_size: u32,
    sends: Sends,
    accesses: Accesses,
    engine: Engine,
    liveness: Liveness,
    failure_flag: OwnFailureFlag,
    /// The failure flags of peers on this host.
    failure_flags: Vec<Option<PeerFailureFlag>>,
    /// The owners whose memory UCX's puts and gets reach directly; others are asked by message.
    is_reached: Vec<bool>,
    /// Whether peers may reach the memory of this rank directly.
    is_open: bool,
    /// Holds UCX's descriptor and that of `liveness`.
    epoll: Arc<OwnedFd>,
    /// Whether tearing UCX down ends all access to memory.
    teardown_ends_access: bool,
    closed: Option<Closing>,
    /// The peers that are lost, each with the error of its operations.
    lost: Vec<(Rank, Error)>,
    /// Lost peers whose operations UCX has not ended, each with the time by which it must have.
    cut_off: Vec<(Rank, Duration)>,
    /// Peers that hold memory of a closed context, each with the time until when it is to be given back.
    reclaiming: Vec<(Rank, u16, Duration)>,
    /// Whether it is closed, or a peer is lost.
    is_troubled: bool,
    news: VecDeque<News>,
    turns: u32,
    /// Turns left in which UCX is progressed because it has just moved something.
    busy_turns: u32,
    /// Checks of peers so far.
    round: u32,
    next_check: Duration,
    /// Peers that were found gone while no operation waited for them.
    gone: Vec<Rank>,
    /// Peers that are gone and whose messages were taken, while the event is put back.
    drained: Vec<Rank>,
    /// The links to ranks of this host, if they share memory.
    links: Option<Links>,
    /// The local peers that operations on links waited for at the last check.
    waited_on_links: Vec<Rank>,
    /// Peers to whom an answer could not be sent, each with the time by which it has gone or is lost.
    unanswered: Vec<(Rank, Duration)>,
    /// Scratch of `check_peers`: the peers that operations wait for.
    waited: Vec<Rank>,
    may_have_slept: bool,
    /// Whether the next turn looks at all peers, because this rank waits for a message of any peer.
    is_listening: bool,
    /// Whether anything happened since the last [`Transport::arm`].
    has_moved: bool,
    start: Instant,
}

struct Closing {
    /// The error of all operations.
    error: Error,
    /// What peers were told.
    reported: Closed,
}

impl Drop for Ucx {
    fn drop(&mut self) {
        // UCX, its threads and all connections belong to the parent process.
        if !self.owner.is_here() {
            return self.engine.forget();
        }
        let inside = exiting::enter();
        if inside.is_none() {
            self.leave_at_exit(false);
        }
        self.flush_links();
        self.liveness.flush();
        if let Some(Closing { reported, .. }) = &self.closed {
            self.liveness.answer(*reported);
            self.liveness.stop_listening();
            return;
        }
        self.engine.close_endpoints(FLUSH_PATIENCE);
        // Peers take memory back once they are told, and UCX must not take anything from it after that.
        self.tear_down();
        if let Err(error) = self.failure_flag.write(Closed::Left) {
            later!(WARN, %error, "can't say goodbye");
        }
        self.liveness.answer(Closed::Left);
        self.liveness.stop_listening();
    }
}
