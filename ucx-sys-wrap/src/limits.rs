//! How much one rank may send another unasked: over sockets, and over the memory that ranks of a host share.

use crate::transport::SendParts;
use crate::{Error, Rank, Result};

/// The most payload that one message may have, in bytes (1 TiB): a longer announcement is no message.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

/// Messages may be sent without asking up to this many bytes a peer that it has not received, as `cost`
/// counts them.
pub const CREDIT_BYTES: u64 = 64 << 20;

/// A message of more payload than this is always offered, in bytes.
pub const MAX_EAGER_BYTES: usize = 1 << 20;

/// Offers that wait for their grant, at most.
pub(crate) const MAX_OFFERS: usize = 1 << 20;

/// What a message that is sent without asking counts for: its payload, and 128 bytes for itself.
#[inline]
pub(crate) fn cost(payload_bytes: usize) -> u64 {
    payload_bytes as u64 + 128
}

/// Refuses a message of more than [`MAX_MESSAGE_BYTES`], naming the first part that is too much.
#[inline]
pub(crate) fn check_length(own: Rank, parts: &SendParts) -> Result<()> {
    let total = parts.iter().fold(0u64, |total, part| total.saturating_add(part.len() as u64));
    if total <= MAX_MESSAGE_BYTES {
        return Ok(());
    }
    let mut room = MAX_MESSAGE_BYTES;
    for (part, lease) in parts.iter().enumerate() {
        let sent = lease.len() as u64;
        let capacity = usize::try_from(room).unwrap_or(usize::MAX);
        room = room.checked_sub(sent).ok_or(Error::TooLong { rank: own, part, sent, capacity })?;
    }
    Ok(())
}
