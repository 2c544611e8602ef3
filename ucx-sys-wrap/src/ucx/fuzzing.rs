//! What ranks over UCX tell each other: cards, headers and notices.

use super::card::Card;
use super::header::{HEADER_BYTES, Header};
use super::notice::{NOTICE_BYTES, decode, encode};
use crate::{Rank, Tag};

/// Reads bytes as a card, as a message under its own tag, and as a notice; what is understood is written again.
pub fn ucx_cards(data: &[u8]) {
    if let Ok(card) = Card::decode(data, Rank(1), (1, 13)) {
        assert!(Card::decode(&card.encode(), Rank(1), (1, 13)).is_ok_and(|again| again == card), "{card:?}");
    }
    let tag = data.get(8..16).map_or(0, |bytes| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    if let Ok((header, payload)) = Header::decode(data, Rank(1), Tag(tag)) {
        assert!(
            header.encode()[..] == data[..HEADER_BYTES] && payload.len() + HEADER_BYTES == data.len(),
            "{header:?}"
        );
    }
    if let Some(bytes) = data.first_chunk::<NOTICE_BYTES>() {
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[16..]);
        if let Some(notice) = decode(bytes, &token, 4) {
            assert!(decode(&encode(notice, &token), &token, 4) == Some(notice), "{notice:?}");
        }
    }
}
