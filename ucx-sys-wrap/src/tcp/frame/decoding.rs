//! Decodes frames; every field is checked.

use super::{BYE, CREDIT, CTS, DATA, Frame, HEADER_BYTES, Header, MESSAGE, NACK, NOTICE, RTS, encode};
use crate::buffer::MAX_CONTEXTS;
use crate::limits::MAX_MESSAGE_BYTES;
use crate::one_sided::frame::{ENDED, PUT, RemoteFrame};
use crate::tcp::sizes::{PIECE_BYTES, Sizes};
use crate::transport::{Notice, Said};
use crate::{Error, MAX_PARTS, Mark, Rank, Result, Signature, Tag};

/// Decodes a valid message whose parts have at most `limit` bytes each.
///
/// A short form of [`decode`] for small messages. It gives `None` for every other frame and for invalid ones.
#[inline]
pub(in super::super) fn decode_small(bytes: &[u8; HEADER_BYTES], peer: Rank, limit: u64) -> Option<Header> {
    let (first, tag) = (word(bytes, 0), Tag(word(bytes, 8)));
    // The first word holds only the kind and the number of parts.
    let part_count = (first >> 8) as usize;
    if first as u8 != MESSAGE || part_count > MAX_PARTS || tag.source() != peer {
        return None;
    }
    let lengths = if part_count == 1 && word(bytes, 40) <= limit && (word(bytes, 48) | word(bytes, 56)) == 0 {
        Sizes::one(word(bytes, 40) as usize)
    } else {
        small_lengths(bytes, part_count, limit)?
    };
    let mut signature = Signature::default();
    signature.0.copy_from_slice(&bytes[16..32]);
    Some(Header { tag, signature, mark: Mark(word(bytes, 32)), lengths })
}

/// The lengths of the parts, if they are valid and at most `limit`.
fn small_lengths(bytes: &[u8; HEADER_BYTES], part_count: usize, limit: u64) -> Option<Sizes> {
    let mut lengths = Sizes::default();
    for part in 0..MAX_PARTS {
        match word(bytes, 40 + 8 * part) {
            length if part < part_count && length <= limit => lengths.push(length as usize),
            0 => {}
            _ => return None,
        }
    }
    Some(lengths)
}

/// Decodes a frame of `peer`.
///
/// # Errors
/// [`Error::Protocol`] for anything that [`encode`] does not make.
#[inline]
pub(in super::super) fn decode(bytes: &[u8; HEADER_BYTES], peer: Rank, world_size: u32) -> Result<Frame> {
    let refuse = |what: String| Err(Error::Protocol { rank: peer, what });
    let kind = bytes[0];
    if !(MESSAGE..=ENDED).contains(&kind) {
        return refuse(format!("a frame of kind {kind}, expected {MESSAGE} to {ENDED}"));
    }
    let tag = Tag(word(bytes, 8));
    if tag.source() != peer {
        return refuse(format!("a frame with the tag of rank {}", tag.source()));
    }
    match kind {
        MESSAGE if word(bytes, 0) >> 16 != 0 => refuse(without_meaning(bytes)),
        MESSAGE => decode_message(bytes, peer, tag).map(Frame::Message),
        RTS if word(bytes, 0) >> 16 & 0xffff != 0 => refuse(without_meaning(bytes)),
        RTS => decode_message(bytes, peer, tag).map(|header| Frame::Rts(number_of(bytes), header)),
        PUT..=ENDED => RemoteFrame::decode(bytes, peer, PIECE_BYTES as u64).map(Frame::Remote),
        _ => decode_control(bytes, peer, world_size),
    }
}

/// A frame without parts.
fn decode_control(bytes: &[u8; HEADER_BYTES], peer: Rank, world_size: u32) -> Result<Frame> {
    let refuse = |what: String| Err(Error::Protocol { rank: peer, what });
    let frame = match bytes[0] {
        NOTICE => {
            let (number, said) = (number_of(bytes), Said::decode(word(bytes, 32), world_size));
            let (context, epoch) = (number as u16, (number >> 16) as u8);
            let Some(said) = said.filter(|_| usize::from(context) < MAX_CONTEXTS) else {
                return refuse(format!("a notice of context {context} that says {:x}", word(bytes, 32)));
            };
            Frame::Notice(Notice { context, epoch, said })
        }
        CREDIT => Frame::Credit(word(bytes, 32)),
        CTS => Frame::Cts(number_of(bytes)),
        NACK => Frame::Nack(number_of(bytes)),
        DATA => Frame::Data(number_of(bytes), word(bytes, 32)),
        BYE => Frame::Bye,
        kind => return refuse(format!("a frame of kind {kind}, which is none")),
    };
    if encode(&frame, peer) != *bytes {
        return refuse(without_meaning(bytes));
    }
    Ok(frame)
}

/// The number field, which is in the same place in every frame.
fn number_of(bytes: &[u8; HEADER_BYTES]) -> u32 {
    (word(bytes, 0) >> 32) as u32
}

fn without_meaning(bytes: &[u8; HEADER_BYTES]) -> String {
    format!("a frame of kind {} with bits set that have no meaning", bytes[0])
}

fn decode_message(bytes: &[u8; HEADER_BYTES], peer: Rank, tag: Tag) -> Result<Header> {
    let refuse = |what: String| Err(Error::Protocol { rank: peer, what });
    let part_count = usize::from(bytes[1]);
    if part_count > MAX_PARTS {
        return refuse(format!("a message of {part_count} parts, expected at most {MAX_PARTS}"));
    }
    let mut lengths = Sizes::default();
    let mut room = MAX_MESSAGE_BYTES;
    for part in 0..part_count {
        let length = word(bytes, 40 + 8 * part);
        let Some(rest) = room.checked_sub(length) else {
            return refuse(format!("a part of {length} bytes, expected at most {room}"));
        };
        room = rest;
        let Ok(length) = usize::try_from(length) else {
            return refuse(format!("a part of {length} bytes, which this machine can't address"));
        };
        lengths.push(length);
    }
    if (part_count..MAX_PARTS).any(|part| word(bytes, 40 + 8 * part) != 0) {
        return refuse(without_meaning(bytes));
    }
    let mut signature = Signature::default();
    signature.0.copy_from_slice(&bytes[16..32]);
    Ok(Header { tag, signature, mark: Mark(word(bytes, 32)), lengths })
}

/// The little-endian word at `at`.
#[inline]
pub(super) fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
