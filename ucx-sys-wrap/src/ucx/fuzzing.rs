//! What ranks over UCX tell each other: cards, headers and notices.

use super::card::Card;
use super::header::Header;
use super::inbox::Inbox;
use super::notice::{NOTICE_BYTES, decode, encode};
use super::payload::Payload;
use crate::Rank;

/// Reads bytes as a card, as a message and a piece, and as a notice; cards and notices that are understood are written
/// again. Of a message, the first byte says how long the header is.
pub fn ucx_cards(data: &[u8]) {
    if let Ok(card) = Card::decode(data, Rank(1), (1, 13)) {
        assert!(Card::decode(&card.encode(), Rank(1), (1, 13)).is_ok_and(|again| again == card), "{card:?}");
    }
    if let Some((&length, rest)) = data.split_first() {
        let (header, payload) = rest.split_at(rest.len().min(length.into()));
        if let Ok((decoded, inline)) = Header::decode(header, payload.len()) {
            assert!(inline.len() <= header.len(), "{decoded:?}");
            assert!(decoded.pieces().all(|part| part < decoded.lengths.len()), "{decoded:?}");
        }
        let mut inbox = Inbox::new(Rank(0), 4);
        for _ in 0..2 {
            inbox.message(header, Payload::Here(payload));
            inbox.piece(header, Payload::Here(payload));
        }
    }
    if let Some(bytes) = data.first_chunk::<NOTICE_BYTES>() {
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[16..]);
        if let Some(notice) = decode(bytes, &token, 4) {
            assert!(decode(&encode(notice, &token), &token, 4) == Some(notice), "{notice:?}");
        }
    }
}
