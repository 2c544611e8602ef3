//! Signals that are meant for a whole job.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rustix::process::Signal;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};

use crate::{Error, Result};

const FORWARDED: [(i32, Signal); 3] = [(SIGINT, Signal::INT), (SIGTERM, Signal::TERM), (SIGHUP, Signal::HUP)];

/// Catches the signals that are meant for a job until it is dropped; then they do again what they do by
/// default.
pub(super) struct Relay {
    caught: Vec<Caught>,
    /// Last: dropped when nothing is caught any more.
    _busy: Busy,
}

/// One signal: a byte arrives for each time that it was sent.
struct Caught {
    signal: Signal,
    arrivals: UnixStream,
    registration: SigId,
}

impl Relay {
    pub(super) fn new() -> Result<Self> {
        let busy = Busy::new()?;
        let caught = FORWARDED
            .into_iter()
            .map(|(number, signal)| Caught::new(number, signal))
            .collect::<Result<_>>()?;
        Ok(Self { caught, _busy: busy })
    }

    /// What becomes readable when a signal comes.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.caught.iter().map(|caught| caught.arrivals.as_fd())
    }

    /// The signals that have come since the last call.
    pub(super) fn take(&mut self) -> Vec<Signal> {
        let came = |caught: &mut Caught| {
            matches!(caught.arrivals.read(&mut [0; 64]), Ok(1..)).then_some(caught.signal)
        };
        self.caught.iter_mut().filter_map(came).collect()
    }
}

impl Caught {
    fn new(number: i32, signal: Signal) -> Result<Self> {
        let failed = |error| Error::system("can't listen for signals", error);
        let (arrivals, sender) = UnixStream::pair().map_err(failed)?;
        arrivals.set_nonblocking(true).map_err(failed)?;
        let registration = pipe::register(number, sender).map_err(failed)?;
        Ok(Self { signal, arrivals, registration })
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        unregister(self.registration);
    }
}

/// Counts relays. What a signal does belongs to the whole process, and so does this count: a signal that was
/// caught once would else be ignored when nobody waits for it any more.
struct Busy;

static RELAYS: Mutex<Relays> = Mutex::new(Relays { count: 0, defaults_registered: false });

/// Whether the signals do what they do by default.
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

struct Relays {
    count: usize,
    defaults_registered: bool,
}

impl Busy {
    fn new() -> Result<Self> {
        let mut relays = RELAYS.lock();
        IDLE.store(false, Ordering::SeqCst);
        if !relays.defaults_registered {
            for (number, _) in FORWARDED {
                signal_hook::flag::register_conditional_default(number, IDLE.clone())
                    .map_err(|error| Error::system("can't listen for signals", error))?;
            }
            relays.defaults_registered = true;
        }
        relays.count += 1;
        Ok(Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut relays = RELAYS.lock();
        relays.count -= 1;
        IDLE.store(relays.count == 0, Ordering::SeqCst);
    }
}
