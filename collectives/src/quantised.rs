//! Quantised all-reduce: the sum of all ranks' vectors, in few bits.
//!
//! The vector is cut in a slice for each rank. Every rank quantises the others' slices and sends each to its
//! owner, which decodes and sums them in `f32`, in the fixed order, with its own slice as it is; then it
//! quantises the sum and sends it to all. With messages of `b` bytes for the vector: `2 b (P - 1) / P` bytes
//! a rank, in two rounds. Both roundings are kept: of a rank's own slices, and of the sum that it has made.
//! As in 1-bit SGD (Seide et al., Interspeech 2014) and in the 1-bit all-reduce of its successors.

use std::ops::Range;

use brevity_compress::quantise::Values;
use brevity_compress::{Error as Compress, in_standard_float_mode};
use bytemuck::cast_slice;

use crate::all_pairs::{self, gather_bytes, scatter_bytes, slice};
use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::{DataType, Element, ReduceOp, Reducer};
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Estimate, Ground, Row, Work, always};
use crate::sparse::Wire;

/// What ranks of a quantised all-reduce must agree on.
#[must_use]
pub fn describe(count: usize, values: Values) -> Description {
    Wire::Coded(values).describe(Description::new(Operation::QUANTISED_ALL_REDUCE, f32::TYPE.number(), count))
}

/// The algorithm.
pub(crate) const ROWS: &[Row] = &[Row {
    algorithm: Algorithm::Direct,
    fits: always,
    estimate: |work, ground| {
        // As much to read each message as to sum its values.
        let summing = ground.combining(2.0 * 4.0 * work.dim as f64);
        by_slices(work, ground).computing(summing)
    },
}];

/// What a quantised all-reduce of so many values has to do.
#[must_use]
pub(crate) fn work(count: usize, values: Values) -> Work {
    let bytes = values.most_bytes(count);
    Work { bytes, wide_bytes: bytes, dim: count, ..Work::default() }
}

/// Slices to their owners, and their sums to all, where `work.bytes` are those of the whole vector.
pub(crate) fn by_slices(work: &Work, ground: &Ground) -> Estimate {
    let longest = slice(work.dim, ground.world_size, 0).len() as f64;
    let bytes = work.bytes as f64 * longest / (work.dim as f64).max(1.0);
    all_pairs::estimate(bytes, ground).times(2)
}

/// A tensor of a vector that holds several, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The tensor's position in the call, for poison.
    pub tensor: u32,
    /// Its number of elements.
    pub count: usize,
}

/// Sums the vectors of all ranks, with values of this format on the wire, which is equal on all ranks.
/// `vector` becomes the undivided sum, which has the same bits on all ranks; `kept` becomes what rounding has
/// taken away on this rank. All sums and what all ranks keep are together what all ranks gave.
///
/// A value that is not finite, and a sum, poisons the call, as tensor `tensor`.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`] for an invalid message of a peer. `vector` is unspecified
/// then.
pub async fn quantised_all_reduce(
    call: &Call<'_, '_>,
    vector: &mut [f32],
    values: Values,
    kept: &mut Vec<f32>,
    tensor: u32,
) -> Result<()> {
    let packed = [Packed { tensor, count: vector.len() }];
    quantised_all_reduce_packed(call, vector, &packed, values, kept).await
}

/// Like [`quantised_all_reduce`], for the tensors of a model in one vector. No scale is that of two tensors:
/// each is rounded by itself, and where slices cut it, each of its pieces. A piece takes its own scales of 4
/// to 12 bytes, and for the formats of 8 bits and less its codes begin at a byte.
///
/// All ranks have the same tensors, which the [description](describe) doesn't say: the caller compares them.
///
/// # Errors
/// As for [`quantised_all_reduce`]; [`Error::Length`] unless the tensors have the vector's length together.
pub async fn quantised_all_reduce_packed(
    call: &Call<'_, '_>,
    vector: &mut [f32],
    packed: &[Packed],
    values: Values,
    kept: &mut Vec<f32>,
) -> Result<()> {
    call.check_open()?;
    let slices = call.computed(Slices::new(call.world_size(), vector.len(), packed, values))?;
    let whole = 0..vector.len();
    slices.poison_of(call, whole, vector);
    call.resize(kept, vector.len())?;
    kept.copy_from_slice(vector);
    let own = slices.of(call.rank());
    let mut going = Vec::with_capacity(call.world_size() as usize);
    for owner in 0..call.world_size() {
        let mut message = Vec::new();
        if owner != call.rank() {
            call.computed(slices.write(slices.of(owner), vector, &mut message, kept))?;
        }
        going.push(message);
    }
    let come = scatter_bytes(call, going, 0, slices.bytes(own.clone())).await?;
    let sum = call.computed(slices.sum(call, &come, &vector[own.clone()]))?;
    vector[own.clone()].copy_from_slice(&sum);
    slices.poison_of(call, own.clone(), vector);
    kept[own.clone()].copy_from_slice(&vector[own.clone()]);
    let mut message = Vec::new();
    call.computed(slices.write(own, vector, &mut message, kept))?;
    let all = gather_bytes(call, message, 1, slices.most_bytes()).await?;
    for (owner, message) in (0..).zip(&all) {
        let place = slices.of(owner);
        slices.read(call, owner, message, place.clone(), &mut vector[place])?;
    }
    Ok(())
}

