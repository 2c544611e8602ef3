//! A table whose numbers are never reused, so that a stale number finds nothing.

/// A number holds the place (32 bits) and the count of earlier entries (31 bits, wrapping); its highest bit
/// is left to the users of the table. [`free`](Self::free) drops an entry in place, because moving a large
/// one out costs more than finding it.
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    /// The place that is filled next: the one vacated last, or a new one.
    next: usize,
    /// Entries so far, wrapping.
    count: u32,
    taken: usize,
}

enum Place<T> {
    Taken {
        number: u64,
        entry: T,
    },
    /// With the `next` from before.
    Vacant {
        next: usize,
    },
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), next: 0, count: 0, taken: 0 }
    }
}

impl<T> Table<T> {
    #[inline]
    pub(crate) fn next_number(&self) -> u64 {
        u64::from(self.count & (u32::MAX >> 1)) << 32 | self.next as u64
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: T) -> u64 {
        let number = self.next_number();
        let taken = Place::Taken { number, entry };
        match self.places.get_mut(self.next) {
            Some(place) => {
                // The place that is filled next is a vacant one.
                if let Place::Vacant { next } = *place {
                    self.next = next;
                }
                *place = taken;
            }
            None => {
                self.places.push(taken);
                self.next = self.places.len();
            }
        }
        self.count = self.count.wrapping_add(1);
        self.taken += 1;
        number
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        match self.places.get_mut(place(number))? {
            Place::Taken { number: found, entry } if *found == number => Some(entry),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        self.remove_if(number, |_| true)
    }

    /// Removes an entry if `is_meant` accepts it.
    #[inline]
    pub(crate) fn remove_if(&mut self, number: u64, is_meant: impl FnOnce(&T) -> bool) -> Option<T> {
        if !self.get_mut(number).is_some_and(|entry| is_meant(entry)) {
            return None;
        }
        let vacant = Place::Vacant { next: std::mem::replace(&mut self.next, place(number)) };
        self.taken -= 1;
        match std::mem::replace(&mut self.places[place(number)], vacant) {
            Place::Taken { entry, .. } => Some(entry),
            Place::Vacant { .. } => None,
        }
    }

    /// Drops an entry in its place.
    #[inline]
    pub(crate) fn free(&mut self, number: u64) {
        if self.get_mut(number).is_some() {
            self.places[place(number)] = Place::Vacant { next: self.next };
            self.next = place(number);
            self.taken -= 1;
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.places.iter().filter_map(|place| match place {
            Place::Taken { number, .. } => Some(*number),
            Place::Vacant { .. } => None,
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| match place {
            Place::Taken { entry, .. } => Some(entry),
            Place::Vacant { .. } => None,
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| match place {
            Place::Taken { entry, .. } => Some(entry),
            Place::Vacant { .. } => None,
        })
    }
}

#[inline]
fn place(number: u64) -> usize {
    (number & u64::from(u32::MAX)) as usize
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_number_that_was_used_finds_nothing() {
        let mut table = Table::default();
        let announced = table.next_number();
        let first = table.insert("first");
        assert_eq!(first, announced);
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_eq!(place(first), place(second));
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(second), Some(&mut "second"));
    }

    #[test]
    fn places_that_were_left_are_taken_again_and_hold_what_was_put_there() {
        let mut table = Table::default();
        let kept = Rc::new(());
        let numbers: Vec<u64> = (0..4).map(|_| table.insert(Rc::clone(&kept))).collect();
        table.free(numbers[1]);
        table.free(numbers[1]);
        assert!(table.remove_if(numbers[2], |_| false).is_none());
        assert!(table.remove(numbers[2]).is_some() && table.remove(numbers[2]).is_none());
        assert_eq!((Rc::strong_count(&kept), table.numbers().collect()), (3, vec![numbers[0], numbers[3]]));
        let more: Vec<u64> = (0..3).map(|_| table.insert(Rc::clone(&kept))).collect();
        assert_eq!(more.iter().map(|&number| place(number)).collect::<Vec<_>>(), [2, 1, 4]);
        assert_eq!((table.iter().count(), table.iter_mut().count()), (5, 5));
        numbers.into_iter().chain(more).for_each(|number| table.free(number));
        assert!(table.is_empty() && table.get_mut(0).is_none());
        assert_eq!(Rc::strong_count(&kept), 1);
    }
}
