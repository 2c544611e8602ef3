//! Waiting for sockets and for ends of processes: one epoll descriptor, level-triggered.
//!
//! Each packet to a watched socket costs the kernel a callback. So the sockets of a few peers that every turn
//! reads anyway are not watched until this rank prepares to sleep.

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

/// The most events of one `epoll_wait`.
const EVENTS: usize = 64;

/// Sockets are no longer watched after so many turns without preparing to sleep. It takes longer than
/// spinning, so that a rank that sleeps often does not change what is watched each time.
const WAKEFUL_TURNS: u32 = 4096;

/// Event data of a process is the rank and this bit; that of a socket is the rank.
const PROCESS: u64 = 1 << 32;

pub(super) struct Poller {
    /// Readable when anything watched is ready.
    pub(super) epoll: Arc<OwnedFd>,
    /// The watched processes by rank; empty if none was ever watched.
    pub(super) processes: Vec<Option<PeerProcess>>,
    /// Peers whose processes have ended, for [`Tcp::settle_ended`] to take.
    pub(super) ended: Vec<usize>,
    /// Indices of the connections that are not watched, because a turn or a sweep reads them:
    /// [`wait`](Self::wait) never names these.
    pub(super) unwatched: ArrayVec<usize, MANY>,
    /// The turn before which everything was watched.
    watched_at: u32,
}

/// Connections that are ready, by the index of their peer.
pub(super) type Ready = ArrayVec<usize, EVENTS>;

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|error| Error::system("can't create epoll", error))?;
        let (processes, ended, unwatched) = Default::default();
        Ok(Self { epoll: Arc::new(epoll), processes, ended, unwatched, watched_at: 0 })
    }

    pub(super) fn add(&self, index: usize, connection: &mut Connection) -> Result<()> {
        let Some(wire) = connection.wire.as_mut() else { return Ok(()) };
        wire.interest = EventFlags::IN;
        epoll::add(&self.epoll, &*wire, EventData::new_u64(index as u64), wire.interest)
            .map_err(|error| Error::system("can't watch a socket", error))
    }

    /// Watches the wake receiver of this rank, whose events name no connection.
    pub(super) fn add_wake_receiver(&self, receiver: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.epoll, receiver, EventData::new_u64(u64::MAX), EventFlags::IN)
            .map_err(|error| Error::system("can't watch the wake receiver of this rank", error))
    }

    /// Records the end of a process and stops watching it, as it stays readable.
    fn note_end(&mut self, index: usize) {
        if let Some(process) = self.processes.get_mut(index).and_then(Option::take) {
            // A close alone is not enough where a forked child holds the descriptor as well.
            let _ = epoll::delete(&self.epoll, &process);
            self.ended.push(index);
        }
    }

    /// Watches the socket of a connection for what it needs now.
    pub(super) fn update(&self, index: usize, connection: &mut Connection) {
        let wanted = if connection.has_unsent() { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let Some(wire) = connection.wire.as_mut() else { return };
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
            // Sleeps that depend on it last some milliseconds at most.
            Err(error) => later!(ERROR, %error, index, "can't watch a socket"),
        }
    }

    /// Stops watching the socket of a connection that is about to be closed.
    pub(super) fn remove(&self, connection: &Connection) {
        if let Some(wire) = connection.wire.as_ref() {
            // Fails only for a socket that is not watched.
            let _ = epoll::delete(&self.epoll, wire);
        }
    }

    /// Stops watching the socket of a connection that every turn reads, if the list of those has room.
    fn unwatch(&mut self, index: usize, connection: &mut Connection) {
        if let Some(wire) = connection.wire.as_mut()
            && !wire.interest.is_empty()
            && !self.unwatched.is_full()
            && epoll::delete(&self.epoll, &*wire).is_ok()
        {
            wire.interest = EventFlags::empty();
            self.unwatched.push(index);
        }
    }

    /// Waits at most `patience` for ready connections. Records processes that have ended in
    /// [`ended`](Self::ended).
    pub(super) fn wait(&mut self, patience: Duration) -> Ready {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let count = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => {
                later!(ERROR, %error, "epoll failed");
                0
            }
        };
        let mut ready = Ready::new();
        for event in &events[..count] {
            match event.data.u64() {
                data if (PROCESS..2 * PROCESS).contains(&data) => self.note_end((data - PROCESS) as usize),
                data => ready.push(data as usize),
            }
        }
        ready
    }
}

impl Tcp {
    /// Also watches the processes of peers, given by rank.
    pub(crate) fn watch_processes(&mut self, mut processes: Vec<Option<PeerProcess>>) {
        for (index, place) in processes.iter_mut().enumerate() {
            let data = EventData::new_u64(PROCESS + index as u64);
            if let Some(process) = place
                && let Err(error) = epoll::add(&self.poller.epoll, &*process, data, EventFlags::IN)
            {
                tracing::debug!(%error, index, "can't watch the process of a peer");
                *place = None;
            }
        }
        if processes.iter().any(Option::is_some) {
            self.poller.processes = processes;
        }
    }

    /// Watches every connection for what it needs now.
    pub(super) fn watch_all(&mut self) {
        self.poller.unwatched.clear();
        self.poller.watched_at = self.turns;
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                self.poller.update(index, connection);
            }
        }
    }

    /// Stops watching connections that every turn reads, once this rank has not prepared to sleep for a
    /// while. From time to time, watches those again that no turn reads any more.
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
        for index in poller.unwatched.clone() {
            let connection = connections.get_mut(index).and_then(Option::as_mut);
            if let Some(connection) = connection.filter(|connection| !connection.is_listed) {
                poller.update(index, connection);
                poller.unwatched.retain(|unwatched| *unwatched != index);
            }
        }
    }
}
