//! Recursive doubling of sparse vectors, with the switch to dense ones: in round `j` a rank exchanges the sum
//! that it has with the rank at distance `2^j`.
//!
//! `log2 m` rounds, and 2 more unless P is a power of two, where `m` is the largest power of two up to `P`;
//! in round `j` at most `2^j k` entries each way, or the `4 n` bytes of the dense vector where that is less.
//! The recursive doubling of SparCML: Renggli et al., "SparCML: high-performance sparse communication for
//! machine learning", SC 2019.
//!
//! Rank `m + i` is a guest of rank `i`, which adds its entries first and sends it the result. After round
//! `j`, all ranks of an aligned block of `2^(j+1)` have its sum, so sums have the [fixed
//! order](crate::data::order), sparse or dense. Rounding would change a sum once more in each round, so this
//! is for exact wires.

use brevity_compress::merge::{PiecewiseSum, add};
use brevity_compress::{Error as Compress, SparseVec, SparseView, codec, dense, in_standard_float_mode};

use super::message::{Message, Room, invalid, receive_parts};
use super::reader::Reader;
use super::tensors::Tensors;
use super::topk::union;
use super::wire::{Coder, Wire};
use crate::call::Call;
use crate::engine::join;
use crate::error::{Error, Result};
use crate::pattern::Doubling;
use crate::plan::{Estimate, Ground, Work};

/// An entry that is merged costs about as much as so many bytes of a dense sum.
const MERGED_BYTES: f64 = 14.0;

/// Sums the sparse vectors of two ranks and more on an exact wire.
///
/// # Errors
/// As for [`topk_all_reduce`](super::topk_all_reduce).
pub(super) async fn all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensors: Tensors<'_>,
) -> Result<SparseVec> {
    let (dim, wire, world_size) = (local.dim(), coder.wire(), call.world_size());
    // A guest's message is not confused with that of round 0, which comes from another rank.
    let last_round = world_size.ilog2();
    let room = |vectors: u32| {
        let limit = limit.min(dim).saturating_mul(vectors as usize).min(dim);
        Room { dim, limit, wire }
    };
    let mut sum = Sum::Sparse(local.to_owned()).fitted(call, wire)?;
    let member = match Doubling::new(call.rank(), world_size) {
        Doubling::Guest { keeper } => {
            let code = call.computed(sum.code(coder))?;
            sum.send(call, keeper, 0, code).await?;
            let come = receive(call, keeper, last_round, room(world_size)).await?;
            return come.decoded(call, coder)?.finished(tensors);
        }
        Doubling::Member(member) => member,
    };
    if let Some(guest) = member.guest {
        let incoming = receive(call, guest, 0, room(1)).await?;
        sum = sum.plus(call, incoming, coder)?.fitted(call, wire)?;
    }
    for (round, peer) in (0..).zip(member.partners()) {
        let code = call.computed(sum.code(coder))?;
        let room = room(vectors(peer, round, world_size));
        let (sent, come) = join(sum.send(call, peer, round, code), receive(call, peer, round, room)).await;
        sum = sent?.plus(call, come?, coder)?.fitted(call, wire)?;
    }
    if let Some(guest) = member.guest {
        let code = call.computed(sum.code(coder))?;
        sum = sum.send(call, guest, last_round, code).await?;
    }
    sum.finished(tensors)
}

/// How many vectors are in the sum of a member before this round.
fn vectors(member: u32, round: u32, world_size: u32) -> u32 {
    let (members, size) = (1 << world_size.ilog2(), 1 << round);
    let first = member & !(size - 1);
    size + (world_size - members).saturating_sub(first).min(size)
}

/// The most entries that are sent as such: more take more bytes than the dense vector.
const fn most_entries(dim: usize, wire: Wire) -> usize {
    match wire {
        Wire::Pairs => dim / 2,
        // The codec's bitmap has a bit for each element.
        Wire::Coded(_) => dim - dim.div_ceil(32),
    }
}

/// The sum of some ranks' vectors.
enum Sum {
    Sparse(SparseVec),
    Dense(Vec<f32>),
    /// It is not finite at this index, and perhaps at others.
    Overflow(u32),
}

