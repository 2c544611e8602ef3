//! Which sockets have something, and which processes have ended: one epoll descriptor over all of them,
//! level-triggered.
//!
//! A watched socket costs the kernel a call back for each packet, 100 ns on the way of every message. So the
//! sockets of a few peers that are read in every turn anyway are not watched, until somebody prepares to
//! sleep.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::connection::Connection;
use super::{MANY, Tcp};
use crate::process::PeerProcess;
use crate::told::later;
use crate::{Error, Result};

/// Events that are taken from the kernel at once.
const EVENTS: usize = 64;

/// Turns without a preparation for sleep after which sockets are not watched any more: longer than it takes
/// to spin, so that who sleeps often does not change what is watched each time.
const WAKEFUL_TURNS: u32 = 4096;

/// What names the processes of peers among what is watched: their rank and this.
const PROCESS: u64 = 1 << 32;

pub(super) struct Poller {
    epoll: Arc<OwnedFd>,
    /// The processes of peers, by rank, that are watched; empty if none ever was.
    processes: Vec<Option<PeerProcess>>,
    /// The peers whose processes have been found to have ended, until somebody takes note.
    pub(super) ended: Vec<usize>,
    /// Indices of the connections that are not watched, because a turn or a sweep reads them.
    unwatched: ArrayVec<usize, MANY>,
    /// The turn before which everything was watched.
    watched_at: u32,
}

/// Connections that have something, by the index of their peer.
pub(super) type Ready = ArrayVec<usize, EVENTS>;

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|error| Error::system("can't create epoll", error))?;
        let (processes, ended) = Default::default();
        Ok(Self { epoll: Arc::new(epoll), processes, ended, unwatched: ArrayVec::new(), watched_at: 0 })
    }

    /// The descriptor, readable when a socket has something.
    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Begins to watch the socket of a connection.
    pub(super) fn add(&self, index: usize, connection: &mut Connection) -> Result<()> {
        let Some(wire) = connection.wire_mut() else { return Ok(()) };
        wire.interest = EventFlags::IN;
        epoll::add(&self.epoll, &*wire, EventData::new_u64(index as u64), wire.interest)
            .map_err(|error| Error::system("can't watch a socket", error))
    }

    /// Begins to watch what neighbours ring to wake this rank. It is named by no connection's index.
    pub(super) fn add_bell(&self, bell: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.epoll, bell, EventData::new_u64(u64::MAX), EventFlags::IN)
            .map_err(|error| Error::system("can't watch the bell of this rank", error))
    }

    /// Begins to watch the processes of peers, by rank.
    pub(super) fn add_processes(&mut self, mut processes: Vec<Option<PeerProcess>>) {
        for (index, place) in processes.iter_mut().enumerate() {
            let data = EventData::new_u64(PROCESS + index as u64);
            if let Some(process) = place
                && let Err(error) = epoll::add(&self.epoll, &*process, data, EventFlags::IN)
            {
                tracing::debug!(%error, index, "can't watch the process of a peer");
                *place = None;
            }
        }
        if processes.iter().any(Option::is_some) {
            self.processes = processes;
        }
    }

    /// Whether it watches any process.
    #[inline]
    pub(super) fn has_processes(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Takes note of the end of a process, which is readable for ever.
    fn note_end(&mut self, index: usize) {
        if let Some(process) = self.processes.get_mut(index).and_then(Option::take) {
            // Closing it is not enough where a child holds it as well.
            let _ = epoll::delete(&self.epoll, &process);
            self.ended.push(index);
        }
    }

    /// Watches the socket of a connection for what it waits for now.
    pub(super) fn update(&self, index: usize, connection: &mut Connection) {
        let wanted = if connection.has_unsent() { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let Some(wire) = connection.wire_mut() else { return };
        if wanted == wire.interest {
            return;
        }
        let data = EventData::new_u64(index as u64);
        let done = if wire.interest.is_empty() {
            epoll::add(&self.epoll, &*wire, data, wanted)
        } else {
            epoll::modify(&self.epoll, &*wire, data, wanted)
        };
        match done {
            Ok(()) => wire.interest = wanted,
            // Nobody sleeps longer than some milliseconds on it.
            Err(error) => later!(ERROR, %error, index, "can't watch a socket"),
        }
    }

    /// Stops watching the socket of a connection that is about to be closed.
    pub(super) fn remove(&self, connection: &Connection) {
        if let Some(wire) = connection.wire() {
            // Fails only for a socket that is not watched.
            let _ = epoll::delete(&self.epoll, wire);
        }
    }

    /// Stops watching the socket of a connection that every turn reads anyway, if the list of those has room.
    fn unwatch(&mut self, index: usize, connection: &mut Connection) {
        if let Some(wire) = connection.wire_mut()
            && !wire.interest.is_empty()
            && !self.unwatched.is_full()
            && epoll::delete(&self.epoll, &*wire).is_ok()
        {
            wire.interest = EventFlags::empty();
            self.unwatched.push(index);
        }
    }

    /// Whether [`wait`](Self::wait) does not name this connection, whatever it has.
    #[inline]
    pub(super) fn is_unwatched(&self, index: usize) -> bool {
        self.unwatched.contains(&index)
    }

    /// The connections that [`wait`](Self::wait) does not name, whatever they have.
    pub(super) fn unwatched(&self) -> ArrayVec<usize, MANY> {
        self.unwatched.clone()
    }

    /// Waits at most `patience` for something; at zero, only looks. Processes that have ended go to
    /// [`ended`](Self::ended).
    pub(super) fn wait(&mut self, patience: Duration) -> Ready {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => {
                let mut ready = Ready::new();
                for event in &events[..count] {
                    match event.data.u64() {
                        number if (PROCESS..2 * PROCESS).contains(&number) => {
                            self.note_end((number - PROCESS) as usize)
                        }
                        number => ready.push(number as usize),
                    }
                }
                ready
            }
            Err(Errno::INTR) => Ready::new(),
            Err(error) => {
                later!(ERROR, %error, "epoll failed");
                Ready::new()
            }
        }
    }
}

impl Tcp {
    /// Watches every connection for what it waits for now.
    pub(super) fn watch_all(&mut self) {
        self.poller.unwatched.clear();
        self.poller.watched_at = self.turns;
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                self.poller.update(index, connection);
            }
        }
    }

    /// Stops watching connections that every turn reads, once nobody has prepared to sleep for a while. From
    /// time to time, watches those again that no turn reads any more.
    pub(super) fn unwatch_awaited(&mut self) {
        if self.turns.wrapping_sub(self.poller.watched_at) < WAKEFUL_TURNS {
            return;
        }
        if self.turns.is_multiple_of(WAKEFUL_TURNS) {
            self.watch_unlisted();
        }
        for &index in &self.awaited {
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                self.poller.unwatch(index, connection);
            }
        }
    }

    fn watch_unlisted(&mut self) {
        let Self { poller, connections, .. } = self;
        for index in poller.unwatched() {
            let connection = connections.get_mut(index).and_then(Option::as_mut);
            if let Some(connection) = connection.filter(|connection| !connection.is_listed) {
                poller.update(index, connection);
                poller.unwatched.retain(|unwatched| *unwatched != index);
            }
        }
    }
}
