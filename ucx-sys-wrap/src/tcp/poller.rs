//! Which sockets have something: one epoll descriptor over all of them, level-triggered.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::connection::Connection;
use super::wire::Wire;
use crate::{Error, Result};

/// Events that are taken from the kernel at once.
const EVENTS: usize = 64;

pub(super) struct Poller {
    epoll: Arc<OwnedFd>,
}

/// Connections that have something, by the index of their peer.
pub(super) type Ready = arrayvec::ArrayVec<usize, EVENTS>;

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| Error::system("can't create epoll", error))?;
        Ok(Self { epoll: Arc::new(epoll) })
    }

    /// The descriptor, readable when a socket has something.
    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Begins to watch the sockets of a connection.
    pub(super) fn add(&self, index: usize, connection: &mut Connection) -> Result<()> {
        for lane in connection.wire_mut().map_or(&mut [][..], Wire::lanes_mut) {
            lane.interest = EventFlags::IN;
            epoll::add(&self.epoll, &*lane, EventData::new_u64(index as u64), lane.interest)
                .map_err(|error| Error::system("can't watch a socket", error))?;
        }
        Ok(())
    }

    /// Begins to watch what neighbours ring to wake this rank. It is named by no connection's index.
    pub(super) fn add_bell(&self, bell: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.epoll, bell, EventData::new_u64(u64::MAX), EventFlags::IN)
            .map_err(|error| Error::system("can't watch the bell of this rank", error))
    }

    /// Watches the sockets of a connection for what it waits for now.
    pub(super) fn update(&self, index: usize, connection: &mut Connection) {
        let has_unsent = connection.has_unsent();
        let Some(wire) = connection.wire_mut() else { return };
        for number in 0..wire.lanes().len() {
            let wanted = wire.interest(number, has_unsent);
            let lane = &mut wire.lanes_mut()[number];
            // Fails only for a socket that is not watched, and all open ones are.
            if wanted != lane.interest
                && epoll::modify(&self.epoll, &*lane, EventData::new_u64(index as u64), wanted).is_ok()
            {
                lane.interest = wanted;
            }
        }
    }

    /// Stops watching the sockets of a connection that is about to be closed.
    pub(super) fn remove(&self, connection: &Connection) {
        for lane in connection.wire().map_or(&[][..], Wire::lanes) {
            // Fails only for a socket that is not watched.
            let _ = epoll::delete(&self.epoll, lane);
        }
    }

    /// Waits at most `patience` for something; at zero, only looks.
    pub(super) fn wait(&self, patience: Duration) -> Ready {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => events[..count].iter().map(|event| event.data.u64() as usize).collect(),
            Err(Errno::INTR) => Ready::new(),
            Err(error) => {
                tracing::error!(%error, "epoll failed");
                Ready::new()
            }
        }
    }
}
