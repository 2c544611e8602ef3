//! Entries under numbers that are not given out twice, so that a stale number finds nothing.

use slab::Slab;

const INDEX_BITS: u32 = 32;

/// A table whose keys hold the place (32 bits) and how many entries came before (32 bits, wrapping).
pub(crate) struct Ledger<T> {
    entries: Slab<(u64, T)>,
    count: u32,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self { entries: Slab::new(), count: 0 }
    }
}

impl<T> Ledger<T> {
    /// Adds an entry and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        self.count = self.count.wrapping_add(1);
        let place = self.entries.vacant_entry();
        let number = u64::from(self.count) << INDEX_BITS | place.key() as u64;
        place.insert((number, value));
        number
    }

    /// The entry with this number, if it is still there.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.entries.get_mut(index(number)).filter(|entry| entry.0 == number).map(|entry| &mut entry.1)
    }

    /// Takes the entry out, if it is still there and `wanted`.
    pub(crate) fn remove_if(&mut self, number: u64, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let entry = self.entries.get(index(number))?;
        (entry.0 == number && wanted(&entry.1)).then(|| self.entries.remove(index(number)).1)
    }

    /// All entries, in the order of their places.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, entry)| &mut entry.1)
    }
}

fn index(number: u64) -> usize {
    (number & ((1 << INDEX_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_used_finds_nothing() {
        let mut ledger = Ledger::default();
        let first = ledger.insert("first");
        assert_eq!(ledger.remove_if(first, |_| false), None);
        assert_eq!(ledger.remove_if(first, |_| true), Some("first"));
        let second = ledger.insert("second");
        assert_eq!(index(first), index(second));
        assert_eq!(ledger.get_mut(first), None);
        assert_eq!(ledger.remove_if(first, |_| true), None);
        assert_eq!(ledger.get_mut(second), Some(&mut "second"));
    }
}
