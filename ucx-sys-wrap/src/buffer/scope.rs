//! Scopes, which end their operations before borrowed memory goes back to its owner.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::comm::Comm;
use super::port::{Inside, Port};
use crate::told;

/// Runs `body` to completion on this thread, calling `between` after each poll that returned pending.
///
/// Returns, or unwinds, only after every operation that `body` posted has ended, whether it was awaited,
/// dropped or forgotten. `between` should make progress ([`Port::progress`]) and may let the deadline pass
/// ([`Comm::expire`]).
pub fn scope<'env, R>(
    port: &Arc<Port>,
    mut between: impl FnMut(&Comm<'env>),
    body: impl AsyncFnOnce(&Comm<'env>) -> R,
) -> R {
    let comm = Comm::open(port, 0);
    comm.time().begin_to_wait(port.now());
    let drain = DrainOnExit(&comm);
    let result = {
        let mut future = std::pin::pin!(body(&comm));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                break result;
            }
            between(&comm);
        }
    };
    drop(drain);
    told::tell();
    result
}

/// Like [`scope`], but makes progress itself and tells `between` whether the last turn moved anything.
///
/// The transport stays entered while no other thread wants to enter, which spares the lock operations of
/// every turn and operation. Other threads can enter between two turns. A poll of `body` must not wait for
/// such a thread; `between` may only after [`Turn::leave`].
///
/// A receive that `body` awaits while no other operation is in flight polls up to `spins` times for a short
/// message before `between` is called. Use some 100 if the processor is free, and 0 otherwise. `between` can
/// change the number ([`Comm::set_spins`]), and states when the call begins to wait
/// ([`CallTime::begin_to_wait`](super::CallTime::begin_to_wait)).
pub fn scope_in_turns<'env, R>(
    port: &Arc<Port>,
    spins: u32,
    mut between: impl FnMut(&Comm<'env>, &mut Turn<'_>),
    body: impl AsyncFnOnce(&Comm<'env>) -> R,
) -> R {
    let comm = Comm::open(port, spins);
    let drain = DrainOnExit(&comm);
    let result = {
        let mut future = std::pin::pin!(body(&comm));
        let mut context = Context::from_waker(Waker::noop());
        let mut turn = Turn { port, inside: Some(port.enter()), moved: false };
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                break result;
            }
            between(&comm, &mut turn);
            turn.go();
        }
    };
    drop(drain);
    told::tell();
    result
}

/// A turn of [`scope_in_turns`].
pub struct Turn<'port> {
    port: &'port Port,
    inside: Option<Inside<'port>>,
    moved: bool,
}

impl Turn<'_> {
    /// Whether it moved anything.
    #[must_use]
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// Lets other threads enter the transport until the next turn. Call it before waiting for anything.
    pub fn leave(&mut self) {
        self.inside = None;
    }

    #[inline]
    fn go(&mut self) {
        self.port.heed_abort();
        if self.port.is_wanted() {
            self.inside.take().into_iter().for_each(Port::hand_over);
        }
        let inside = self.inside.get_or_insert_with(|| self.port.enter());
        self.moved = inside.transport.borrow_mut().progress();
        inside.heed_news(self.port.rank());
        if inside.has_orphans() || told::has_some() || self.port.has_woken() {
            // Freed buffers, subscribers and wakers may wait for a thread that wants to enter.
            self.moved |= self.port.has_woken();
            self.inside = None;
            self.port.end_orphans();
            told::tell();
            self.port.wake();
        }
    }
}

/// Ends the remaining operations of a scope when its stack frame ends, by return or by panic.
struct DrainOnExit<'comm, 'env>(&'comm Comm<'env>);

impl Drop for DrainOnExit<'_, '_> {
    fn drop(&mut self) {
        self.0.port().close_scope(self.0.scope_key());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::local;

    #[test]
    fn another_thread_enters_between_turns() {
        let port = Port::new(Box::new(local::world(1).remove(0)));
        let (entered, turns) = (AtomicBool::new(false), AtomicBool::new(false));
        let looked = std::future::poll_fn(|_| {
            turns.store(true, Ordering::Release);
            if entered.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        });
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !turns.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                assert_eq!(port.statistics().messages_sent, 0);
                entered.store(true, Ordering::Release);
            });
            scope_in_turns(&port, 0, |_, turn| assert!(!turn.moved()), async move |_| looked.await);
        });
    }
}