/// The slices of the ranks, and how they are written: each tensor's piece of a slice by itself.
struct Slices<'a> {
    count: usize,
    world_size: u32,
    values: Values,
    packed: &'a [Packed],
    /// Where each tensor ends.
    ends: Vec<usize>,
}

impl<'a> Slices<'a> {
    fn new(world_size: u32, count: usize, packed: &'a [Packed], values: Values) -> Result<Self> {
        let mut ends = Vec::with_capacity(packed.len());
        let total = packed.iter().fold(0_usize, |end, tensor| {
            let end = end.saturating_add(tensor.count);
            ends.push(end);
            end
        });
        if total != count {
            return Err(Error::Length { what: "the list of tensors", found: total, expected: count });
        }
        Ok(Self { count, world_size, values, packed, ends })
    }

    fn of(&self, owner: u32) -> Range<usize> {
        slice(self.count, self.world_size, owner)
    }

    /// The tensors of a slice that are not empty there, each with its place in the vector.
    fn pieces(&self, slice: Range<usize>) -> impl Iterator<Item = (u32, Range<usize>)> {
        let first = self.ends.partition_point(|&end| end <= slice.start);
        let tensors = self.packed.iter().zip(&self.ends).skip(first);
        let pieces = tensors.map(move |(packed, &end)| {
            (packed.tensor, slice.start.max(end - packed.count)..slice.end.min(end))
        });
        pieces.take_while(move |(_, piece)| piece.start < slice.end).filter(|(_, piece)| !piece.is_empty())
    }

    /// The bytes of a slice.
    fn bytes(&self, slice: Range<usize>) -> usize {
        self.pieces(slice).map(|(_, piece)| self.values.most_bytes(piece.len())).sum()
    }

    /// The bytes of the longest message.
    fn most_bytes(&self) -> usize {
        (0..self.world_size).map(|owner| self.bytes(self.of(owner))).max().unwrap_or(0)
    }

    /// Poisons the call, and makes the slice zeros, if it has a value that is not finite.
    fn poison_of(&self, call: &Call<'_, '_>, slice: Range<usize>, vector: &mut [f32]) {
        let bad = |range: Range<usize>| !vector[range].iter().all(|value| value.is_finite());
        if let Some((tensor, _)) = self.pieces(slice.clone()).find(|(_, piece)| bad(piece.clone())) {
            call.set_poison(tensor);
            vector[slice].fill(0.0);
        }
    }

    /// Writes a message of a slice, and takes what it says off `kept`. Columns are counted from the first
    /// element of a piece: the elements of one are those of a column of the tensor.
    fn write(
        &self,
        slice: Range<usize>,
        vector: &[f32],
        message: &mut Vec<u8>,
        kept: &mut [f32],
    ) -> Result<()> {
        let mut written = Vec::new();
        in_standard_float_mode(|| {
            for (_, piece) in self.pieces(slice) {
                // Begun anew, so that a restart changes no bit.
                let mut quantiser = self.values.quantiser();
                quantiser.encode(&vector[piece.clone()], &mut written)?;
                self.values.read(piece.len(), &written)?.add_to(-1.0, &mut kept[piece])?;
                if message.is_empty() {
                    std::mem::swap(message, &mut written);
                } else {
                    message.extend_from_slice(&written);
                }
            }
            Ok(())
        })
    }