impl Sum {
    /// The message of entries on a coded wire; empty on pairs and for dense values.
    fn code(&self, coder: &mut Coder) -> Result<Vec<u8>> {
        match (self, coder.wire()) {
            (Self::Sparse(entries), Wire::Coded(values)) => {
                Ok(coder.encode(entries.view(), values)?.0.to_vec())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Sends it and returns it, in two parts. Entries are indices and values, or a code and nothing; dense
    /// values are nothing and values. Of a sum that is not finite there is one, with the bits of its
    /// index. A vector of one element is dense at once, and such a sum is then one of its values.
    async fn send(self, call: &Call<'_, '_>, to: u32, round: u32, code: Vec<u8>) -> Result<Self> {
        Ok(match self {
            Self::Sparse(entries) if code.is_empty() => {
                let dim = entries.dim();
                let (indices, values) = call.send(to, round, entries.into_parts()).await?;
                Self::Sparse(SparseVec::from_parts(dim, indices, values)?)
            }
            Self::Sparse(entries) => {
                call.send(to, round, (code, Vec::<f32>::new())).await?;
                Self::Sparse(entries)
            }
            Self::Dense(values) => Self::Dense(call.send(to, round, (code, values)).await?.1),
            Self::Overflow(index) => {
                call.send(to, round, (code, vec![f32::from_bits(index)])).await?;
                Self::Overflow(index)
            }
        })
    }

    /// The sum of both, on both of their ranks alike.
    fn plus(self, call: &Call<'_, '_>, incoming: Incoming, coder: &mut Coder) -> Result<Self> {
        match incoming {
            Incoming::Sum(other) => call.computed(self.plus_sum(other)),
            Incoming::Coded { from, message, room } => {
                let summed = in_standard_float_mode(|| self.plus_read(coder.reader(&message, room)?));
                coder.keep(message);
                summed.map_err(|error| invalid(call, from, error))
            }
        }
    }

    /// Adds entries that are read. An error is that of their message.
    fn plus_read(self, mut reader: Reader<'_>) -> std::result::Result<Self, Compress> {
        match self {
            Self::Sparse(own) => {
                let mut all = SparseVec::new(own.dim());
                let mut sum = PiecewiseSum::new(own.view(), &mut all);
                while let Some(block) = reader.next_block()? {
                    sum.add(block)?;
                }
                match sum.finish() {
                    Ok(()) => Ok(Self::Sparse(all)),
                    Err(Compress::NonFinite { index, .. }) => Ok(Self::Overflow(index as u32)),
                    Err(error) => Err(error),
                }
            }
            Self::Dense(mut sum) => {
                while let Some(block) = reader.next_block()? {
                    block.add_to(&mut sum);
                }
                Ok(Self::Dense(sum))
            }
            Self::Overflow(index) => {
                // They are checked as elsewhere.
                while reader.next_block()?.is_some() {}
                Ok(Self::Overflow(index))
            }
        }
    }

    /// The sum of both, where both are as they are.
    fn plus_sum(self, other: Self) -> Result<Self> {
        in_standard_float_mode(|| {
            Ok(match (self, other) {
                (Self::Overflow(a), Self::Overflow(b)) => Self::Overflow(a.min(b)),
                (Self::Overflow(index), _) | (_, Self::Overflow(index)) => Self::Overflow(index),
                (Self::Sparse(a), Self::Sparse(b)) => {
                    let mut sum = SparseVec::new(a.dim());
                    match add(a.view(), b.view(), &mut sum) {
                        Ok(()) => Self::Sparse(sum),
                        Err(Compress::NonFinite { index, .. }) => Self::Overflow(index as u32),
                        Err(error) => return Err(error.into()),
                    }
                }
                (Self::Dense(mut sum), Self::Sparse(entries))
                | (Self::Sparse(entries), Self::Dense(mut sum)) => {
                    entries.add_to(&mut sum);
                    Self::Dense(sum)
                }
                (Self::Dense(mut sum), Self::Dense(other)) => {
                    dense::add_assign(&mut sum, &other)?;
                    Self::Dense(sum)
                }
            })
        })
    }

    /// Dense, if that takes fewer bytes.
    fn fitted(self, call: &Call<'_, '_>, wire: Wire) -> Result<Self> {
        match self {
            Self::Sparse(entries) if entries.len() > most_entries(entries.dim(), wire) => {
                let mut values = call.zeros(entries.dim())?;
                // Written, not added: sums depend on the float mode.
                entries.iter().for_each(|(index, value)| values[index as usize] = value);
                Ok(Self::Dense(values))
            }
            other => Ok(other),
        }
    }

    /// Its entries that are not zero, if all are finite.
    fn finished(self, tensors: Tensors<'_>) -> Result<SparseVec> {
        let sum = match self {
            Self::Overflow(index) => {
                return Err(Error::Overflow { tensor: tensors.at(index as usize) });
            }
            Self::Sparse(entries) => entries,
            Self::Dense(values) => {
                let indices = (0..values.len()).map(|index| index as u32).collect();
                let mut entries = SparseVec::from_parts(values.len(), indices, values)?;
                entries.drop_zeros();
                entries
            }
        };
        let bad = sum.iter().find(|(_, value)| !value.is_finite());
        bad.map_or(Ok(()), |(index, _)| Err(Error::Overflow { tensor: tensors.at(index as usize) }))?;
        Ok(sum)
    }
}

/// What a rank has sent.
enum Incoming {
    Sum(Sum),
    /// Entries that are not decoded yet.
    Coded {
        from: u32,
        message: Message,
        room: Room,
    },
}

impl Incoming {
    fn decoded(self, call: &Call<'_, '_>, coder: &mut Coder) -> Result<Sum> {
        match self {
            Self::Sum(sum) => Ok(sum),
            Self::Coded { from, message, room } => {
                let entries = coder.read(message, room);
                entries.map(Sum::Sparse).map_err(|error| invalid(call, from, error))
            }
        }
    }
}

/// Receives what [`Sum::send`] sends, of at most as many entries as there is room for.
async fn receive(call: &Call<'_, '_>, from: u32, round: u32, room: Room) -> Result<Incoming> {
    let Room { dim, limit, wire } = room;
    let most = limit.min(most_entries(dim, wire));
    let of_dense = if limit > most { dim } else { 1 };
    match wire {
        Wire::Pairs => {
            let room = (most, most.max(of_dense));
            let (indices, values) = receive_parts(call, from, round, room).await?;
            if indices.is_empty() && !values.is_empty() {
                return dense_of(call, from, values, dim).map(Incoming::Sum);
            }
            let entries = SparseVec::from_parts(dim, indices, values);
            let sum = entries.map(Sum::Sparse).map_err(|error| invalid(call, from, error))?;
            Ok(Incoming::Sum(sum))
        }
        Wire::Coded(format) => {
            let parts = (codec::most_bytes(dim, most, format), of_dense);
            let (code, values): (Vec<u8>, _) = receive_parts(call, from, round, parts).await?;
            if code.is_empty() {
                return dense_of(call, from, values, dim).map(Incoming::Sum);
            }
            Ok(Incoming::Coded { from, message: Message::Coded(code), room: Room { limit: most, ..room } })
        }
    }
}

/// The sum of dense values that rank `from` has sent.
fn dense_of(call: &Call<'_, '_>, from: u32, values: Vec<f32>, dim: usize) -> Result<Sum> {
    match values[..] {
        _ if values.len() == dim => Ok(Sum::Dense(values)),
        [value] if (value.to_bits() as usize) < dim => Ok(Sum::Overflow(value.to_bits())),
        _ => Err(call.refuse(from, format!("{} values of a dense vector of {dim}", values.len()))),
    }
}

/// What it takes if the entries of each rank are anywhere.
pub(super) fn estimate(work: &Work, ground: &Ground) -> Estimate {
    let dim = work.dim.max(1) as f64;
    let bytes = |entries: f64| match work.wire {
        Wire::Pairs => 8.0 * entries,
        wire => wire.usual_bytes(work.dim, entries.ceil() as usize) as f64,
    };
    // A message of so many entries, and adding them to as many.
    let exchange = |entries: f64| {
        let (sparse, dense) = (bytes(entries), 4.0 * dim);
        if sparse > dense {
            return ground.message(dense).computing(ground.combining(dense));
        }
        let coding = ground.encoding(entries, work.wire) + ground.decoding(entries, work.wire);
        let merging = ground.combining(MERGED_BYTES * 2.0 * entries);
        ground.message(sparse).computing(coding + merging)
    };
    let absent = 1.0 - work.entries as f64 / dim;
    let has_guests = !ground.world_size.is_power_of_two();
    let mut all = Estimate::default();
    if has_guests {
        // Guests send it, and members with a guest send the most in all.
        all = Estimate { bytes: 0.0, ..exchange(work.entries as f64) };
    }
    for round in 0..ground.world_size.ilog2() {
        // Of member 0, which has the most guests behind it.
        let vectors = vectors(0, round, ground.world_size) as i32;
        all = all.then(exchange(dim * (1.0 - absent.powi(vectors))));
    }
    if has_guests {
        all = all.then(ground.message(bytes(union(work, ground)).min(4.0 * dim)));
    }
    all
}

#[cfg(test)]
mod tests {
    use brevity_compress::generator::Generator;
    use brevity_compress::quantise::Values;
    use brevity_compress::select::random_k;
    use ucx_sys_wrap::sim::{Cluster, Links, run};

    use super::*;
    use crate::group::{Group, Settings};
    use crate::plan::{Algorithm, Machine};
    use crate::sparse::topk;

    /// Seconds of the slowest rank, and bytes of the one that sends most. Each has `k` entries anywhere.
    fn simulated(world_size: u32, (dim, k): (usize, usize), links: Links) -> (f64, u64) {
        let ranks = run(Cluster::new(world_size, links), |transport| {
            let group = Group::new(transport, Settings::default()).with_algorithm(Some(Algorithm::Doubling));
            let (mut own, mut drawn) = (SparseVec::new(dim), Vec::new());
            let mut generator = Generator::for_stream(5, group.rank().into());
            random_k(&vec![1.0; dim], k, &mut generator, &mut own, &mut drawn).unwrap();
            async move {
                let begun = group.now();
                group.start_topk_all_reduce(own, k, Coder::pairs()).await.1.unwrap();
                ((group.now() - begun).as_secs_f64(), group.statistics().bytes_sent)
            }
        });
        ranks.unwrap().into_iter().fold((0.0, 0), |(s, b), (seconds, bytes)| (seconds.max(s), bytes.max(b)))
    }

    /// Sparse throughout, dense after some rounds, and dense from the beginning; with guests and without.
    #[test]
    fn estimates_are_what_the_simulated_network_takes() {
        let (dim, alpha, beta) = (100_000, 20e-6, 1e-9);
        for (world_size, k) in
            [(2, 1000), (8, 1000), (8, 20_000), (16, 8000), (4, 60_000), (6, 1000), (7, 20_000), (12, 2000)]
        {
            let ground = Ground::new(Machine::uniform(alpha, beta), world_size);
            let estimate = estimate(&topk::work(dim, k, Wire::Pairs), &ground);
            let (seconds, bytes) = simulated(world_size, (dim, k), Links::new(alpha, beta));
            let ratio = estimate.bytes / bytes as f64;
            assert!((0.95..=1.05).contains(&ratio), "{world_size} ranks, {k} entries: bytes {ratio}");
            let ratio = estimate.seconds / seconds;
            // Ranks without guests are ahead of the others, and their messages meet those of guests.
            let off = if world_size.is_power_of_two() { 0.05 } else { 0.15 };
            assert!((1.0 - off..=1.0 + off).contains(&ratio), "{world_size} ranks, {k} entries: {ratio}");
        }
    }

    #[test]
    fn sums_are_of_blocks_and_their_guests() {
        for world_size in 1..=33_u32 {
            let members = 1 << world_size.ilog2();
            let own = |member: u32| 1 + u32::from(member + members < world_size);
            for member in 0..members {
                for round in 0..members.ilog2() {
                    let first = member >> round << round;
                    let expected: u32 = (first..first + (1 << round)).map(own).sum();
                    assert_eq!(vectors(member, round, world_size), expected, "{member} of {world_size}");
                }
            }
        }
    }

    #[test]
    fn a_sum_is_dense_where_entries_take_more_bytes() {
        for dim in 0..300 {
            assert!(8 * most_entries(dim, Wire::Pairs) <= 4 * dim);
            assert!(8 * (most_entries(dim, Wire::Pairs) + 1) > 4 * dim);
            let coded = most_entries(dim, Wire::Coded(Values::F32));
            assert!(4 * coded + dim.div_ceil(8) <= 4 * dim, "{dim}: {coded}");
        }
    }
}
