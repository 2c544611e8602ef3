//! Areas of segments and channels: memory that another process reads or writes at the same time.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::copying;
use super::mapping::Mapping;

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// An area that this rank writes and its peers may read at any time. The peer could write into a channel, so
/// nothing that is read from one is trusted.
///
/// Offsets are from the start of the area. An access outside it is a bug, and panics.
#[derive(Clone)]
pub struct OwnArea(pub(super) Area);

/// An area that a peer writes; it may change at any time.
///
/// Offsets are from the start of the area. An access outside it is a bug, and panics: offsets from a peer
/// must be checked first.
#[derive(Clone)]
pub struct PeerArea(pub(super) Area);

/// Invariants: `bytes` bytes at `start` lie in `mapping`; `start` is a multiple of [`LINE_BYTES`].
#[derive(Clone)]
pub(super) struct Area {
    start: NonNull<u8>,
    bytes: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: an area points into pages that the mapping it holds keeps; see there for its threads.
unsafe impl Send for Area {}
// SAFETY: as above; bytes are reached through atomics and copies that allow for races.
unsafe impl Sync for Area {}

macro_rules! impl_area {
    ($area:ident) => {
        impl $area {
            /// Bytes of the area.
            #[must_use]
            pub fn bytes(&self) -> usize {
                self.0.bytes
            }

            /// A part of it that begins at a multiple of [`LINE_BYTES`].
            #[must_use]
            pub fn area(&self, range: Range<usize>) -> Self {
                Self(self.0.part(range))
            }

            /// Copies the bytes at `offset` to `into`. Each may be of any time since it was published.
            #[inline]
            pub fn read(&self, offset: usize, into: &mut [u8]) {
                let from = self.0.pointer(offset, into.len());
                // SAFETY: `pointer` has checked that this many bytes are there to read; `into` is private and
                // exclusive.
                unsafe { copying::copy(from, into.as_mut_ptr(), into.len()) };
            }

            /// The address of `offset`, for prefetching; it need not lie in the area.
            #[inline]
            pub(super) fn address(&self, offset: usize) -> *const u8 {
                self.0.start.as_ptr().wrapping_add(offset)
            }
        }
    };
}

impl_area!(OwnArea);
impl_area!(PeerArea);

impl OwnArea {
    /// The word at `offset`, a multiple of eight.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.0.word(offset)
    }

    /// The eight words of the line at `offset`, a multiple of [`LINE_BYTES`].
    #[inline]
    #[must_use]
    pub fn line(&self, offset: usize) -> &[AtomicU64; 8] {
        self.0.line(offset)
    }

    /// Copies `bytes` to `offset`.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.0.pointer(offset, bytes.len());
        // SAFETY: `pointer` has checked that this many bytes are there; they are writable, because only what
        // this process has made has own areas. Private memory can't overlap it, as no reference to shared
        // bytes exists.
        unsafe { copying::copy(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies `bytes` to `offset` past the caches if `offset` is a multiple of [`LINE_BYTES`], else like
    /// [`write`](Self::write). Faster for bytes that another processor has read and will read next.
    ///
    /// The bytes are ordered before every later store of this thread.
    #[inline]
    pub fn stream(&self, offset: usize, bytes: &[u8]) {
        self.stream_unfenced(offset, bytes);
        copying::fence();
    }

    /// Like [`write`](Self::write), for up to 32 KiB: a string instruction is slow to start.
    #[inline]
    pub(crate) fn write_block(&self, offset: usize, bytes: &[u8]) {
        let to = self.0.pointer(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { copying::copy_block(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Like [`stream`](Self::stream), but not ordered before anything until [`copying::fence`].
    #[inline]
    pub(super) fn stream_unfenced(&self, offset: usize, bytes: &[u8]) {
        let to = self.0.pointer(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { copying::stream_unfenced(bytes.as_ptr(), to, bytes.len()) };
    }
}

impl PeerArea {
    /// The word at `offset`, a multiple of eight, with what its writer stored before it.
    #[inline]
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        self.0.word(offset).load(Ordering::Acquire)
    }

    /// The eight words of the line at `offset`, a multiple of [`LINE_BYTES`], each loaded on its own.
    #[inline]
    #[must_use]
    pub fn line(&self, offset: usize) -> [u64; 8] {
        let words = self.0.line(offset);
        std::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    /// As [`read`](Self::read), for up to 32 KiB.
    #[inline]
    pub(crate) fn read_block(&self, offset: usize, into: &mut [u8]) {
        let from = self.0.pointer(offset, into.len());
        // SAFETY: `pointer` has checked that this many bytes are there; `into` is private, as no reference to
        // shared bytes exists.
        unsafe { copying::copy_block(from, into.as_mut_ptr(), into.len()) };
    }

    /// Like [`read_block`](Self::read_block), past the caches where `into` begins a cache line; a fence must
    /// follow.
    #[inline]
    pub(super) fn stream_block(&self, offset: usize, into: &mut [u8]) {
        let from = self.0.pointer(offset, into.len());
        // SAFETY: as in `read_block`.
        unsafe { copying::stream_unfenced(from, into.as_mut_ptr(), into.len()) };
    }
}

impl Area {
    pub(super) fn new(mapping: &Arc<Mapping>, range: Range<usize>) -> Self {
        let fits = range.start <= range.end
            && range.end <= mapping.bytes()
            && range.start.is_multiple_of(LINE_BYTES);
        assert!(fits, "bytes {range:?} of a mapping of {}", mapping.bytes());
        // SAFETY: just checked to lie in the mapping.
        let start = unsafe { mapping.start().add(range.start) };
        Self { start, bytes: range.len(), mapping: Arc::clone(mapping) }
    }

    fn part(&self, range: Range<usize>) -> Self {
        let from = self.start.addr().get() - self.mapping.start().addr().get();
        assert!(range.end <= self.bytes, "bytes {range:?} of an area of {}", self.bytes);
        Self::new(&self.mapping, from + range.start..from + range.end)
    }

    #[inline]
    fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {offset} of an area of {}", self.bytes);
        // SAFETY: just checked to lie in the area.
        unsafe { self.start.as_ptr().add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        let word = self.pointer(offset, 8).cast::<AtomicU64>();
        // SAFETY: eight aligned bytes of the area, which are only reached by atomics and by copies that allow
        // for races. `PeerArea`, whose pages may be read-only, only loads.
        unsafe { &*word }
    }

    #[inline]
    fn line(&self, offset: usize) -> &[AtomicU64; 8] {
        assert!(offset.is_multiple_of(LINE_BYTES), "a line at {offset}");
        let line = self.pointer(offset, LINE_BYTES).cast::<[AtomicU64; 8]>();
        // SAFETY: as in `word`.
        unsafe { &*line }
    }
}
