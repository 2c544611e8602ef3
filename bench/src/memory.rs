//! Memory of messages: it begins where a page begins, and lies on huge pages from 2 MiB on, as that of the
//! other programs does. Copies into it are faster than elsewhere.

use std::ops::{Deref, DerefMut};

use brevity::transport::buffer::{Pool, PoolBuffer};

/// Bytes from the beginning of a page on; a buffer of a pool, as any program may have it.
pub struct PageAligned(PoolBuffer<u8>);

impl PageAligned {
    /// So many bytes, each what `byte` says of its index.
    ///
    /// # Panics
    /// When the system has no memory.
    #[must_use]
    pub fn new(bytes: usize, byte: impl Fn(usize) -> u8) -> Self {
        // A pool of its own: the next measurement has other memory.
        let mut memory = Pool::new().take(bytes).unwrap_or_else(|error| panic!("{error}"));
        (0..).zip(memory.iter_mut()).for_each(|(index, place)| *place = byte(index));
        Self(memory)
    }

    /// So many zeroes that were never written: the kernel keeps one page for all of them, which no cache is
    /// too small for.
    ///
    /// # Panics
    /// When the system has no memory.
    #[must_use]
    pub fn unwritten(bytes: usize) -> Self {
        Self(Pool::new().take_zeroed(bytes).unwrap_or_else(|error| panic!("{error}")))
    }

    /// What can be lent to peers.
    #[must_use]
    pub fn into_buffer(self) -> PoolBuffer<u8> {
        self.0
    }
}

impl Deref for PageAligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_a_page_and_holds_what_was_asked_for() {
        for bytes in [0, 1, 4095, 4096, 100_000] {
            let memory = PageAligned::new(bytes, |index| index as u8);
            assert!(bytes == 0 || memory.as_ptr().addr().is_multiple_of(4096));
            assert_eq!(memory.len(), bytes);
            assert!(memory.iter().enumerate().all(|(index, byte)| *byte == index as u8));
            assert_eq!(PageAligned::unwritten(bytes)[..], vec![0; bytes]);
        }
    }
}
