//! Events of transports, told once the transport has been left.
//!
//! While a transport moves, its port and its own locks are held. A subscriber that hears an event there and asks
//! the same port for its statistics, or enters another rank's transport, would find them in use. So events that
//! happen inside a transport wait in a queue, and [`tell`] hands them to the subscriber when the port has been
//! left: see [`Port`](crate::buffer::Port). They are told by whichever thread leaves one next, in order.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What is to be told, each a call of the `tracing` macro.
static WAITING: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// Whether there is anything to tell; looked at after every turn.
static HAS_SOME: AtomicBool = AtomicBool::new(false);

/// Notes an event of this level, with what the macros of `tracing` take. Values are moved into it.
macro_rules! later {
    ($level:ident, $($event:tt)+) => {
        // Not `enabled!`, which asks the subscriber.
        if tracing::Level::$level <= tracing::level_filters::LevelFilter::current() {
            $crate::told::note(Box::new(move || tracing::event!(tracing::Level::$level, $($event)+)));
        }
    };
}
pub(crate) use later;

#[cold]
pub(crate) fn note(event: Box<dyn FnOnce() + Send>) {
    WAITING.lock().push(event);
    HAS_SOME.store(true, Ordering::Relaxed);
}

/// Whether [`tell`] has anything to do.
#[inline]
pub(crate) fn has_some() -> bool {
    HAS_SOME.load(Ordering::Relaxed)
}

/// Tells what has happened. To be called with no transport entered: a subscriber does as it likes.
#[inline]
pub(crate) fn tell() {
    if has_some() {
        tell_all();
    }
}

#[cold]
fn tell_all() {
    // A subscriber that panics while another panic unwinds would end the process.
    if std::thread::panicking() {
        return;
    }
    HAS_SOME.store(false, Ordering::Relaxed);
    let events = std::mem::take(&mut *WAITING.lock());
    events.into_iter().for_each(|event| event());
}

/// Tells when it is dropped, which is after what comes before it in its struct.
pub(crate) struct TellLast;

impl Drop for TellLast {
    fn drop(&mut self) {
        tell();
    }
}
