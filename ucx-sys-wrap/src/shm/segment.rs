//! Segments: this rank's, and its peers'.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;

use super::copying;
use super::layout::{ADDRESS_AT, BYTES_AT, Layout, MAGIC, MAGIC_AT, RANK_AT, VERSION, VERSION_AT};
use super::mapping::Mapping;
use crate::{Error, Rank, Result};

/// Bytes that processors move between their caches at once.
pub const LINE_BYTES: usize = 64;

/// What a peer's segment must be sealed against, so that nobody can take it from under a reader or write it.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// The file system of memfds made of ordinary pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The segment that this rank writes and its peers read.
pub struct OwnSegment {
    descriptor: OwnedFd,
    mapping: Arc<Mapping>,
}

/// The segment that a peer writes; nothing in it can be trusted.
pub struct PeerSegment {
    rank: Rank,
    mapping: Arc<Mapping>,
}

/// A stretch of this rank's segment. This process alone writes it; peers read it at any time.
///
/// Offsets are from the start of the stretch. An access outside it is a mistake of this program, and panics.
#[derive(Clone)]
pub struct OwnArea(Area);

/// A stretch of a peer's segment, to read; it may change at any time.
///
/// Offsets are from the start of the stretch. An access outside it is a mistake of this program, and panics: no offset
/// may come from a peer unchecked.
#[derive(Clone)]
pub struct PeerArea(Area);

/// Invariants: `bytes` bytes at `start` lie in `mapping`; `start` is a multiple of [`LINE_BYTES`].
#[derive(Clone)]
struct Area {
    start: NonNull<u8>,
    bytes: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: an area points into pages that the mapping it holds keeps; see there for its threads.
unsafe impl Send for Area {}
// SAFETY: as above; bytes are reached through atomics and copies that allow for races.
unsafe impl Sync for Area {}

impl OwnSegment {
    /// Makes the segment of `rank`, all zeros but for its header; its memory is taken from the system at once.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no memory for it, or does not know sealed memory (Linux before 5.1).
    pub fn new(rank: Rank, layout: Layout) -> Result<Self> {
        let failed = |error: Errno| Error::system("can't make shared memory", error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let create = |flags| rustix::fs::memfd_create("brevity", flags);
        // Kernels before 6.3 do not know the flag; the others warn without it.
        let descriptor = create(flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| create(flags)).map_err(failed)?;
        // Taken now, a lack of memory is an error; later, it would be a signal.
        fallocate(&descriptor, FallocateFlags::empty(), 0, layout.bytes() as u64).map_err(failed)?;
        // SAFETY: the file has just been made as long as this, and nobody else has it.
        let mapping = unsafe { Mapping::new(&descriptor, layout.bytes(), true) }?;
        fcntl_add_seals(&descriptor, SEALS).map_err(failed)?;
        let segment = Self { descriptor, mapping: Arc::new(mapping) };
        let header = segment.area(0..LINE_BYTES);
        for (offset, value) in header_of(rank, layout) {
            header.word(offset).store(value, Ordering::Relaxed);
        }
        let address = header.word(ADDRESS_AT);
        address.store(std::ptr::from_ref(address).addr() as u64, Ordering::Relaxed);
        Ok(segment)
    }

    /// The descriptor, to be given to peers.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// A stretch of the segment, from a multiple of [`LINE_BYTES`] on.
    ///
    /// # Panics
    /// When it does not lie in the segment, or begins elsewhere.
    #[must_use]
    pub fn area(&self, range: Range<usize>) -> OwnArea {
        OwnArea(Area::new(&self.mapping, range))
    }
}

impl PeerSegment {
    /// Takes over the segment of `rank`, whose descriptor came from there.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the descriptor is not a sealed memfd of exactly the bytes of `layout`, or its header is
    /// another rank's: it is not touched then. [`Error::System`] when it can't be mapped.
    pub fn new(rank: Rank, descriptor: &OwnedFd, layout: Layout) -> Result<Self> {
        let refuse = |what: String| Error::Protocol { rank, what };
        let seals = fcntl_get_seals(descriptor)
            .map_err(|error| refuse(format!("a descriptor that is no shared memory ({error})")))?;
        if !seals.contains(SEALS) {
            return Err(refuse(format!("shared memory with seals {:#x}, expected {:#x}", seals.bits(), SEALS.bits())));
        }
        let failed = |error: Errno| Error::system(format!("can't examine the shared memory of rank {rank}"), error);
        // Huge pages can run out under a reader, which would be a signal.
        if fstatfs(descriptor).map_err(failed)?.f_type as u64 != TMPFS_MAGIC {
            return Err(refuse("shared memory that is not of ordinary pages".into()));
        }
        let bytes = fstat(descriptor).map_err(failed)?.st_size;
        if u64::try_from(bytes) != Ok(layout.bytes() as u64) {
            return Err(refuse(format!("shared memory of {bytes} bytes, expected {}", layout.bytes())));
        }
        // SAFETY: the file has this many bytes, and is sealed against being made shorter.
        let mapping = unsafe { Mapping::new(descriptor, layout.bytes(), false) }?;
        let segment = Self { rank, mapping: Arc::new(mapping) };
        let header = segment.area(0..LINE_BYTES);
        for (offset, expected) in header_of(rank, layout) {
            let found = header.load(offset);
            if found != expected {
                return Err(refuse(format!("a segment with {found:#x} at byte {offset}, expected {expected:#x}")));
            }
        }
        Ok(segment)
    }

