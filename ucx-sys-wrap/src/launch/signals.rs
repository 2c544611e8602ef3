//! Signals of the launcher, which it passes on to its job.
//!
//! A signal that this process ignores is not caught. The ranks inherit that and ignore it too.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::signal_name;

use crate::{Error, Result};

/// What a signal means to the job. Of signals that arrive together, lower ones are handled first, so that a
/// job that is told to stop and to continue, or to end, does not stay stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Meaning {
    /// It stops until it is told to continue.
    Stop,
    /// It is for the ranks only.
    Message,
    GoOn,
    /// It ends.
    End,
}

/// The signals to catch. Not among them: faults of the receiving process (`SIGSEGV` and the like, `SIGPIPE`,
/// `SIGXFSZ`), `SIGURG`, those about the launcher's own children and terminal (`SIGCHLD`, `SIGTTIN`,
/// `SIGTTOU`), and those that can't be caught.
const NAMED: [[Signal; 4]; 4] = [
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT],
    [Signal::ABORT, Signal::TSTP, Signal::CONT, Signal::USR1],
    [Signal::USR2, Signal::WINCH, Signal::ALARM, Signal::VTALARM],
    [Signal::PROF, Signal::IO, Signal::POWER, Signal::XCPU],
];

/// The real-time signals that the C library leaves to programs.
const REAL_TIME: std::ops::RangeInclusive<i32> = if cfg!(target_env = "musl") { 35..=64 } else { 34..=64 };
pub(super) fn meaning(number: i32) -> Meaning {
    match Signal::from_named_raw(number) {
        Some(Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT | Signal::ABORT) => Meaning::End,
        Some(Signal::TSTP) => Meaning::Stop,
        Some(Signal::CONT) => Meaning::GoOn,
        _ => Meaning::Message,
    }
}

/// Catches the signals for a job until it is dropped. Then they have their default effect again, except that
/// signals whose default `signal_hook` does not know do nothing.
pub(super) struct Relay {
    arrivals: SignalDelivery<UnixStream, SignalOnly>,
    /// Last: dropped when no signal is caught any more.
    _busy: Busy,
}

impl Relay {
    pub(super) fn new() -> Result<Self> {
        let failed = |error| Error::system("can't listen for signals", error);
        let (busy, numbers) = Busy::new().map_err(failed)?;
        let (reader, writer) = UnixStream::pair().map_err(failed)?;
        let arrivals = SignalDelivery::with_pipe(reader, writer, SignalOnly, numbers).map_err(failed)?;
        Ok(Self { arrivals, _busy: busy })
    }

    /// Becomes readable when a signal arrives.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.arrivals.get_read().as_fd()
    }

    /// The signals since the last call, each once, in the order in which they must be handled.
    pub(super) fn take(&mut self) -> Vec<i32> {
        let mut numbers: Vec<i32> = self.arrivals.pending().collect();
        numbers.sort_by_key(|&number| meaning(number));
        numbers
    }
}

/// Counts the relays of this process. Signal handlers stay installed; with no relay left, they act by
/// default.
struct Busy;

static RELAYS: Mutex<Relays> = Mutex::new(Relays { count: 0, ours: 0 });

/// Whether the signals have their default effect.
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

struct Relays {
    count: usize,
    /// The signals that a relay has caught, as a bit set.
    ours: u64,
}

impl Busy {
    /// Also returns the signals to catch.
    fn new() -> std::io::Result<(Self, Vec<i32>)> {
        let mut relays = RELAYS.lock();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = mask(&status, "SigIgn:");
        // The program catches these for its own use, so they are not for the ranks.
        let taken = mask(&status, "SigCgt:") & !relays.ours;
        let named = NAMED.as_flattened().iter().map(|signal| signal.as_raw());
        let is_ours = |&number: &i32| {
            ignored & bit(number) == 0 && (taken & bit(number) == 0 || meaning(number) == Meaning::End)
        };
        let numbers: Vec<i32> = named.chain(REAL_TIME).filter(is_ours).collect();
        IDLE.store(false, Ordering::SeqCst);
        for &number in numbers.iter().filter(|&&number| (relays.ours | taken) & bit(number) == 0) {
            if signal_name(number).is_some() {
                signal_hook::flag::register_conditional_default(number, IDLE.clone())?;
            }
        }
        relays.ours |= numbers.iter().fold(0, |ours, &number| ours | bit(number));
        relays.count += 1;
        Ok((Self, numbers))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut relays = RELAYS.lock();
        relays.count -= 1;
        IDLE.store(relays.count == 0, Ordering::SeqCst);
    }
}

fn bit(number: i32) -> u64 {
    1 << (number - 1)
}

/// A signal set of a process's `status`; empty if missing.
fn mask(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_signals_are_read() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t8000000000000000\n";
        assert_eq!(mask(status, "SigIgn:"), bit(1) | bit(13));
        assert_eq!(mask(status, "SigCgt:"), bit(64));
        assert_eq!(mask("", "SigIgn:"), 0);
    }

    #[test]
    fn what_ends_a_stop_is_obeyed_after_it() {
        let number = |signal: Signal| signal.as_raw();
        let mut numbers = [Signal::INT, Signal::CONT, Signal::USR1, Signal::TSTP].map(number);
        numbers.sort_by_key(|&number| meaning(number));
        assert_eq!(numbers, [Signal::TSTP, Signal::USR1, Signal::CONT, Signal::INT].map(number));
        assert_eq!(meaning(40), Meaning::Message);
    }
}
