//! The signals that a job gets through its launcher.
//!
//! A signal that this process ignores is never caught, so that the ranks, which inherit that, ignore it too.

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

/// What a signal means to the job. Of signals that have come together, a lower one is obeyed first: a job
/// that is told to stop and to go on, or to end, must not stay stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Meaning {
    /// It stops until it is told to go on.
    Stop,
    /// Only its ranks know.
    Message,
    GoOn,
    /// It is to end.
    End,
}

/// Not here: those that tell of a fault of the process that gets them (`SIGSEGV` and its like, `SIGPIPE`,
/// `SIGXFSZ`), that nobody sends (`SIGURG`), that tell of the launcher's own children (`SIGCHLD`) and own use
/// of the terminal (`SIGTTIN`, `SIGTTOU`: caught, the use would be tried again at once), and that can't be
/// caught.
const NAMED: [(Signal, Meaning); 16] = [
    (Signal::INT, Meaning::End),
    (Signal::TERM, Meaning::End),
    (Signal::HUP, Meaning::End),
    (Signal::QUIT, Meaning::End),
    (Signal::ABORT, Meaning::End),
    (Signal::TSTP, Meaning::Stop),
    (Signal::CONT, Meaning::GoOn),
    (Signal::USR1, Meaning::Message),
    (Signal::USR2, Meaning::Message),
    (Signal::WINCH, Meaning::Message),
    (Signal::ALARM, Meaning::Message),
    (Signal::VTALARM, Meaning::Message),
    (Signal::PROF, Meaning::Message),
    (Signal::IO, Meaning::Message),
    (Signal::POWER, Meaning::Message),
    (Signal::XCPU, Meaning::Message),
];

/// The real-time signals that the C library leaves to programs.
const REAL_TIME: std::ops::RangeInclusive<i32> = if cfg!(target_env = "musl") { 35..=64 } else { 34..=64 };

/// What a caught signal means.
pub(super) fn meaning(number: i32) -> Meaning {
    let named = NAMED.iter().find(|(signal, _)| signal.as_raw() == number);
    named.map_or(Meaning::Message, |&(_, meaning)| meaning)
}

/// Catches the signals that are meant for a job until it is dropped; then they do again what they do by
/// default, but for those whose default `signal_hook` does not know: these do nothing.
pub(super) struct Relay {
    arrivals: SignalDelivery<UnixStream, SignalOnly>,
    /// Last: dropped when nothing is caught any more.
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

    /// What becomes readable when a signal comes.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.arrivals.get_read().as_fd()
    }

    /// The signals that have come since the last call, in the order in which they are to be obeyed; each
    /// once, however often it came.
    pub(super) fn take(&mut self) -> Vec<i32> {
        let mut numbers: Vec<i32> = self.arrivals.pending().collect();
        numbers.sort_by_key(|&number| meaning(number));
        numbers
    }
}

/// Counts relays. What a signal does belongs to the whole process, and so does this count: a signal that was
/// caught once would else be ignored when nobody waits for it any more.
struct Busy;

static RELAYS: Mutex<Relays> = Mutex::new(Relays { count: 0, ours: 0 });

/// Whether the signals do what they do by default.
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

struct Relays {
    count: usize,
    /// The signals that a relay has caught, a bit each.
    ours: u64,
}

impl Busy {
    /// Gives the signals to catch as well.
    fn new() -> std::io::Result<(Self, Vec<i32>)> {
        let mut relays = RELAYS.lock();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = mask(&status, "SigIgn:");
        // This program has a use of its own for these: a timer's signal is not for the ranks.
        let taken = mask(&status, "SigCgt:") & !relays.ours;
        let named = NAMED.iter().map(|(signal, _)| signal.as_raw());
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

/// A set of signals that the system tells in a process's `status`, a bit each; none where it does not.
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
