//! Polls several descriptors, or joins them into one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Error, Result};

/// One descriptor that is readable while any of several is. Closed ones drop out by themselves.
pub struct Pollable(OwnedFd);

impl Pollable {
    /// Joins `descriptors`.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor left.
    pub fn new(descriptors: &[BorrowedFd<'_>]) -> Result<Self> {
        let refused = |error| Error::system("can't make a descriptor of several", error);
        let all = epoll::create(CreateFlags::CLOEXEC).map_err(refused)?;
        for (number, descriptor) in (0..).zip(descriptors) {
            epoll::add(&all, descriptor, EventData::new_u64(number), EventFlags::IN).map_err(refused)?;
        }
        Ok(Self(all))
    }

    /// Sleeps until this or the other one is readable, at most `longest`. Returns whether this is. A signal
    /// ends it early.
    #[must_use]
    pub fn wait(&self, other: BorrowedFd<'_>, longest: Duration) -> bool {
        let awaited = |descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
        let mut both = [awaited(self.0.as_fd()), awaited(other)];
        poll(&mut both, Some(&timespec(longest))).is_ok() && !both[0].revents().is_empty()
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

impl AsFd for Pollable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of them is readable, at most `longest` (`None`: forever). A signal ends it early.
pub fn wait_for(descriptor: BorrowedFd<'_>, other: Option<BorrowedFd<'_>>, longest: Option<Duration>) {
    let timeout = longest.map(timespec);
    let awaited = |descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
    // After a signal the caller checks again, as after every sleep.
    let _ = match other {
        Some(other) => poll(&mut [awaited(descriptor), awaited(other)], timeout.as_ref()),
        None => poll(&mut [awaited(descriptor)], timeout.as_ref()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::WakeReceiver;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn one_of_several_is_enough() {
        let (first, second, other) =
            (WakeReceiver::new().unwrap(), WakeReceiver::new().unwrap(), WakeReceiver::new().unwrap());
        let both = Pollable::new(&[first.as_fd(), second.as_fd()]).unwrap();
        let start = Instant::now();
        for wake_receiver in [&first, &second, &other] {
            wait_for(both.as_fd(), Some(other.as_fd()), Some(Duration::from_millis(1)));
            wake_receiver.ring();
            wait_for(both.as_fd(), Some(other.as_fd()), Some(LONG));
            assert!(wake_receiver.hear());
        }
        drop(first);
        second.ring();
        wait_for(both.as_fd(), None, None);
        assert!(start.elapsed() < LONG);
    }
}