    /// Whose segment it is.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// A stretch of the segment, from a multiple of [`LINE_BYTES`] on.
    ///
    /// # Panics
    /// When it does not lie in the segment, or begins elsewhere.
    #[must_use]
    pub fn area(&self, range: Range<usize>) -> PeerArea {
        PeerArea(Area::new(&self.mapping, range))
    }
}

/// The words of a segment's header that never change.
fn header_of(rank: Rank, layout: Layout) -> [(usize, u64); 4] {
    let bytes = layout.bytes() as u64;
    [(MAGIC_AT, MAGIC), (VERSION_AT, VERSION), (RANK_AT, u64::from(rank.0)), (BYTES_AT, bytes)]
}

impl OwnArea {
    /// Bytes of the stretch.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// A part of it, from a multiple of [`LINE_BYTES`] on.
    #[must_use]
    pub fn area(&self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }

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
        // SAFETY: `pointer` has checked that this many bytes are there; they are writable, because only the segment that
        // this process has made has own areas. Private memory can't overlap it, as no reference to shared bytes exists.
        unsafe { copying::copy(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies `bytes` to `offset` past the caches, where `offset` is a multiple of [`LINE_BYTES`]; else as
    /// [`write`](Self::write). Faster for what another processor has read and will read, and nobody here.
    ///
    /// The bytes are ordered before every later store of this thread.
    #[inline]
    pub fn stream(&self, offset: usize, bytes: &[u8]) {
        let to = self.0.pointer(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { copying::stream(bytes.as_ptr(), to, bytes.len()) };
    }

    /// As [`write`](Self::write), for at most a few hundred bytes.
    #[inline]
    pub(crate) fn write_block(&self, offset: usize, bytes: &[u8]) {
        let to = self.0.pointer(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { copying::copy_block(bytes.as_ptr(), to, bytes.len()) };
    }

    /// As [`stream`](Self::stream), but not ordered before anything until [`copying::fence`].
    #[inline]
    pub(super) fn stream_unfenced(&self, offset: usize, bytes: &[u8]) {
        let to = self.0.pointer(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { copying::stream_unfenced(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Where `offset` would be, to ask for lines ahead of their use; it need not lie in the stretch.
    #[inline]
    pub(super) fn address(&self, offset: usize) -> *const u8 {
        self.0.start.as_ptr().wrapping_add(offset)
    }

    /// Copies the bytes at `offset` to `into`.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }
}

impl PeerArea {
    /// Bytes of the stretch.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// A part of it, from a multiple of [`LINE_BYTES`] on.
    #[must_use]
    pub fn area(&self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }

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

    /// Copies the bytes at `offset` to `into`; any may be of any time since they were published.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }

    /// As [`read`](Self::read), for at most a few hundred bytes.
    #[inline]
    pub(crate) fn read_block(&self, offset: usize, into: &mut [u8]) {
        let from = self.0.pointer(offset, into.len());
        // SAFETY: `pointer` has checked that this many bytes are there; `into` is private, as no reference to shared
        // bytes exists.
        unsafe { copying::copy_block(from, into.as_mut_ptr(), into.len()) };
    }

    /// As [`read_block`](Self::read_block), past the caches where `into` begins a line; a fence must follow.
    #[inline]
    pub(super) fn stream_block(&self, offset: usize, into: &mut [u8]) {
        let from = self.0.pointer(offset, into.len());
        // SAFETY: as in `read_block`.
        unsafe { copying::stream_unfenced(from, into.as_mut_ptr(), into.len()) };
    }

    /// Where `offset` would be, to ask for lines ahead of their use; it need not lie in the stretch.
    #[inline]
    pub(super) fn address(&self, offset: usize) -> *const u8 {
        self.0.start.as_ptr().wrapping_add(offset)
    }
}

impl Area {
    fn new(mapping: &Arc<Mapping>, range: Range<usize>) -> Self {
        let fits = range.start <= range.end && range.end <= mapping.bytes() && range.start.is_multiple_of(LINE_BYTES);
        assert!(fits, "bytes {range:?} of a segment of {}", mapping.bytes());
        // SAFETY: just checked to lie in the mapping.
        let start = unsafe { mapping.start().add(range.start) };
        Self { start, bytes: range.len(), mapping: Arc::clone(mapping) }
    }

    fn part(&self, range: Range<usize>) -> Self {
        let from = self.start.addr().get() - self.mapping.start().addr().get();
        assert!(range.end <= self.bytes, "bytes {range:?} of a stretch of {}", self.bytes);
        Self::new(&self.mapping, from + range.start..from + range.end)
    }

    #[inline]
    fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {offset} of a stretch of {}", self.bytes);
        // SAFETY: just checked to lie in the stretch.
        unsafe { self.start.as_ptr().add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        let word = self.pointer(offset, 8).cast::<AtomicU64>();
        // SAFETY: eight bytes of the stretch, aligned, and never reached by anything but atomics and copies that allow
        // for races. On read-only pages only loads are made: `PeerArea` has no other access.
        unsafe { &*word }
    }

    #[inline]
    fn line(&self, offset: usize) -> &[AtomicU64; 8] {
        assert!(offset.is_multiple_of(LINE_BYTES), "a line at {offset}");
        let line = self.pointer(offset, LINE_BYTES).cast::<[AtomicU64; 8]>();
        // SAFETY: as in `word`.
        unsafe { &*line }
    }

    #[inline]
    fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer(offset, into.len());
        // SAFETY: `pointer` has checked that this many bytes are there to read; `into` is private and exclusive.
        unsafe { copying::copy(from, into.as_mut_ptr(), into.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{ftruncate, memfd_create};

    fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
        let descriptor = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&descriptor, bytes as u64).unwrap();
        if !seals.is_empty() {
            fcntl_add_seals(&descriptor, seals).unwrap();
        }
        descriptor
    }

    fn refusal(descriptor: &OwnedFd, layout: Layout) -> String {
        match PeerSegment::new(Rank(3), descriptor, layout) {
            Err(error @ Error::Protocol { rank: Rank(3), .. }) => error.to_string(),
            Err(error) => panic!("{error}, expected a refusal"),
            Ok(_) => panic!("accepted, expected a refusal"),
        }
    }

    #[test]
    fn only_a_sealed_memfd_of_the_right_size_is_mapped() {
        let layout = Layout::new(2);
        let own = OwnSegment::new(Rank(3), layout).unwrap();
        let copy = own.descriptor().try_clone_to_owned().unwrap();
        assert!(PeerSegment::new(Rank(3), &copy, layout).is_ok());
        assert!(refusal(&copy, Layout::new(3)).contains("bytes, expected"));
        let others = OwnSegment::new(Rank(2), layout).unwrap();
        assert!(refusal(&others.descriptor().try_clone_to_owned().unwrap(), layout).contains("at byte 16"));
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL, SealFlags::FUTURE_WRITE] {
            assert!(refusal(&memfd(layout.bytes(), SEALS.difference(missing)), layout).contains("with seals"));
        }
        assert!(refusal(&memfd(layout.bytes(), SEALS), layout).contains("at byte 0"));
        assert!(refusal(&memfd(layout.bytes() - 4096, SEALS), layout).contains("bytes, expected"));
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(!refusal(&file, layout).is_empty());
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(refusal(&reader.into(), layout).contains("no shared memory"));
    }

    #[test]
    fn nobody_else_can_write_it_or_take_it_away() {
        let layout = Layout::new(2);
        let own = OwnSegment::new(Rank(0), layout).unwrap();
        let copy = own.descriptor().try_clone_to_owned().unwrap();
        assert!(ftruncate(&copy, 0).is_err() && ftruncate(&copy, 2 * layout.bytes() as u64).is_err());
        assert!(rustix::io::write(&copy, b"mine").is_err());
        assert!(fcntl_add_seals(&copy, SealFlags::WRITE).is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(&copy, punch, 0, 4096).is_err());
        // SAFETY: the file is sealed against being made shorter.
        assert!(unsafe { Mapping::new(&copy, layout.bytes(), true) }.is_err(), "a second mapping that writes");
    }

    #[test]
    fn access_outside_panics() {
        let own = OwnSegment::new(Rank(0), Layout::new(1)).unwrap();
        let area = own.area(4096..8192);
        let fails = |access: &dyn Fn()| {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err());
        };
        fails(&|| area.write(4000, &[0; 97]));
        fails(&|| area.read(usize::MAX, &mut [0; 2]));
        fails(&|| drop(area.area(0..4097)));
        fails(&|| drop(area.area(1..100)));
        fails(&|| drop(own.area(0..Layout::new(1).bytes() + 1)));
        fails(&|| _ = area.word(4096));
        fails(&|| _ = area.word(4));
        area.write(4000, &[1; 96]);
    }
}
