//! Who has a thing: one ticket at a time, in the order in which tickets were taken.
//!
//! Where nobody waits, a ticket costs one atomic addition and a store.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A thing that one [`Ticket`] has at a time.
///
/// Invariants: `turn` is at most `next`. Only two set it: the ticket of its number, when it is dropped, and
/// whoever finds its number in `given_back`, and takes it out, under that lock. So a thing is reached by the
/// ticket of the number `turn` alone, of which there is one, and by nobody else before that ticket is gone.
pub struct Turnstile<T> {
    /// The number of the next ticket.
    next: AtomicU64,
    /// The ticket whose turn it is.
    turn: AtomicU64,
    /// Tickets that were dropped before their turn.
    given_back: Mutex<Vec<u64>>,
    thing: UnsafeCell<T>,
}

// SAFETY: the thing is reached by one ticket at a time (the invariants), which hands it over with `Release`
// and `Acquire`; so it is sent between threads, never shared.
unsafe impl<T: Send> Sync for Turnstile<T> {}

/// A place in the queue for a thing. Dropped, it lets the next one in.
pub struct Ticket<T, Q: Hold<T>> {
    queue: Q,
    number: u64,
    /// Whether it was this ticket's turn when it last asked; then it is until it is dropped.
    has_turn: bool,
    thing: std::marker::PhantomData<T>,
}

/// What a ticket holds its turnstile by: always the same one.
pub trait Hold<T>: Deref<Target = Turnstile<T>> + sealed::Sealed {}

impl<T> Hold<T> for &Turnstile<T> {}
impl<T> Hold<T> for Arc<Turnstile<T>> {}

impl<T> Turnstile<T> {
    /// A turnstile before `thing`.
    #[must_use]
    pub fn new(thing: T) -> Self {
        let (next, turn) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { next, turn, given_back: Mutex::default(), thing: UnsafeCell::new(thing) }
    }

    /// Whether it is the turn of `number`, once those are skipped that do not want theirs any more.
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

impl<T, Q: Hold<T>> Ticket<T, Q> {
    /// Takes the next place in the queue.
    #[inline]
    pub fn take(queue: Q) -> Self {
        let number = queue.next.fetch_add(1, Ordering::Relaxed);
        let has_turn = queue.has_come_to(number);
        Self { queue, number, has_turn, thing: std::marker::PhantomData }
    }

    /// The thing, once it is this ticket's turn. Nothing tells when that is: ask again.
    #[inline]
    pub fn thing(&mut self) -> Option<&mut T> {
        self.has_turn = self.has_turn || self.queue.has_come_to(self.number);
        // SAFETY: it is this ticket's turn, and until it is dropped nobody else's; it is borrowed as long as
        // the thing.
        self.has_turn.then(|| unsafe { &mut *self.queue.thing.get() })
    }
}

impl<T, Q: Hold<T>> Drop for Ticket<T, Q> {
    #[inline]
    fn drop(&mut self) {
        if self.has_turn {
            self.queue.turn.store(self.number + 1, Ordering::Release);
        } else {
            // Whoever waits behind it finds it.
            self.queue.given_back.lock().push(self.number);
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for &super::Turnstile<T> {}
    impl<T> Sealed for std::sync::Arc<super::Turnstile<T>> {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_have_the_thing_in_order() {
        let turnstile = Turnstile::new(7);
        let [mut first, mut second, third, mut fourth] = std::array::from_fn(|_| Ticket::take(&turnstile));
        assert!(first.thing() == Some(&mut 7) && second.thing().is_none());
        drop(third);
        assert!(fourth.thing().is_none());
        drop(first);
        assert!(fourth.thing().is_none() && second.thing().is_some());
        drop(second);
        assert!(fourth.thing().is_some(), "the third does not want it any more");
        drop(fourth);
        drop(Ticket::take(&turnstile));
        assert!(Ticket::take(&turnstile).thing().is_some());
    }

    #[test]
    fn threads_do_not_meet_inside() {
        const TURNS: usize = if cfg!(miri) { 50 } else { 5000 };
        let turnstile = Arc::new(Turnstile::new((0usize, 0usize)));
        let play = |seed: usize| {
            for turn in 0..TURNS {
                let mut ticket = Ticket::take(Arc::clone(&turnstile));
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
        assert_eq!(Ticket::take(&*turnstile).thing().unwrap().0, expected.count());
    }
}
