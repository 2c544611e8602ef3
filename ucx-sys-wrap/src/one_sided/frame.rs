//! What ranks tell each other of puts and gets that the owner of the memory carries out: on `tcp` the header
//! of a frame, on `ucx` that of a message.
//!
//! | bytes | put (10) | get (11) | bytes (12) | ended (13) |
//! | --- | --- | --- | --- | --- |
//! | 0 | kind | kind | kind | kind |
//! | 1 | 0 | 0 | 0 | 0 done, 1 no such region, 2 not inside the region |
//! | 2..4 | 0 | 0 | 0 | 0 |
//! | 4..8 | number of the operation, the requester's | same | same | same |
//! | 8..16 | tag, source only | same | same | same |
//! | 16..32 | random bytes of the key | same | 0 | 0 |
//! | 32..40 | offset | offset | 0 | 0 |
//! | 40..48 | bytes that follow | bytes wanted | bytes that follow | 0 |
//! | 48..56 | number of the region | same | 0 | 0 |
//! | 56..64 | 0 | 0 | 0 | 0 |
//!
//! Each frame of a put is answered by *ended*. A get is answered by *bytes*, in order, until all have come,
//! or by *ended* when they can't be had. How many bytes follow a frame at most is up to the transport.

use super::{Nonce, RegionKey};
use crate::limits::MAX_MESSAGE_BYTES;
use crate::{Error, Rank, Result, Tag};

/// Bytes of a frame.
pub(crate) const FRAME_BYTES: usize = 64;

pub(crate) const PUT: u8 = 10;
const GET: u8 = 11;
const BYTES: u8 = 12;
pub(crate) const ENDED: u8 = 13;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoteFrame {
    /// These bytes, which follow, are for the receiver's memory.
    Put(u32, Place, usize),
    /// So many bytes of the receiver's memory are wanted.
    Get(u32, Place, u64),
    /// What a get wanted, or some of it, follows.
    Bytes(u32, usize),
    /// A frame of a put is carried out, or not; or a get is not.
    Ended(u32, Outcome),
}

/// Where in the receiver's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: u64,
    pub(crate) nonce: Nonce,
    pub(crate) offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    NoSuchRegion,
    OutOfRegion,
}

/// What an operation is for: where it begins, its bytes, and those of the region as the key has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) region_bytes: u64,
}

impl Place {
    /// The place behind `offset` bytes of the region.
    pub(crate) fn of(key: &RegionKey, offset: u64) -> Self {
        Self { region: key.number, nonce: key.nonce, offset }
    }
}

impl Outcome {
    /// What it means for an operation on memory of `rank`.
    pub(crate) fn result(self, rank: Rank, Extent { offset, bytes, region_bytes }: Extent) -> Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::NoSuchRegion => Err(Error::NoSuchRegion { rank }),
            Self::OutOfRegion => Err(Error::OutOfRegion { rank, offset, bytes, region_bytes }),
        }
    }
}

