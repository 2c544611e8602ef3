//! Segments and channels: this rank's and its peers'.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::area::{Area, LINE_BYTES, OwnArea, PeerArea};
use super::layout::{
    BYTES_AT, COOKIE_ADDRESS_AT, COOKIE_AT, Layout, MAGIC, MAGIC_AT, RANK_AT, VERSION, VERSION_AT,
};
use super::mapping::Mapping;
use crate::{Error, Rank, Result};

/// The seals of a segment: nobody can shrink it under a reader, or write it.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// The seals of a channel. Both its ranks may write it.
const CHANNEL_SEALS: SealFlags = SEALS.difference(SealFlags::FUTURE_WRITE);

/// The file system of memfds of ordinary pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A segment that this rank writes and its peers read, or a channel from this rank to one peer.
pub struct OwnSegment {
    descriptor: OwnedFd,
    mapping: Arc<Mapping>,
}

/// The segment that a peer writes; nothing in it can be trusted.
pub struct PeerSegment {
    mapping: Arc<Mapping>,
}

impl OwnSegment {
    /// Makes the segment of `rank`, zeroed except for its header. The system commits its memory at once.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no memory for it, does not know sealed memory (Linux before
    /// 5.1), or has no random bytes.
    pub fn new(rank: Rank, layout: Layout) -> Result<Self> {
        let (descriptor, mapping) = make(layout.bytes(), SEALS)?;
        let segment = Self { descriptor, mapping };
        let header = segment.area(0..LINE_BYTES);
        for (offset, value) in header_words(rank, layout) {
            header.word(offset).store(value, Ordering::Relaxed);
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| Error::system("can't get random bytes", std::io::Error::other(error)))?;
        let cookie = header.word(COOKIE_AT);
        cookie.store(u64::from_ne_bytes(random), Ordering::Relaxed);
        header.word(COOKIE_ADDRESS_AT).store(std::ptr::from_ref(cookie).addr() as u64, Ordering::Relaxed);
        Ok(segment)
    }

    /// Makes a channel, zeroed.
    ///
    /// The peer maps it writable, though it only reads: a processor takes a line exclusively when it reads it
    /// through a writable mapping, and then the next write here is cheaper. So only memory that no third rank
    /// has is shared like this, and its owner trusts nothing in it.
    pub(super) fn new_channel(layout: Layout) -> Result<Self> {
        let (descriptor, mapping) = make(layout.channel_bytes(), CHANNEL_SEALS)?;
        Ok(Self { descriptor, mapping })
    }

    /// The descriptor, to be given to peers.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// An area of the segment that begins at a multiple of [`LINE_BYTES`].
    ///
    /// # Panics
    /// When it does not lie in the segment, or begins elsewhere.
    #[must_use]
    pub fn area(&self, range: Range<usize>) -> OwnArea {
        OwnArea(Area::new(&self.mapping, range))
    }
}

impl PeerSegment {
    /// Maps the segment of `rank`, whose descriptor came from there.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the descriptor is not a sealed memfd of exactly the bytes of `layout`, or its
    /// header is another rank's. [`Error::System`] when it can't be mapped.
    pub fn new(rank: Rank, descriptor: &OwnedFd, layout: Layout) -> Result<Self> {
        let mapping = map_received(rank, descriptor, layout.bytes(), SEALS)?;
        let segment = Self { mapping };
        let header = segment.area(0..LINE_BYTES);
        for (offset, expected) in header_words(rank, layout) {
            let found = header.load(offset);
            if found != expected {
                let what = format!("a segment with {found:#x} at byte {offset}, expected {expected:#x}");
                return Err(Error::Protocol { rank, what });
            }
        }
        Ok(segment)
    }

    /// An area of the segment that begins at a multiple of [`LINE_BYTES`].
    ///
    /// # Panics
    /// When it does not lie in the segment, or begins elsewhere.
    #[must_use]
    pub fn area(&self, range: Range<usize>) -> PeerArea {
        PeerArea(Area::new(&self.mapping, range))
    }
}

/// Maps the channel that `rank` has made for this rank.
///
/// # Errors
/// As [`PeerSegment::new`].
pub(super) fn peer_channel(rank: Rank, descriptor: &OwnedFd, layout: Layout) -> Result<PeerArea> {
    let mapping = map_received(rank, descriptor, layout.channel_bytes(), CHANNEL_SEALS)?;
    Ok(PeerArea(Area::new(&mapping, 0..layout.channel_bytes())))
}

/// Makes zeroed shared memory that the system commits at once.
fn make(bytes: usize, seals: SealFlags) -> Result<(OwnedFd, Arc<Mapping>)> {
    let failed = |error: Errno| Error::system("can't make shared memory", error);
    check_file_limit(bytes as u64)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let create = |flags| rustix::fs::memfd_create("brevity", flags);
    // Kernels before 6.3 do not know the flag; later ones warn without it.
    let descriptor = create(flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| create(flags)).map_err(failed)?;
    // Committed now, a lack of memory is an error; later, it would be a signal.
    fallocate(&descriptor, FallocateFlags::empty(), 0, bytes as u64).map_err(failed)?;
    // SAFETY: the file has just been made this long, and nobody else has it.
    let mapping = unsafe { Mapping::new(&descriptor, bytes, true) }?;
    fcntl_add_seals(&descriptor, seals).map_err(failed)?;
    Ok((descriptor, Arc::new(mapping)))
}

