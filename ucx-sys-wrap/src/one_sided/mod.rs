//! What every transport does on memory that a rank has registered: peers write and read it without its taking
//! part.

pub(crate) mod frame;
mod regions;
pub(crate) mod requests;

use std::collections::BTreeSet;
use std::fmt;

pub(crate) use regions::Regions;

use crate::memory::RegionMemory;
use crate::transport::{Posted, RecvParts, SendParts, count_copy};
use crate::{Error, Rank, Result, Statistics};

/// A posted put, get or flush, until [`OneSided::test_access`] has reported its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessId(pub u64);

/// The parts of a put, which are written one after another to the peer's memory, or of a get, which are
/// filled one after another from there.
#[derive(Debug)]
pub enum AccessParts {
    /// To be written.
    Put(SendParts),
    /// To be filled.
    Get(RecvParts),
}

impl AccessParts {
    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Put(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            Self::Get(parts) => parts.iter().map(|part| part.len() as u64).sum(),
        }
    }

    /// Copies them into or out of memory of this process, from an offset on where all of them fit.
    pub(crate) fn copy(&mut self, (memory, mut offset): (&RegionMemory, usize), statistics: &mut Statistics) {
        match self {
            Self::Put(parts) => {
                for part in parts {
                    // The copy that a put is.
                    memory.write(offset, part.bytes());
                    offset += part.len();
                    count_copy(statistics, part.len());
                }
            }
            Self::Get(parts) => {
                for part in parts {
                    // The copy that a get is.
                    memory.read(offset, part.bytes_mut());
                    offset += part.len();
                    count_copy(statistics, part.len());
                }
            }
        }
    }
}

/// Names one registration of memory by one rank; peers that hold it can put to and get from that memory.
///
/// It is made by [`Region::key`](crate::buffer::Region::key), travels in ordinary messages as bytes, and is
/// opened by [`RemoteRegion::open`](crate::buffer::RemoteRegion::open). 16 of its bytes are drawn at random
/// for each registration, so that it can't be guessed, and a key that outlives its registration names
/// nothing.
///
/// As bytes, little-endian: the letters `brvk`; version, 4 bytes; owner, 4; zero, 4; number of the region, 8;
/// random bytes, 16; bytes of memory, 8; then what the transport adds, to the end.
#[derive(Clone, PartialEq, Eq)]
pub struct RegionKey {
    pub(crate) owner: Rank,
    pub(crate) number: u64,
    pub(crate) nonce: Nonce,
    pub(crate) length: u64,
    /// What the transport adds.
    pub(crate) native: Vec<u8>,
}

/// What makes the key of one registration differ from any other.
pub(crate) type Nonce = [u8; 16];

const MAGIC: [u8; 4] = *b"brvk";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 48;

/// More than any transport adds, in bytes.
const MAX_NATIVE_BYTES: usize = 16 << 10;

impl RegionKey {
    /// A key with fresh random bytes.
    pub(crate) fn new(owner: Rank, number: u64, length: usize) -> Result<Self> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce)
            .map_err(|error| Error::system("can't draw a key", std::io::Error::other(error)))?;
        Ok(Self { owner, number, nonce, length: length as u64, native: Vec::new() })
    }

    /// The rank whose memory it is.
    #[must_use]
    pub fn owner(&self) -> Rank {
        self.owner
    }

    /// Bytes of memory.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.length
    }

    /// The key as bytes, to be sent to peers.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.native.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.owner.0.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.extend_from_slice(&self.native);
        bytes
    }

    /// The key that `peer` has sent as `bytes`: a key of its own memory.
    ///
    /// # Errors
    /// [`Error::Protocol`] for anything that [`to_bytes`](Self::to_bytes) does not make, and for the key of
    /// another rank.
    pub fn from_bytes(bytes: &[u8], peer: Rank) -> Result<Self> {
        let refuse = |what: String| Err(Error::Protocol { rank: peer, what });
        let Some((fixed, native)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
            return refuse(format!("{} bytes of key, expected at least {FIXED_BYTES}", bytes.len()));
        };
        let word = |at: usize| bytemuck::pod_read_unaligned::<u64>(&fixed[at..at + 8]).to_le();
        if fixed[..4] != MAGIC || word(0) >> 32 != u64::from(VERSION) || word(8) >> 32 != 0 {
            return refuse("bytes that are no key of this version".into());
        }
        let owner = Rank(word(8) as u32);
        if owner != peer {
            return refuse(format!("a key of rank {owner}, expected its own"));
        }
        if native.len() > MAX_NATIVE_BYTES || usize::try_from(word(40)).is_err() {
            return refuse(format!("a key of {} bytes for {} bytes of memory", bytes.len(), word(40)));
        }
        let mut nonce = Nonce::default();
        nonce.copy_from_slice(&fixed[24..40]);
        Ok(Self { owner, number: word(16), nonce, length: word(40), native: native.to_vec() })
    }

    /// Refuses a key that another transport has made, for transports that add nothing.
    pub(crate) fn check_plain(&self) -> Result<()> {
        if self.native.is_empty() {
            return Ok(());
        }
        let what = format!("a key with {} bytes for another transport", self.native.len());
        Err(Error::Protocol { rank: self.owner, what })
    }

    /// Refuses an access that does not lie inside the region, as a put or get at `owner` of `bytes` bytes at
    /// `offset`.
    pub(crate) fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.length);
        if inside {
            return Ok(());
        }
        Err(Error::OutOfRegion { rank: self.owner, offset, bytes, region_bytes: self.length })
    }
}

/// Without the random bytes, which are a secret.
impl fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionKey({} bytes of rank {})", self.length, self.owner)
    }
}

