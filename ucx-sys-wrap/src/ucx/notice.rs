//! Notices of ranks over control connections: 40 bytes, little-endian.
//!
//! | bytes | closed, renounced | withdrawn | told |
//! | --- | --- | --- | --- |
//! | 0..4 | `brvc`, `brvr` | `brvw` | `brvt` |
//! | 4..8 | the rank that sends it | serial number of a message that its sender wants back | the rank that sends it |
//! | 8..16 | what became of its transport, as [`Closed::encode`] says; zero | its tag | why the context is closed, a kind of 1 to 4 above a rank of 32 bits, or where the sender waits: 5, the call's number of 24 bits and its digest |
//! | 16..24 | zero | zero | number of the context, 16 bits; epoch, 8 bits; zero |
//! | 24..40 | token of the rank that listens, which only ranks of the job know | the same | the same |

use super::failure_flag::{Closed, Token};
use crate::buffer::MAX_CONTEXTS;
use crate::transport::{Notice as Told, Said};
use crate::{Rank, Tag};

pub(super) const NOTICE_BYTES: usize = 40;

const CLOSED: [u8; 4] = *b"brvc";
const RENOUNCED: [u8; 4] = *b"brvr";
const WITHDRAWN: [u8; 4] = *b"brvw";
const TOLD: [u8; 4] = *b"brvt";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// This rank has closed its transport.
    Closed(Rank, Closed),
    /// This rank has given up the rank that it tells.
    Renounced(Rank),
    Withdrawn(Withdrawal),
    /// This rank has closed a context.
    Told(Rank, Told),
}

/// A message that its sender wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Withdrawal {
    pub(super) tag: Tag,
    pub(super) serial: u32,
}

/// Bytes that are no notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// They do not come from a rank of the job.
    Stranger,
    /// This rank of the job breaks the protocol.
    Peer(Rank),
}

/// The bytes of a notice on a connection to the listener with `token`.
pub(super) fn encode(notice: Notice, token: &Token) -> [u8; NOTICE_BYTES] {
    let (kind, number, value, place) = match notice {
        Notice::Closed(from, closed) => (CLOSED, from.0, closed.encode(), 0),
        Notice::Renounced(from) => (RENOUNCED, from.0, 0, 0),
        Notice::Withdrawn(Withdrawal { tag, serial }) => (WITHDRAWN, serial, tag.0, 0),
        Notice::Told(from, Told { context, epoch, said }) => {
            (TOLD, from.0, said.encode(), u64::from(context) | u64::from(epoch) << 16)
        }
    };
    let mut bytes = [0; NOTICE_BYTES];
    bytes[..4].copy_from_slice(&kind);
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes[16..24].copy_from_slice(&place.to_le_bytes());
    bytes[24..].copy_from_slice(token);
    bytes
}

/// Decodes a notice.
///
/// # Errors
/// Says who is to blame for other bytes.
pub(super) fn decode(bytes: &[u8; NOTICE_BYTES], token: &Token, world_size: u32) -> Result<Notice, Wrong> {
    let word = |range: std::ops::Range<usize>| {
        bytes[range].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (number, value, place) = (word(4..8) as u32, word(8..16), word(16..24));
    if bytes[24..] != *token {
        return Err(Wrong::Stranger);
    }
    if bytes[..4] == WITHDRAWN {
        return Ok(Notice::Withdrawn(Withdrawal { tag: Tag(value), serial: number }));
    }
    let from = Rank(number);
    if from.0 >= world_size {
        return Err(Wrong::Stranger);
    }
    let notice = match &bytes[..4] {
        kind if *kind == CLOSED => Closed::decode(value).map(|closed| Notice::Closed(from, closed)),
        kind if *kind == RENOUNCED => (value == 0).then_some(Notice::Renounced(from)),
        kind if *kind == TOLD => decode_told(value, place, world_size).map(|told| Notice::Told(from, told)),
        _ => return Err(Wrong::Stranger),
    };
    notice.ok_or(Wrong::Peer(from))
}

fn decode_told(value: u64, place: u64, world_size: u32) -> Option<Told> {
    let (context, epoch) = (place as u16, (place >> 16) as u8);
    let said = Said::decode(value, world_size)?;
    (usize::from(context) < MAX_CONTEXTS && place >> 24 == 0).then_some(Told { context, epoch, said })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;
    use crate::transport::CallDigest;

    const TOKEN: Token = [5; 16];

    fn told(context: u16, cause: Failure) -> Notice {
        Notice::Told(Rank(2), Told::closed(context, 200, cause))
    }

    #[test]
    fn notices_come_back() {
        let withdrawal = Withdrawal { tag: Tag(u64::MAX), serial: 7 };
        let waits = CallDigest { number: 0xff_ffff, digest: u32::MAX };
        for notice in [
            Notice::Closed(Rank(1), Closed::Left),
            Notice::Closed(Rank(3), Closed::Abandoned),
            Notice::Renounced(Rank(2)),
            Notice::Withdrawn(withdrawal),
            told(0, Failure::PeerLost(Rank(0))),
            told(1023, Failure::Aborted(Rank(3))),
            told(7, Failure::TimedOut(Rank(2))),
            told(8, Failure::Differs(Rank(1))),
            Notice::Told(Rank(2), Told { context: 9, epoch: 255, said: Said::Waits(waits) }),
        ] {
            let bytes = encode(notice, &TOKEN);
            assert_eq!(decode(&bytes, &TOKEN, 4), Ok(notice));
            assert_eq!(decode(&bytes, &[6; 16], 4), Err(Wrong::Stranger), "the token of another rank");
        }
        assert_eq!(decode(&[5; NOTICE_BYTES], &TOKEN, 3), Err(Wrong::Stranger));
    }

    /// A rank of the job is named if what it tells can't be.
    #[test]
    fn whoever_tells_what_no_rank_tells_is_named() {
        let named = Err(Wrong::Peer(Rank(2)));
        for notice in [told(1024, Failure::Aborted(Rank(1))), told(0, Failure::PeerLost(Rank(4)))] {
            assert_eq!(decode(&encode(notice, &TOKEN), &TOKEN, 4), named, "{notice:?}");
        }
        let mut unknown = encode(told(1, Failure::Aborted(Rank(1))), &TOKEN);
        for (place, kind) in [(12, 0), (12, 6), (15, 1), (15, 6), (19, 1)] {
            let before = std::mem::replace(&mut unknown[place], kind);
            assert_eq!(decode(&unknown, &TOKEN, 4), named, "byte {place} is {kind}");
            unknown[place] = before;
        }
        let mut closed = encode(Notice::Closed(Rank(2), Closed::Left), &TOKEN);
        closed[12] = 9;
        assert_eq!(decode(&closed, &TOKEN, 4), named);
        let outside = encode(Notice::Closed(Rank(4), Closed::Left), &TOKEN);
        assert_eq!(decode(&outside, &TOKEN, 4), Err(Wrong::Stranger));
    }
}