/// Maps a memfd of `rank` that has exactly so many bytes and at least these seals; read-only if they demand
/// it.
fn map_received(rank: Rank, descriptor: &OwnedFd, bytes: usize, seals: SealFlags) -> Result<Arc<Mapping>> {
    let violation = |what: String| Error::Protocol { rank, what };
    let found = fcntl_get_seals(descriptor)
        .map_err(|error| violation(format!("a descriptor that is no shared memory ({error})")))?;
    if !found.contains(seals) {
        return Err(violation(format!(
            "shared memory with seals {:#x}, expected {:#x}",
            found.bits(),
            seals.bits()
        )));
    }
    let failed =
        |error: Errno| Error::system(format!("can't examine the shared memory of rank {rank}"), error);
    // Huge pages can run out under a reader, which would be a signal.
    if fstatfs(descriptor).map_err(failed)?.f_type as u64 != TMPFS_MAGIC {
        return Err(violation("shared memory that is not of ordinary pages".into()));
    }
    let has = fstat(descriptor).map_err(failed)?.st_size;
    if u64::try_from(has) != Ok(bytes as u64) {
        return Err(violation(format!("shared memory of {has} bytes, expected {bytes}")));
    }
    // SAFETY: the file has this many bytes, and is sealed against shrinking.
    let mapping = unsafe { Mapping::new(descriptor, bytes, !seals.contains(SealFlags::FUTURE_WRITE)) }?;
    Ok(Arc::new(mapping))
}

/// Fails where the limit of file sizes is too low: the system would end this process by a signal.
fn check_file_limit(bytes: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes => {
            let action = format!(
                "can't make shared memory of {} KiB, files may have {} (raise the limit with ulimit -f)",
                bytes >> 10,
                limit >> 10
            );
            Err(Error::system(action, Errno::FBIG))
        }
        _ => Ok(()),
    }
}

/// The words of a segment's header that never change.
fn header_words(rank: Rank, layout: Layout) -> [(usize, u64); 4] {
    let bytes = layout.bytes() as u64;
    [(MAGIC_AT, MAGIC), (VERSION_AT, VERSION), (RANK_AT, u64::from(rank.0)), (BYTES_AT, bytes)]
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
        let others = OwnSegment::new(Rank(2), layout).unwrap();
        assert!(refusal(&others.descriptor().try_clone_to_owned().unwrap(), layout).contains("at byte 16"));
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL, SealFlags::FUTURE_WRITE] {
            assert!(
                refusal(&memfd(layout.bytes(), SEALS.difference(missing)), layout).contains("with seals")
            );
        }
        assert!(refusal(&memfd(layout.bytes(), SEALS), layout).contains("at byte 0"));
        assert!(refusal(&memfd(layout.bytes() - 4096, SEALS), layout).contains("bytes, expected"));
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(!refusal(&file, layout).is_empty());
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(refusal(&reader.into(), layout).contains("no shared memory"));
    }

    #[test]
    fn a_channel_has_the_right_size_and_seals() {
        let layout = Layout::new(2);
        let own = OwnSegment::new_channel(layout).unwrap();
        let copy = own.descriptor().try_clone_to_owned().unwrap();
        let theirs = peer_channel(Rank(3), &copy, layout).unwrap();
        own.area(0..64).word(8).store(7, Ordering::Release);
        assert_eq!((theirs.load(8), theirs.bytes()), (7, layout.channel_bytes()));
        let refusal = |descriptor: &OwnedFd, layout| match peer_channel(Rank(3), descriptor, layout) {
            Err(error @ Error::Protocol { rank: Rank(3), .. }) => error.to_string(),
            other => panic!("{:?}, expected a refusal", other.map(|area| area.bytes())),
        };
        assert!(refusal(&copy, Layout::new(256)).contains("bytes, expected"));
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let unsealed = memfd(layout.channel_bytes(), CHANNEL_SEALS.difference(missing));
            assert!(refusal(&unsealed, layout).contains("with seals"));
        }
        let sealed = memfd(layout.channel_bytes(), SEALS);
        assert!(
            matches!(peer_channel(Rank(3), &sealed, layout), Err(Error::System { .. })),
            "nobody may write it"
        );
        assert!(ftruncate(&copy, 0).is_err() && fcntl_add_seals(&copy, SealFlags::FUTURE_WRITE).is_err());
    }

    #[test]
    fn a_segment_can_not_be_written_or_resized_by_others() {
        let layout = Layout::new(2);
        let own = OwnSegment::new(Rank(0), layout).unwrap();
        let copy = own.descriptor().try_clone_to_owned().unwrap();
        assert!(ftruncate(&copy, 0).is_err() && ftruncate(&copy, 2 * layout.bytes() as u64).is_err());
        assert!(rustix::io::write(&copy, b"mine").is_err());
        assert!(fcntl_add_seals(&copy, SealFlags::WRITE).is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(&copy, punch, 0, 4096).is_err());
        // SAFETY: the file is sealed against being made shorter.
        let second = unsafe { Mapping::new(&copy, layout.bytes(), true) };
        assert!(second.is_err(), "a second mapping that writes");
    }

    #[test]
    fn access_outside_an_area_panics() {
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
