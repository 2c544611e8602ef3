//! Notices of ranks over control connections: 32 bytes, little-endian.
//!
//! | bytes | closed | withdrawn |
//! | --- | --- | --- |
//! | 0..4 | `brvc` | `brvw` |
//! | 4..8 | zero | serial number of a message that its sender wants back |
//! | 8..16 | why, as [`Closed::encode`] says | its tag |
//! | 16..32 | token of the rank that listens, which only ranks of the job know | the same |

use super::failure_flag::{Closed, Token};
use crate::Tag;

pub(super) const NOTICE_BYTES: usize = 32;

const CLOSED: [u8; 4] = *b"brvc";
const WITHDRAWN: [u8; 4] = *b"brvw";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Closed(Closed),
    Withdrawn(Withdrawal),
}

/// A message that its sender wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Withdrawal {
    pub(super) tag: Tag,
    pub(super) serial: u32,
}

/// The bytes of a notice on a connection to the listener with `token`.
pub(super) fn encode(notice: Notice, token: &Token) -> [u8; NOTICE_BYTES] {
    let (kind, serial, value) = match notice {
        Notice::Closed(closed) => (CLOSED, 0, closed.encode()),
        Notice::Withdrawn(Withdrawal { tag, serial }) => (WITHDRAWN, serial, tag.0),
    };
    let mut bytes = [0; NOTICE_BYTES];
    bytes[..4].copy_from_slice(&kind);
    bytes[4..8].copy_from_slice(&serial.to_le_bytes());
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes[16..].copy_from_slice(token);
    bytes
}

/// Decodes a notice; `None` for other bytes, or another job's token.
pub(super) fn decode(bytes: &[u8; NOTICE_BYTES], token: &Token, world_size: u32) -> Option<Notice> {
    let number = |range: std::ops::Range<usize>| {
        bytes[range].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    if bytes[16..] != *token {
        return None;
    }
    match (&bytes[..4], number(4..8) as u32, number(8..16)) {
        (kind, 0, closed) if kind == CLOSED => Closed::decode(closed, world_size).map(Notice::Closed),
        (kind, serial, tag) if kind == WITHDRAWN => {
            Some(Notice::Withdrawn(Withdrawal { tag: Tag(tag), serial }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, Rank};

    #[test]
    fn notices_come_back() {
        let failed = Closed::Failed(Failure::Aborted(Rank(3)));
        let withdrawal = Withdrawal { tag: Tag(u64::MAX), serial: 7 };
        for notice in [Notice::Closed(Closed::Left), Notice::Closed(failed), Notice::Withdrawn(withdrawal)] {
            let bytes = encode(notice, &[5; 16]);
            assert_eq!(decode(&bytes, &[5; 16], 4), Some(notice));
            assert_eq!(decode(&bytes, &[6; 16], 4), None, "the token of another rank");
        }
        assert_eq!(
            decode(&encode(Notice::Closed(failed), &[5; 16]), &[5; 16], 3),
            None,
            "a rank outside the world"
        );
        assert_eq!(decode(&[5; 32], &[5; 16], 3), None);
    }
}
