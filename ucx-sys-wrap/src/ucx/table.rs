//! Operations under numbers that are not given out twice, so that a stale number finds nothing.

use slab::Slab;

/// A table whose numbers hold the place (32 bits) and how many entries came before (31 bits, wrapping).
///
/// The highest bit of a number is left to those who use the table.
pub(super) struct Table<T> {
    entries: Slab<(u64, T)>,
    count: u32,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self { entries: Slab::new(), count: 0 }
    }

    /// The number that the next entry will have.
    #[inline]
    pub(super) fn next_number(&self) -> u64 {
        u64::from(self.count & (u32::MAX >> 1)) << 32 | self.entries.vacant_key() as u64
    }

    #[inline]
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let number = self.next_number();
        self.entries.insert((number, value));
        self.count = self.count.wrapping_add(1);
        number
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.entries.get_mut(place(number)).filter(|entry| entry.0 == number).map(|entry| &mut entry.1)
    }

    #[inline]
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        self.remove_if(number, |_| true)
    }

    /// Removes an entry that `is_meant` says.
    #[inline]
    pub(super) fn remove_if(&mut self, number: u64, is_meant: impl FnOnce(&T) -> bool) -> Option<T> {
        let place = place(number);
        let (found, value) = self.entries.get(place)?;
        (*found == number && is_meant(value)).then(|| self.entries.remove(place).1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|(_, entry)| entry.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, entry)| &entry.1)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, entry)| &mut entry.1)
    }
}

#[inline]
fn place(number: u64) -> usize {
    (number & u64::from(u32::MAX)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_used_finds_nothing() {
        let mut table = Table::new();
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
}
