//! The bytes to and from one peer: a stream each way, over one socket or several, encrypted or not.
//!
//! What is above sees one stream. Where there are several lanes, `stripes.rs` says which bytes go over which;
//! where a lane is encrypted, `cipher.rs` says how. Bytes are counted as the stream has them, without what
//! either adds.

mod cipher;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod lane;
mod socket;
mod stripes;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;

pub use lane::Lane;
use stripes::Stripes;

use crate::Statistics;

/// The most lanes between two ranks.
pub const MAX_LANES: usize = 16;

/// How much of what nobody wants is read in one turn, in bytes.
const THROWN_AWAY: usize = 4 << 20;

/// A stream each way between this rank and a peer.
pub(super) struct Wire(Course);

enum Course {
    One(Lane),
    Several(Box<Stripes>),
}

impl Wire {
    /// Takes lanes whose sockets are non-blocking, in the order in which both ends have numbered them; `None`
    /// when there is none.
    pub(super) fn new(lanes: Vec<Lane>) -> Option<Self> {
        match <[Lane; 1]>::try_from(lanes) {
            Ok([lane]) => Some(Self(Course::One(lane))),
            Err(lanes) if lanes.is_empty() => None,
            Err(lanes) => Some(Self(Course::Several(Box::new(Stripes::new(lanes))))),
        }
    }

    /// Reads into places, one after another; gives the bytes got, fewer than asked for only when there is
    /// nothing more for now, and none at the end.
    #[inline]
    pub(super) fn read(
        &mut self,
        places: &mut [IoSliceMut<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        match &mut self.0 {
            Course::One(lane) => lane.read(places, statistics),
            Course::Several(stripes) => stripes.read(places, statistics),
        }
    }

    /// Writes slices, one after another; gives how many bytes need not be written again.
    #[inline]
    pub(super) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        match &mut self.0 {
            Course::One(lane) => lane.write(slices, statistics),
            Course::Several(stripes) => stripes.write(slices, statistics),
        }
    }

    /// Whether the next byte to write is taken already, though it does not count as written: it must come
    /// again, and something must be written until it counts.
    #[inline]
    pub(super) fn holds_a_byte(&self) -> bool {
        self.lanes().iter().any(Lane::holds_a_byte)
    }

    /// Whether something can be read of which the kernel knows nothing any more.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        match &self.0 {
            Course::One(lane) => lane.has_unread(),
            Course::Several(stripes) => stripes.has_unread(),
        }
    }

    /// What the peer has sent that ends the stream, if it has.
    pub(super) fn violation(&self) -> Option<&'static str> {
        if self.lanes().iter().any(Lane::is_forged) {
            return Some(
                "bytes that do not decrypt, so that they were changed, repeated or left out on their way",
            );
        }
        matches!(&self.0, Course::Several(stripes) if stripes.is_malformed())
            .then_some("what is no header of a stretch of bytes")
    }

    /// The lanes, to watch.
    pub(super) fn lanes_mut(&mut self) -> &mut [Lane] {
        match &mut self.0 {
            Course::One(lane) => std::slice::from_mut(lane),
            Course::Several(stripes) => stripes.lanes_mut(),
        }
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        match &self.0 {
            Course::One(lane) => std::slice::from_ref(lane),
            Course::Several(stripes) => stripes.lanes(),
        }
    }

    /// What the poller should watch a lane for: on all of them for what comes, as the end of each is the end
    /// of all; for room where the next bytes go.
    pub(super) fn interest(&self, lane: usize, has_unsent: bool) -> EventFlags {
        let writing = match &self.0 {
            Course::One(_) => 0,
            Course::Several(stripes) => stripes.writing_lane(),
        };
        if has_unsent && lane == writing { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
    }

    /// Says to the peer that nothing more comes.
    pub(super) fn finish_sending(&self) {
        for lane in self.lanes() {
            // A connection that is gone already needs no shutting down.
            let _ = lane.socket().shutdown(Shutdown::Write);
        }
    }

    /// Reads what there is, about 4 MiB a lane at most, and forgets it; says whether more can come. Nothing
    /// can be read properly after this.
    pub(super) fn throw_away(&mut self, statistics: &mut Statistics) -> bool {
        let mut space = [0; 16 << 10];
        self.lanes().iter().all(|lane| {
            let mut rest = THROWN_AWAY;
            while rest > 0 {
                match recv(lane, &mut space[..], RecvFlags::empty()) {
                    Ok((0, _)) => return false,
                    Ok((got, _)) => {
                        statistics.bytes_received += got as u64;
                        rest = rest.saturating_sub(got);
                    }
                    Err(Errno::AGAIN) => return true,
                    Err(Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
            true
        })
    }

    /// Whether the kernel has something left that it has not sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.lanes().iter().any(|lane| {
            // A socket counts as writable only when nothing is left that the kernel has not sent. Where it
            // can't be told so, it counts as always.
            let _ = SockRef::from(lane.socket()).set_tcp_notsent_lowat(1);
            let mut poll_for = [PollFd::new(lane, PollFlags::OUT)];
            matches!(poll(&mut poll_for, Some(&Timespec::default())), Ok(0))
        })
    }
}
