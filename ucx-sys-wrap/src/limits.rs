//! Limits of what one rank may send another before it is asked to, over sockets and shared memory.

use crate::transport::SendParts;
use crate::{Error, Rank, Result};

/// The most payload of one message, in bytes (1 TiB). A longer announcement is a protocol error.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

/// The eager credit: the most bytes (by `cost`) of eager messages that a peer has not received yet.
pub const CREDIT_BYTES: u64 = 64 << 20;

/// Messages with more payload than this, in bytes, are always sent by rendezvous.
pub const MAX_EAGER_BYTES: usize = 1 << 20;

/// The most RTS messages that wait for their CTS.
pub(crate) const MAX_OFFERS: usize = 1 << 20;

/// The credit that an eager message takes: its payload and 128 bytes of overhead.
#[inline]
pub(crate) fn cost(payload_bytes: usize) -> u64 {
    payload_bytes as u64 + 128
}

/// Refuses a message of more than [`MAX_MESSAGE_BYTES`], naming the part that exceeds it.
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
