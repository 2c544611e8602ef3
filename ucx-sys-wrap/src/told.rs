//! Tracing events of transports, deferred until the transport has been left.
//!
//! A transport that makes progress holds its port and its own locks. A subscriber that is called there and
//! uses the same port, or enters another rank's transport, would find them in use. So events inside a
//! transport are queued, and their thread emits them in order when it leaves the port, by calling [`tell`];
//! see [`Port`](crate::buffer::Port).

use std::cell::{Cell, RefCell};

/// An event: a call of a `tracing` macro.
type Waiting = Box<dyn FnOnce()>;

thread_local! {
    /// The events that this thread has queued, for the subscriber of this thread.
    static WAITING: RefCell<Vec<Waiting>> = const { RefCell::new(Vec::new()) };

    /// Whether there are any; checked after every turn.
    static HAS_SOME: Cell<bool> = const { Cell::new(false) };
}

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
pub(crate) fn note(event: Waiting) {
    // A thread that is ending keeps no events.
    if WAITING.try_with(|waiting| waiting.borrow_mut().push(event)).is_ok() {
        HAS_SOME.set(true);
    }
}

#[inline]
pub(crate) fn has_some() -> bool {
    HAS_SOME.get()
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
    HAS_SOME.set(false);
    let events = WAITING.try_with(RefCell::take).unwrap_or_default();
    events.into_iter().for_each(|event| event());
}

/// Emits the queued events when it is dropped. As the last field of a struct, it is dropped last.
pub(crate) struct TellLast;

impl Drop for TellLast {
    fn drop(&mut self) {
        tell();
    }
}