/// A peer's memory as the transport knows it.
#[derive(Debug)]
pub struct Remote {
    pub(crate) key: RegionKey,
    /// The number that the transport has given to it.
    pub(crate) number: u64,
}

/// Puts and gets; entered as [`Transport`](crate::Transport) is, under the same promise: an operation that
/// has ended touches its caller's memory no more, and until then it does not end, whatever is done.
///
/// A region's own memory is another matter: peers touch it whenever they like. It reaches a transport as
/// [`RegionMemory`], to which nobody has a reference while others may reach it.
pub trait OneSided {
    /// Lets peers that hold the key access `memory` from now on.
    ///
    /// # Errors
    /// When the transport is closed, or the memory can't be registered.
    fn expose(&mut self, memory: RegionMemory) -> Result<RegionKey>;

    /// Allocates and exposes memory of zeroes that peers reach best, if this transport has such memory; it is
    /// the transport's, and is never freed.
    ///
    /// # Errors
    /// As for [`expose`](Self::expose).
    fn allocate(&mut self, length: usize) -> Result<Option<(RegionMemory, RegionKey)>> {
        let _ = length;
        Ok(None)
    }

    /// Ends that. Says whether nothing touches the memory any more; else the transport keeps it for ever.
    fn conceal(&mut self, key: &RegionKey) -> bool;

    /// Gets ready to access a peer's memory; gives a number for it.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a key that is not of this transport; when the transport is closed.
    fn attach(&mut self, key: &RegionKey) -> Result<u64> {
        key.check_plain().map(|()| 0)
    }

    /// Forgets what [`attach`](Self::attach) has made; operations that are under way go on.
    fn detach(&mut self, remote: &Remote) {
        let _ = remote;
    }

    /// Puts or gets, from byte `offset` of the peer's memory on.
    fn post_access(&mut self, remote: &Remote, offset: u64, parts: AccessParts) -> PostedAccess;

    /// Ends when all puts to `to` that were posted before have reached its memory.
    fn post_flush(&mut self, to: Rank) -> PostedAccess;

    /// Asks whether an operation has ended: its leases are dropped then, and the id is no longer valid.
    fn test_access(&mut self, id: AccessId) -> Option<Result<()>>;

    /// Asks an operation to end early; any part of a put may have been written, or may yet be. It must still
    /// be tested.
    fn cancel_access(&mut self, id: AccessId);
}

/// An operation that was posted, or has ended at once.
pub type PostedAccess = Posted<AccessId, Result<()>>;

/// Which of the puts to one peer have ended; they end in any order.
#[derive(Debug, Default)]
pub(crate) struct PutOrder {
    next: u64,
    open: BTreeSet<u64>,
}

impl PutOrder {
    /// The place of the next put.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// A put begins; gives its place.
    pub(crate) fn begin(&mut self) -> u64 {
        self.open.insert(self.next);
        self.next += 1;
        self.next - 1
    }

    /// The put of this place has ended.
    pub(crate) fn end(&mut self, place: u64) {
        self.open.remove(&place);
    }

    /// Whether all puts before this place have ended.
    pub(crate) fn has_reached(&self, place: u64) -> bool {
        self.open.first().is_none_or(|first| *first >= place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_comes_back_and_no_two_are_equal() {
        let key = RegionKey { native: vec![1, 2, 3], ..RegionKey::new(Rank(3), 7, 100).unwrap() };
        assert_eq!(RegionKey::from_bytes(&key.to_bytes(), Rank(3)).unwrap(), key);
        assert_ne!(RegionKey::new(Rank(3), 7, 100).unwrap().nonce, key.nonce);
        assert!(!format!("{key:?}").contains(&format!("{:?}", key.nonce)));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let bytes = RegionKey::new(Rank(3), 7, 100).unwrap().to_bytes();
        let change = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            RegionKey::from_bytes(&bytes, Rank(3))
        };
        for at in [0, 3, 4, 8, 12, 15] {
            assert!(matches!(change(at), Err(Error::Protocol { rank: Rank(3), .. })), "{at}");
        }
        assert!(RegionKey::from_bytes(&bytes[..47], Rank(3)).is_err());
        assert!(RegionKey::from_bytes(&bytes, Rank(2)).is_err());
        assert!(RegionKey::from_bytes(&[&bytes[..], &[0; MAX_NATIVE_BYTES + 1]].concat(), Rank(3)).is_err());
    }

    #[test]
    fn a_flush_waits_for_the_puts_before_it() {
        let mut order = PutOrder::default();
        assert!(order.has_reached(order.next()));
        let [first, second] = [order.begin(), order.begin()];
        let flush = order.next();
        let third = order.begin();
        order.end(second);
        assert!(!order.has_reached(flush));
        order.end(first);
        assert!(order.has_reached(flush) && !order.has_reached(order.next()));
        order.end(third);
        assert!(order.has_reached(order.next()));
    }

    #[test]
    fn only_what_lies_inside_is_allowed() {
        let key = RegionKey::new(Rank(1), 0, 100).unwrap();
        for (offset, bytes, allowed) in [
            (0, 100, true),
            (100, 0, true),
            (99, 1, true),
            (99, 2, false),
            (101, 0, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(key.check(offset, bytes).is_ok(), allowed, "{bytes} at {offset}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_key_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let with_magic = [&b"brvk\x01\0\0\0\x03\0\0\0\0\0\0\0"[..], &bytes].concat();
            for bytes in [bytes, with_magic] {
                if let Ok(key) = RegionKey::from_bytes(&bytes, Rank(3)) {
                    prop_assert_eq!(key.to_bytes(), bytes);
                }
            }
        }
    }
}
