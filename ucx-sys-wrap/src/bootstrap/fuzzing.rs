//! The entry point of the fuzzer for all messages of joining.

use super::choice::Capability;
use super::id::JobId;
use super::proof::{OPENING_BYTES, Opening, may_begin};
use super::wire::{Frame, HEADER_BYTES};

/// Decodes bytes as a frame, an opening, capabilities, and an identifier with the right checksum, and encodes
/// what is valid again.
pub fn bootstrap_messages(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else { return };
    if let Some(frame) = Frame::decode(kind, body) {
        let again = frame.encode();
        // Long texts are cut.
        let again = Frame::decode(again[0], &again[HEADER_BYTES..]);
        assert!(again.as_ref().is_some_and(|again| again.encode() == frame.encode()), "{frame:?}");
    }
    if let Some(bytes) = data.first_chunk::<OPENING_BYTES>()
        && let Some(opening) = Opening::decode(bytes)
    {
        assert!(may_begin(bytes) && opening.encode() == *bytes, "{opening:?}");
    }
    if let Some(bytes) = data.first_chunk().map(|bytes| JobId::sealed(*bytes))
        && let Ok(id) = JobId::from_bytes(&bytes)
    {
        assert!(id.to_bytes() == bytes, "{id:?}");
    }
    if let Some(capability) = Capability::decode(data) {
        let again = Capability::decode(&capability.encode());
        assert!(again.is_some(), "{capability:?}");
    }
}
