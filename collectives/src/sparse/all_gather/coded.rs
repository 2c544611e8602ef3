//! Coded messages of unequal lengths, joined, in messages of two parts: the bytes of each block (`u64`), then
//! the blocks.

use brevity_compress::SparseVec;
use brevity_compress::codec;
use brevity_compress::quantise::Values;

use super::Turn;
use super::filling::Filling;
use crate::call::Call;
use crate::error::Result;

/// What the messages of all ranks agree on.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) dim: usize,
    /// The largest number of entries.
    pub(super) limit: usize,
    pub(super) values: Values,
}

impl Room {
    /// The largest number of bytes of a message.
    fn most_bytes(self) -> usize {
        codec::most_bytes(self.dim, self.limit, self.values)
    }
}

/// The gathered messages, joined: this rank's first, then those of its successors.
pub(super) struct Gathered {
    room: Room,
    lengths: Filling<u64>,
    bytes: Filling<u8>,
}

impl Gathered {
    /// Pages that no message fills stay untouched.
    pub(super) fn new(call: &Call<'_, '_>, own: &[u8], room: Room) -> Result<Self> {
        let blocks = call.world_size() as usize;
        let most = room.most_bytes().max(own.len()).saturating_mul(blocks);
        Ok(Self {
            room,
            lengths: Filling::new(&[own.len() as u64], call.zeros(blocks)?),
            bytes: Filling::new(own, call.zeros(most)?),
        })
    }

    /// Sends the first messages and appends as many.
    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, turn: Turn) -> Result<()> {
        let Turn { round, to, from, blocks } = turn;
        let most = self.room.most_bytes();
        let own = self.lengths.filled[..blocks].iter().map(|&length| length as usize).sum();
        let going = (self.lengths.lend(blocks), self.bytes.lend(own));
        let place = (self.lengths.room(blocks), self.bytes.room(blocks * most));
        let sending = call.send(to, round, going);
        let ((lengths, bytes), parts) = call.recv_up_to(from, round, place).await?;
        let arrived = check(&lengths, &parts, most).map_err(|what| call.refuse(from, what))?;
        let (sent_lengths, sent_bytes) = sending.await?;
        self.lengths.restore(sent_lengths, lengths, blocks);
        self.bytes.restore(sent_bytes, bytes, arrived);
        Ok(())
    }

    /// Decodes all messages, this rank's too.
    pub(super) fn in_rank_order(self, call: &Call<'_, '_>) -> Result<Vec<SparseVec>> {
        let Self { room: Room { dim, limit, values }, lengths, bytes } = self;
        let (rank, world_size) = (call.rank(), lengths.filled.len() as u32);
        let mut vectors = Vec::with_capacity(lengths.filled.len());
        let mut rest = &bytes.filled[..];
        for (offset, &length) in (0..).zip(&*lengths.filled) {
            let (message, others) = rest.split_at(length as usize);
            rest = others;
            let mut vector = SparseVec::new(dim);
            codec::decode_values(message, dim, limit, values, &mut vector).map_err(|error| {
                let owner = (rank + offset) % world_size;
                let by = (rank + giver(offset)) % world_size;
                let way = if by == owner { String::new() } else { format!(", by way of rank {by}") };
                call.refuse(owner, format!("a sparse vector{way}, with {error}"))
            })?;
            vectors.push(vector);
        }
        vectors.rotate_right(rank as usize);
        Ok(vectors)
    }
}

/// How far the rank is that has sent the block of the rank `offset` places on: they came in the round of the
/// offset's highest bit.
const fn giver(offset: u32) -> u32 {
    if offset == 0 { 0 } else { 1 << offset.ilog2() }
}

/// The number of received bytes. The lengths must respect the limit and match the bytes of the parts.
fn check(lengths: &[u64], parts: &[usize], most: usize) -> std::result::Result<usize, String> {
    let total = lengths.iter().try_fold(0_u64, |total, &length| total.checked_add(length));
    if let Some(total) = total
        && parts == [size_of_val(lengths), total as usize]
        && lengths.iter().all(|&length| length <= most as u64)
    {
        return Ok(total as usize);
    }
    Err(format!(
        "{} coded sparse vectors of {lengths:?} bytes in {parts:?}, at most {most} each",
        lengths.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_must_agree_with_the_bytes() {
        assert_eq!(check(&[40, 50], &[16, 90], 50).unwrap(), 90);
        assert!(check(&[40, 50], &[16, 89], 50).is_err());
        assert!(check(&[40, 50], &[16, 90], 49).is_err());
        assert!(check(&[40, 50], &[8, 90], 50).is_err());
        assert!(check(&[40, 50], &[16, 90, 0], 50).is_err());
        assert!(check(&[u64::MAX, 2], &[16, 1], usize::MAX).is_err());
        assert!(check(&[1 << 32, 90], &[16, 90], 90).is_err());
    }

    /// In round `j` a rank appends what rank `rank + 2^j` has gathered, beginning with that rank's own.
    #[test]
    fn givers_are_those_of_the_rounds() {
        for offset in 1..100_u32 {
            let distance = giver(offset);
            assert!(distance.is_power_of_two() && distance <= offset && offset < 2 * distance);
        }
    }
}
