//! Who has the slots: one call at a time, in the order in which calls were made.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use ucx_sys_wrap::shm::Slots;

/// The slots of a group, and the calls that wait for them.
pub(crate) struct Queue(Mutex<State>);

struct State {
    /// The number of the next ticket.
    next: u64,
    /// The ticket whose turn it is.
    turn: u64,
    /// Tickets that were given back before their turn.
    given_back: Vec<u64>,
    /// The slots, while nobody has them.
    slots: Option<Box<Slots>>,
}

/// A call's place in the queue, taken when the call is made. Dropped, it lets the next one in.
pub(crate) struct Ticket<Q: Deref<Target = Queue>> {
    queue: Q,
    number: u64,
    slots: Option<Box<Slots>>,
}

impl Queue {
    pub(crate) fn new(slots: Slots) -> Arc<Self> {
        let state = State { next: 0, turn: 0, given_back: Vec::new(), slots: Some(Box::new(slots)) };
        Arc::new(Self(Mutex::new(state)))
    }
}

impl<Q: Deref<Target = Queue>> Ticket<Q> {
    /// Takes the next place in the queue.
    #[inline]
    pub(crate) fn take(queue: Q) -> Self {
        let mut state = queue.0.lock();
        let number = state.next;
        state.next += 1;
        let slots = state.take_slots(number);
        drop(state);
        Self { queue, number, slots }
    }

    /// The slots, once it is this ticket's turn.
    #[inline]
    pub(crate) fn slots(&mut self) -> Option<&mut Slots> {
        if self.slots.is_none() {
            self.slots = self.queue.0.lock().take_slots(self.number);
        }
        self.slots.as_deref_mut()
    }
}

impl<Q: Deref<Target = Queue>> Drop for Ticket<Q> {
    fn drop(&mut self) {
        let slots = self.slots.take();
        let mut state = self.queue.0.lock();
        if slots.is_some() {
            state.slots = slots;
        }
        state.give_back(self.number);
    }
}

impl State {
    #[inline]
    fn take_slots(&mut self, number: u64) -> Option<Box<Slots>> {
        if self.turn == number { self.slots.take() } else { None }
    }

    fn give_back(&mut self, number: u64) {
        if self.turn != number {
            self.given_back.push(number);
            return;
        }
        self.turn += 1;
        while let Some(position) = self.given_back.iter().position(|number| *number == self.turn) {
            self.given_back.swap_remove(position);
            self.turn += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucx_sys_wrap::shm::Neighbourhood;

    #[test]
    fn tickets_have_the_slots_in_order() {
        let world = Neighbourhood::in_process(2).unwrap();
        let queue = Queue::new(Slots::new(&world[0]));
        let [mut first, mut second, third, mut fourth] = std::array::from_fn(|_| Ticket::take(&*queue));
        assert!(first.slots().is_some() && second.slots().is_none());
        drop(third);
        assert!(fourth.slots().is_none());
        drop(first);
        assert!(fourth.slots().is_none() && second.slots().is_some());
        drop(second);
        assert!(fourth.slots().is_some(), "the third does not want them any more");
        drop(fourth);
        assert!(Ticket::take(&*queue).slots().is_some());
    }
}
