//! Memory that begins where a page begins, as that of the other programs does: copies into it are faster than elsewhere.

use std::ops::{Deref, DerefMut};

const PAGE_BYTES: usize = 4096;

/// Bytes from the beginning of a page on, which were all written once.
pub struct PageAligned {
    memory: Box<[u8]>,
    start: usize,
    bytes: usize,
}

impl PageAligned {
    /// So many bytes, each what `byte` says of its index.
    #[must_use]
    pub fn new(bytes: usize, byte: impl Fn(usize) -> u8) -> Self {
        let memory = vec![0; bytes + PAGE_BYTES].into_boxed_slice();
        let start = memory.as_ptr().addr().next_multiple_of(PAGE_BYTES) - memory.as_ptr().addr();
        let mut aligned = Self { memory, start, bytes };
        (0..).zip(aligned.iter_mut()).for_each(|(index, place)| *place = byte(index));
        aligned
    }
}

impl Deref for PageAligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_a_page_and_holds_what_was_asked_for() {
        for bytes in [0, 1, 4095, 4096, 100_000] {
            let memory = PageAligned::new(bytes, |index| index as u8);
            assert!(memory.as_ptr().addr().is_multiple_of(PAGE_BYTES) && memory.len() == bytes);
            assert!(memory.iter().enumerate().all(|(index, byte)| *byte == index as u8));
        }
    }
}
