//! Memory of messages. It is page-aligned and uses huge pages from 2 MiB on, like that of the other programs;
//! copies into it are faster than elsewhere.

use std::ops::{Deref, DerefMut};

use brevity::transport::buffer::{Pool, PoolBuffer};

/// Page-aligned bytes: a buffer of a pool, as any program may use.
pub struct PageAligned(PoolBuffer<u8>);

impl PageAligned {
    /// `bytes` bytes; `byte` gives each by its index.
    ///
    /// # Panics
    /// If the system has no memory.
    #[must_use]
    pub fn new(bytes: usize, byte: impl Fn(usize) -> u8) -> Self {
        // A separate pool, so that the next measurement gets other memory.
        let mut memory = Pool::new().take(bytes).unwrap_or_else(|error| panic!("{error}"));
        (0..).zip(memory.iter_mut()).for_each(|(index, place)| *place = byte(index));
        Self(memory)
    }

    /// Zeroes that were never written: the kernel maps one page for all of them, which fits every cache.
    ///
    /// # Panics
    /// If the system has no memory.
    #[must_use]
    pub fn unwritten(bytes: usize) -> Self {
        Self(Pool::new().take_zeroed(bytes).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The buffer, for lending it to peers.
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
