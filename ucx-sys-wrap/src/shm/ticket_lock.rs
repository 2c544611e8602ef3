//! A ticket lock: one ticket at a time has the value, in the order in which tickets were taken.
//!
//! Without contention, a ticket costs one atomic addition and a store.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A value that one [`Ticket`] has at a time.
///
/// Invariants: `turn` is at most `next`. Only two parties set it: the ticket of that number when it is
/// dropped, and whoever finds the number in `given_back` and removes it, under that lock. So only the ticket
/// with the number `turn`, of which there is one, reaches the value, and nobody else before that ticket is
/// gone.
pub struct TicketLock<T> {
    /// The number of the next ticket.
    next: AtomicU64,
    /// The ticket whose turn it is.
    turn: AtomicU64,
    /// Tickets that were dropped before their turn.
    given_back: Mutex<Vec<u64>>,
    value: UnsafeCell<T>,
}

// SAFETY: one ticket at a time reaches the value (the invariants), and hands it over with `Release` and
// `Acquire`; so it is sent between threads, never shared.
unsafe impl<T: Send> Sync for TicketLock<T> {}

/// A place in the queue. Dropping it lets the next one in.
pub struct Ticket<T, Q: LockHandle<T>> {
    queue: Q,
    number: u64,
    /// Whether its turn has come; then it stays so until it is dropped.
    has_turn: bool,
    value: std::marker::PhantomData<T>,
}

/// A lock handle: a pointer that always leads to the same lock.
pub trait LockHandle<T>: Deref<Target = TicketLock<T>> + sealed::Sealed {}

impl<T> LockHandle<T> for &TicketLock<T> {}
impl<T> LockHandle<T> for Arc<TicketLock<T>> {}

impl<T> TicketLock<T> {
    /// A lock around `value`.
    #[must_use]
    pub fn new(value: T) -> Self {
        let (next, turn) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { next, turn, given_back: Mutex::default(), value: UnsafeCell::new(value) }
    }

    /// Whether it is the turn of `number`, after skipping tickets that were dropped.
    #[inline]
    fn has_come_to(&self, number: u64) -> bool {
        self.turn.load(Ordering::Acquire) == number || self.skip(number)
    }

    #[cold]
    fn skip(&self, number: u64) -> bool {
        let mut given_back = self.given_back.lock();
        let mut turn = self.turn.load(Ordering::Acquire);
        while let Some(position) = given_back.iter().position(|number| *number == turn) {
            given_back.swap_remove(position);
            turn += 1;
            self.turn.store(turn, Ordering::Release);
        }
        turn == number
    }
}

impl<T, Q: LockHandle<T>> Ticket<T, Q> {
    /// Takes the next place in the queue.
    #[inline]
    pub fn take(queue: Q) -> Self {
        let number = queue.next.fetch_add(1, Ordering::Relaxed);
        let has_turn = queue.has_come_to(number);
        Self { queue, number, has_turn, value: std::marker::PhantomData }
    }

    /// The value, if it is this ticket's turn. There is no notification: ask again.
    #[inline]
    pub fn thing(&mut self) -> Option<&mut T> {
        self.has_turn = self.has_turn || self.queue.has_come_to(self.number);
        // SAFETY: it is this ticket's turn, and nobody else's until it is dropped; the ticket is borrowed as
        // long as the value.
        self.has_turn.then(|| unsafe { &mut *self.queue.value.get() })
    }
}

impl<T, Q: LockHandle<T>> Drop for Ticket<T, Q> {
    #[inline]
    fn drop(&mut self) {
        if self.has_turn {
            self.queue.turn.store(self.number + 1, Ordering::Release);
        } else {
            // A later ticket finds it.
            self.queue.given_back.lock().push(self.number);
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for &super::TicketLock<T> {}
    impl<T> Sealed for std::sync::Arc<super::TicketLock<T>> {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_have_the_value_in_order() {
        let ticket_lock = TicketLock::new(7);
        let [mut first, mut second, third, mut fourth] = std::array::from_fn(|_| Ticket::take(&ticket_lock));
        assert!(first.thing() == Some(&mut 7) && second.thing().is_none());
        drop(third);
        assert!(fourth.thing().is_none());
        drop(first);
        assert!(fourth.thing().is_none() && second.thing().is_some());
        drop(second);
        assert!(fourth.thing().is_some(), "the third does not want it any more");
        drop(fourth);
        drop(Ticket::take(&ticket_lock));
        assert!(Ticket::take(&ticket_lock).thing().is_some());
    }

    #[test]
    fn only_one_thread_has_the_value() {
        const TURNS: usize = if cfg!(miri) { 50 } else { 5000 };
        let ticket_lock = Arc::new(TicketLock::new((0usize, 0usize)));
        let play = |seed: usize| {
            for turn in 0..TURNS {
                let mut ticket = Ticket::take(Arc::clone(&ticket_lock));
                if (turn + seed).is_multiple_of(3) {
                    continue;
                }
                loop {
                    if let Some((one, other)) = ticket.thing() {
                        assert_eq!(one, other);
                        (*one, *other) = (*one + 1, *other + 1);
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            for seed in 0..3 {
                scope.spawn(move || play(seed));
            }
        });
        let expected =
            (0..3).flat_map(|seed| (0..TURNS).map(move |turn| turn + seed)).filter(|sum| sum % 3 != 0);
        assert_eq!(Ticket::take(&*ticket_lock).thing().unwrap().0, expected.count());
    }
}