    /// Reads a message of rank `from` of a slice.
    fn read(
        &self,
        call: &Call<'_, '_>,
        from: u32,
        message: &[u8],
        slice: Range<usize>,
        into: &mut [f32],
    ) -> Result<()> {
        let (start, mut rest) = (slice.start, message);
        let read = in_standard_float_mode(|| {
            for (_, piece) in self.pieces(slice) {
                let (own, others) = rest.split_at(self.values.most_bytes(piece.len()).min(rest.len()));
                let encoded = self.values.read(piece.len(), own)?;
                encoded.decode_into(&mut into[piece.start - start..piece.end - start])?;
                rest = others;
            }
            if rest.is_empty() {
                return Ok(());
            }
            let (expected, found) = (message.len() - rest.len(), message.len());
            Err(Compress::Malformed { what: "bytes of encoded values", expected, found })
        });
        read.map_err(|error| call.refuse(from, format!("quantised values with {error}")))
    }

    /// The sum of what has come for this rank's slice and of its own values.
    fn sum(&self, call: &Call<'_, '_>, come: &[Vec<u8>], own: &[f32]) -> Result<Vec<f32>> {
        let mut decoded = Vec::with_capacity(come.len());
        for (from, message) in (0..).zip(come) {
            let mut values = Vec::new();
            if from != call.rank() {
                values = call.zeros(own.len())?;
                self.read(call, from, message, self.of(call.rank()), &mut values)?;
            }
            decoded.push(values);
        }
        let mut operands: Vec<Option<&[u8]>> =
            decoded.iter().map(|values| Some(cast_slice(values))).collect();
        operands[call.rank() as usize] = Some(cast_slice(own));
        let mut sum = call.zeros::<f32>(own.len())?;
        let reducer = Reducer::of(DataType::F32, ReduceOp::Sum)?;
        let out = bytemuck::cast_slice_mut(&mut sum);
        reducer.in_mode(|| reducer.reduce_in_order(&operands, call.rank(), out))?;
        Ok(sum)
    }
}

/// The sum of all ranks' vectors, as a call of a group; see [`quantised_all_reduce`].
#[derive(Clone, Debug)]
pub struct QuantisedAllReduce<V = Vec<f32>> {
    /// The vector of this rank, which becomes the sum.
    pub vector: V,
    /// The format of values on the wire; equal on all ranks.
    pub values: Values,
}

impl<V: AsRef<[f32]> + AsMut<[f32]> + Send + Sync> Compressed for QuantisedAllReduce<V> {
    /// What rounding has taken away on this rank.
    type Output = Vec<f32>;

    const OPERATION: Operation = Operation::QUANTISED_ALL_REDUCE;
    const ROWS: &'static [Row] = ROWS;

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn description(&self) -> Description {
        describe(self.vector.as_ref().len(), self.values)
    }

    fn work(&self) -> Work {
        work(self.vector.as_ref().len(), self.values)
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<Vec<f32>> {
        let mut kept = Vec::new();
        quantised_all_reduce(call, self.vector.as_mut(), self.values, &mut kept, 0).await?;
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(counts: &[usize]) -> Vec<Packed> {
        (7..).zip(counts).map(|(tensor, &count)| Packed { tensor, count }).collect()
    }

    /// One after another they are the tensors, and none is empty.
    #[test]
    fn pieces_are_of_one_tensor_and_one_slice() {
        let lists: [&[usize]; 6] =
            [&[], &[0], &[5], &[0, 512, 0, 0, 1, 0], &[100, 3000, 412, 1], &[1, 1, 2046, 0, 512]];
        for (counts, world_size) in lists.into_iter().flat_map(|counts| [1, 2, 3, 5, 33].map(|p| (counts, p)))
        {
            let (list, total) = (packed(counts), counts.iter().sum());
            let slices = Slices::new(world_size, total, &list, Values::EightBit).unwrap();
            let mut found = vec![Vec::new(); counts.len()];
            let mut at = 0;
            for slice in (0..world_size).map(|owner| slices.of(owner)) {
                for (tensor, piece) in slices.pieces(slice.clone()) {
                    assert!(piece.start == at && piece.end > at, "{counts:?}, P = {world_size}: {piece:?}");
                    assert!(slice.start <= piece.start && piece.end <= slice.end);
                    at = piece.end;
                    found[tensor as usize - 7].push(piece.len());
                }
                assert!(slice.is_empty() || at == slice.end, "{counts:?}, P = {world_size}: {slice:?}");
            }
            let lengths: Vec<usize> = found.iter().map(|pieces| pieces.iter().sum()).collect();
            assert_eq!(lengths, counts, "P = {world_size}");
        }
    }

    #[test]
    fn tensors_of_another_length_together_are_refused() {
        for total in [0, 9, 11, usize::MAX] {
            match Slices::new(3, total, &packed(&[4, 6]), Values::F32).err() {
                Some(Error::Length { found: 10, expected, .. }) => assert_eq!(expected, total),
                other => panic!("{total}: {other:?}"),
            }
        }
    }
}
