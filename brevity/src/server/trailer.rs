//! The 48 bytes at the end of every message between a worker and a shard.
//!
//! | offset | bytes | |
//! | --- | --- | --- |
//! | 0 | 2 | `0xb7`, `0x53` |
//! | 2 | 1 | version, now 1 |
//! | 3 | 1 | [kind](Kind) |
//! | 4 | 4 | number of the shard |
//! | 8 | 8 | step: of a push its number, counted from 1; of a fetch the last number; of a reply the last one that the shard has applied |
//! | 16 | 8 | clock: the pushes of all workers that the shard has applied; of a fetch the digest of what the worker has built |
//! | 24 | 8 | the last step of this worker that is in a saved state of the shard |
//! | 32 | 8 | lag: the pushes of others between the last answer and this push |
//! | 40 | 4 | the rate, an f32; of a reply 0 |
//! | 44 | 4 | 0 |
//!
//! All numbers are little-endian. What comes before is a sparse vector as `brevity_compress::codec` writes
//! it, or dense values of 4 bytes, or a text.

/// The length of a trailer.
pub const TRAILER_BYTES: usize = 48;

const MAGIC: [u8; 3] = [0xb7, 0x53, 1];

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A worker asks for the whole shard.
    Fetch = 1,
    /// Gradients.
    Push = 2,
    /// A worker asks for what it is owed, without a push.
    Pull = 3,
    /// A worker has left, and waits for no reply.
    Leave = 4,
    /// A worker is about to leave: it wants the answer to its last push now, and is waited for no longer.
    Finish = 5,
    /// The whole shard.
    Model = 16,
    /// Some of what the worker is owed.
    Answer = 17,
    /// Why a request was refused.
    Refused = 18,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Fetch,
        Self::Push,
        Self::Pull,
        Self::Leave,
        Self::Finish,
        Self::Model,
        Self::Answer,
        Self::Refused,
    ];
}

/// The end of a message; see the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trailer {
    /// What the message is.
    pub kind: Kind,
    /// The number of the shard.
    pub shard: u32,
    /// See the table, here and below.
    pub step: u64,
    /// Pushes of all workers.
    pub clock: u64,
    /// The last step that is in a saved state.
    pub saved: u64,
    /// Pushes of others.
    pub lag: u64,
    /// The learning rate.
    pub rate: f32,
}

impl Trailer {
    /// A trailer with zeros in all other places.
    pub fn new(kind: Kind, shard: usize, step: u64) -> Self {
        Self { kind, shard: shard as u32, step, clock: 0, saved: 0, lag: 0, rate: 0.0 }
    }

    /// Appends the trailer to a message.
    pub fn end(&self, message: &mut Vec<u8>) {
        message.extend_from_slice(&MAGIC);
        message.push(self.kind as u8);
        message.extend_from_slice(&self.shard.to_le_bytes());
        for number in [self.step, self.clock, self.saved, self.lag] {
            message.extend_from_slice(&number.to_le_bytes());
        }
        message.extend_from_slice(&self.rate.to_le_bytes());
        message.extend_from_slice(&[0; 4]);
    }

    /// Splits a message of another rank.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn split(message: &[u8]) -> Result<(&[u8], Self), String> {
        let Some((payload, bytes)) = message.split_last_chunk::<TRAILER_BYTES>() else {
            return Err(format!("a message of {} bytes, expected at least {TRAILER_BYTES}", message.len()));
        };
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[3]);
        let Some(kind) = kind.filter(|_| bytes[..3] == MAGIC && bytes[44..] == [0; 4]) else {
            return Err("a message that no worker or server of this version sends".into());
        };
        let (shard, rate) = (number(4) as u32, f32::from_bits(number(40) as u32));
        Ok((
            payload,
            Self {
                kind,
                shard,
                step: number(8),
                clock: number(16),
                saved: number(24),
                lag: number(32),
                rate,
            },
        ))
    }
}

/// Dense values as bytes.
pub(super) fn write_dense(values: &[f32], message: &mut Vec<u8>) {
    message.clear();
    message.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Reads dense values.
///
/// # Errors
/// If there are not as many, or one is not finite, or without memory.
pub(super) fn read_dense(bytes: &[u8], values: &mut Vec<f32>, expected: usize) -> Result<(), String> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    if chunks.len() != expected || !rest.is_empty() {
        return Err(format!("{} bytes of dense values, expected {}", bytes.len(), 4 * expected));
    }
    values.clear();
    values.try_reserve(expected).map_err(|_| format!("no room for {expected} values"))?;
    values.extend(chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(format!("the value {} at element {index}", values[index])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailer_is_read_as_it_was_written() {
        for kind in Kind::ALL {
            let trailer =
                Trailer { kind, shard: 7, step: 1 << 40, clock: 3, saved: 2, lag: u64::MAX, rate: 0.5 };
            let mut message = b"payload".to_vec();
            trailer.end(&mut message);
            assert_eq!(message.len(), 7 + TRAILER_BYTES);
            assert_eq!(Trailer::split(&message), Ok((&b"payload"[..], trailer)));
            for byte in [7, 8, 9, 10, 54] {
                let mut damaged = message.clone();
                damaged[byte] ^= 0x40;
                assert!(Trailer::split(&damaged).is_err(), "byte {byte}");
            }
            assert!(Trailer::split(&message[..TRAILER_BYTES - 1]).is_err());
        }
    }

    #[test]
    fn dense_values_are_counted_and_finite() {
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        write_dense(&[1.0, -2.5], &mut bytes);
        assert!(read_dense(&bytes, &mut values, 2).is_ok() && values == [1.0, -2.5]);
        for count in [0, 1, 3] {
            assert!(read_dense(&bytes, &mut values, count).is_err());
        }
        assert!(read_dense(&bytes[..7], &mut values, 2).is_err());
        write_dense(&[1.0, f32::NAN], &mut bytes);
        assert!(read_dense(&bytes, &mut values, 2).unwrap_err().contains("element 1"));
    }
}
