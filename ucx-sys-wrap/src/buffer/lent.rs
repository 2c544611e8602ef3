//! Memory of another language, lent for longer than a call.

use std::ptr::NonNull;

use super::memory::{Buffer, RecvBuffer};
use crate::memory::WriteLease;
use crate::transport::RecvParts;

/// Bytes that belong to somebody else, for a [`Region`](super::Region) of memory that Rust does not own.
///
/// Invariants, guaranteed by the caller of [`new`](Self::new): `start` is valid for reads and writes of
/// `length` initialised bytes while this exists, also as a buffer of an operation or a region.
#[derive(Debug)]
pub struct LentMemory {
    start: NonNull<u8>,
    length: usize,
}

impl LentMemory {
    /// Borrows `length` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes are initialised, and valid for reads and writes until this is dropped: by a region that
    /// [gives it back](super::Region::unregister). If the region does not, that is until the process ends.
    /// Meanwhile nobody else writes them, and whoever reads them takes care, as by messages, that no peer
    /// writes the same bytes at the same time.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length }
    }
}

// SAFETY: the bytes are those of `new`'s caller, who may be any thread.
unsafe impl Send for LentMemory {}

// SAFETY: the memory lies elsewhere, and only `lend` gives access to it.
unsafe impl Buffer for LentMemory {
    type Raw = Self;

    fn into_raw(self) -> Self {
        self
    }

    unsafe fn from_raw(raw: Self) -> Self {
        raw
    }
}

// SAFETY: the invariants of the type are those of a lease.
unsafe impl RecvBuffer for LentMemory {
    unsafe fn lend(raw: &mut Self, parts: &mut RecvParts) {
        // SAFETY: valid while `raw` exists, by the invariants of the type.
        parts.push(unsafe { WriteLease::new(raw.start, raw.length) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Port, Region, RemoteRegion, scope};
    use crate::local;

    #[test]
    fn peers_write_memory_that_is_lent() {
        let [owner, peer] = <[_; 2]>::try_from(local::world(2)).ok().unwrap();
        let (owner, peer) = (Port::new(Box::new(owner)), Port::new(Box::new(peer)));
        let mut memory = vec![1u8; 8];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the vector is not used until the region has ended.
        let lent = unsafe { LentMemory::new(start, memory.len()) };
        let region = Region::register(&owner, lent).unwrap();
        let remote = RemoteRegion::open(&peer, owner.rank(), &region.key().to_bytes()).unwrap();
        let put = async |comm: &crate::buffer::Comm<'_>| comm.put(&remote, 3, &[7u8, 8][..]).await.map(drop);
        scope(&peer, |comm| _ = comm.port().progress(), put).unwrap();
        assert!(region.unregister().is_some());
        assert_eq!(memory, [1, 1, 1, 7, 8, 1, 1, 1]);
    }
}
