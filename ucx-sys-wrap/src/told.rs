//! Tracing events of transports, deferred until the transport has been left.
//!
//! A transport that makes progress holds its port and its own locks. A subscriber that is called there and
//! uses the same port, or enters another rank's transport, would find them in use. So events inside a
//! transport are queued, and the next thread that leaves a port emits them in order by calling [`tell`]; see
//! [`Port`](crate::buffer::Port).

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The queued events, each a call of a `tracing` macro.
static WAITING: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// Whether the queue is not empty; checked after every turn.
static HAS_SOME: AtomicBool = AtomicBool::new(false);

/// Queues an event of this level, with the arguments of the `tracing` macros, which are moved into it.
macro_rules! later {
    ($level:ident, $($event:tt)+) => {
        // Not `enabled!`, which calls the subscriber.
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

#[inline]
pub(crate) fn has_some() -> bool {
    HAS_SOME.load(Ordering::Relaxed)
}

/// Emits the queued events. Must be called outside any transport, because subscribers may call anything.
#[inline]
pub(crate) fn tell() {
    if has_some() {
        tell_all();
    }
}

#[cold]
fn tell_all() {
    // A second panic, by a subscriber, would abort the process.
    if std::thread::panicking() {
        return;
    }
    HAS_SOME.store(false, Ordering::Relaxed);
    let events = std::mem::take(&mut *WAITING.lock());
    events.into_iter().for_each(|event| event());
}

/// Emits the queued events when it is dropped. As the last field of a struct, it is dropped last.
pub(crate) struct TellLast;

impl Drop for TellLast {
    fn drop(&mut self) {
        tell();
    }
}