impl RemoteFrame {
    /// The bytes of the frame as `source` sends it.
    pub(crate) fn encode(&self, source: Rank) -> [u8; FRAME_BYTES] {
        let (kind, number, place, length) = match self {
            Self::Put(number, place, length) => (PUT, number, Some(place), *length as u64),
            Self::Get(number, place, length) => (GET, number, Some(place), *length),
            Self::Bytes(number, length) => (BYTES, number, None, *length as u64),
            Self::Ended(number, _) => (ENDED, number, None, 0),
        };
        let mut bytes = [0; FRAME_BYTES];
        bytes[0] = kind;
        if let Self::Ended(_, outcome) = self {
            bytes[1] = *outcome as u8;
        }
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&Tag::new(source, 0, 0, 0).0.to_le_bytes());
        bytes[40..48].copy_from_slice(&length.to_le_bytes());
        if let Some(Place { region, nonce, offset }) = place {
            bytes[16..32].copy_from_slice(nonce);
            bytes[32..40].copy_from_slice(&offset.to_le_bytes());
            bytes[48..56].copy_from_slice(&region.to_le_bytes());
        }
        bytes
    }

    /// The frame that `peer` sent as `bytes`, whose kind is one of these four, where at most `most_bytes`
    /// follow one.
    ///
    /// # Errors
    /// [`Error::Protocol`] for anything that [`encode`](Self::encode) does not make.
    pub(crate) fn decode(bytes: &[u8; FRAME_BYTES], peer: Rank, most_bytes: u64) -> Result<Self> {
        let refuse = |what: String| Err(Error::Protocol { rank: peer, what });
        let number = |at: usize| bytemuck::pod_read_unaligned::<u64>(&bytes[at..at + 8]).to_le();
        let (operation, length) = ((number(0) >> 32) as u32, number(40));
        let most = if bytes[0] == GET { MAX_MESSAGE_BYTES } else { most_bytes };
        if length > most {
            return refuse(format!("a put or get of {length} bytes, expected at most {most}"));
        }
        let mut nonce = Nonce::default();
        nonce.copy_from_slice(&bytes[16..32]);
        let place = Place { region: number(48), nonce, offset: number(32) };
        let frame = match (bytes[0], bytes[1]) {
            (PUT, _) => Self::Put(operation, place, length as usize),
            (GET, _) => Self::Get(operation, place, length),
            (BYTES, _) => Self::Bytes(operation, length as usize),
            (_, 0) => Self::Ended(operation, Outcome::Done),
            (_, 1) => Self::Ended(operation, Outcome::NoSuchRegion),
            _ => Self::Ended(operation, Outcome::OutOfRegion),
        };
        if frame.encode(peer) != *bytes {
            return refuse(format!("a frame of kind {} with bits set that have no meaning", bytes[0]));
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST_BYTES: usize = 512 << 10;

    fn decode(bytes: &[u8; FRAME_BYTES], peer: Rank) -> Result<RemoteFrame> {
        RemoteFrame::decode(bytes, peer, MOST_BYTES as u64)
    }

    const PLACE: Place = Place { region: 5, nonce: [9; 16], offset: 1 << 33 };

    #[test]
    fn the_bytes_of_a_put_are_these() {
        let bytes = RemoteFrame::Put(7, PLACE, 300).encode(Rank(3));
        assert_eq!(bytes[..8], [10, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[8..16], Tag::new(Rank(3), 0, 0, 0).0.to_le_bytes());
        assert_eq!(bytes[16..32], [9; 16]);
        assert_eq!(bytes[32..40], (1u64 << 33).to_le_bytes());
        assert_eq!(bytes[40..48], 300u64.to_le_bytes());
        assert_eq!(bytes[48..56], 5u64.to_le_bytes());
        assert_eq!(bytes[56..], [0; 8]);
    }

    #[test]
    fn frames_come_back() {
        for frame in [
            RemoteFrame::Put(u32::MAX, PLACE, MOST_BYTES),
            RemoteFrame::Get(1, PLACE, MAX_MESSAGE_BYTES),
            RemoteFrame::Bytes(2, 0),
            RemoteFrame::Ended(3, Outcome::Done),
            RemoteFrame::Ended(3, Outcome::NoSuchRegion),
            RemoteFrame::Ended(3, Outcome::OutOfRegion),
        ] {
            assert_eq!(decode(&frame.encode(Rank(3)), Rank(3)).unwrap(), frame);
        }
    }

    #[test]
    fn what_is_too_long_or_has_no_meaning_is_refused() {
        let put = RemoteFrame::Put(1, PLACE, MOST_BYTES).encode(Rank(3));
        for (at, value) in [(40, 1u8), (47, 1), (1, 1), (2, 1), (15, 0x80), (56, 1)] {
            let mut bytes = put;
            bytes[at] |= value;
            assert!(matches!(decode(&bytes, Rank(3)), Err(Error::Protocol { .. })), "{at}");
        }
        let mut ended = RemoteFrame::Ended(1, Outcome::Done).encode(Rank(3));
        ended[1] = 3;
        assert!(decode(&ended, Rank(3)).is_err());
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            mut bytes in any::<[u8; FRAME_BYTES]>(),
            kind in PUT..=ENDED,
            outcome in 0u8..4,
            sparse in any::<bool>(),
        ) {
            (bytes[0], bytes[1]) = (kind, outcome);
            if sparse {
                bytes[2..4].fill(0);
                bytes[8..14].fill(0);
                bytes[16..40].fill(0);
                bytes[42..].fill(0);
            }
            let peer = Tag(u64::from_le_bytes(bytes[8..16].try_into().unwrap())).source();
            if let Ok(frame) = decode(&bytes, peer) {
                prop_assert_eq!(frame.encode(peer), bytes);
            }
        }
    }
}
