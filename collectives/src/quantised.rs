//! Quantised all-reduce: the sum of all ranks' vectors, in few bits.
//!
//! The vector is cut in a slice for each rank. Every rank quantises the others' slices and sends each to its
//! owner, which decodes and sums them in `f32`, in the fixed order, with its own slice as it is; then it
//! quantises the sum and sends it to all. With messages of `b` bytes for the vector: `2 b (P - 1) / P` bytes
//! a rank, in two rounds. Both roundings are kept: of a rank's own slices, and of the sum that it has made.
//! As in 1-bit SGD (Seide et al., Interspeech 2014) and in the 1-bit all-reduce of its successors.

use std::ops::Range;

use brevity_compress::in_standard_float_mode;
use brevity_compress::quantise::{Encoded, Quantiser, Values};
use bytemuck::cast_slice;

use crate::all_pairs::{self, gather_bytes, scatter_bytes, slice};
use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::{DataType, Element, ReduceOp, Reducer};
use crate::description::{Description, Operation};
use crate::error::Result;
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

/// Sums the vectors of all ranks, with values of this format on the wire, which is equal on all ranks.
/// `vector` becomes the undivided sum, which has the same bits on all ranks; `kept` becomes what rounding has
/// taken away on this rank. All sums and what all ranks keep are together what all ranks gave.
///
/// A value that is not finite, and a sum, poisons the call, as tensor `tensor`.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`](crate::Error::Payload) for an invalid message of a peer.
/// `vector` is unspecified then.
pub async fn quantised_all_reduce(
    call: &Call<'_, '_>,
    vector: &mut [f32],
    values: Values,
    kept: &mut Vec<f32>,
    tensor: u32,
) -> Result<()> {
    call.check_open()?;
    if !vector.iter().all(|value| value.is_finite()) {
        call.set_poison(tensor);
        vector.fill(0.0);
    }
    let mut slices = Slices::new(call, vector.len(), values);
    call.resize(kept, vector.len())?;
    kept.copy_from_slice(vector);
    let own = slices.of(call.rank());
    let mut going = Vec::with_capacity(call.world_size() as usize);
    for owner in 0..call.world_size() {
        let place = slices.of(owner);
        let mut message = Vec::new();
        if owner != call.rank() {
            call.computed(slices.write(&vector[place.clone()], &mut message, &mut kept[place]))?;
        }
        going.push(message);
    }
    let come = scatter_bytes(call, going, 0, slices.most_bytes()).await?;
    let sum = call.computed(slices.sum(call, &come, &vector[own.clone()]))?;
    if sum.iter().all(|value| value.is_finite()) {
        vector[own.clone()].copy_from_slice(&sum);
    } else {
        call.set_poison(tensor);
        vector[own.clone()].fill(0.0);
    }
    kept[own.clone()].copy_from_slice(&vector[own.clone()]);
    let mut message = Vec::new();
    call.computed(slices.write(&vector[own.clone()], &mut message, &mut kept[own]))?;
    let all = gather_bytes(call, message, 1, slices.most_bytes()).await?;
    for (owner, message) in (0..).zip(&all) {
        slices.read(call, owner, message, &mut vector[slices.of(owner)])?;
    }
    Ok(())
}

/// The slices of the ranks, and how they are written.
struct Slices {
    count: usize,
    world_size: u32,
    values: Values,
    quantiser: Box<dyn Quantiser + Send>,
}

impl Slices {
    fn new(call: &Call<'_, '_>, count: usize, values: Values) -> Self {
        Self { count, world_size: call.world_size(), values, quantiser: values.quantiser() }
    }

    fn of(&self, owner: u32) -> Range<usize> {
        slice(self.count, self.world_size, owner)
    }

    /// The first slice is the longest.
    fn most_bytes(&self) -> usize {
        self.values.most_bytes(self.of(0).len())
    }

    /// Writes a message of these values, and takes what it says off `kept`.
    fn write(&mut self, values: &[f32], message: &mut Vec<u8>, kept: &mut [f32]) -> Result<()> {
        // Begun anew, so that a restart changes no bit.
        self.quantiser = self.values.quantiser();
        Ok(in_standard_float_mode(|| {
            self.quantiser.encode(values, message)?;
            Encoded::new(self.values.format(), values.len(), message)?.add_to(-1.0, kept)
        })?)
    }

    /// Reads a message of rank `from`.
    fn read(&self, call: &Call<'_, '_>, from: u32, message: &[u8], into: &mut [f32]) -> Result<()> {
        let read = Encoded::new(self.values.format(), into.len(), message)
            .and_then(|encoded| in_standard_float_mode(|| encoded.decode_into(into)));
        read.map_err(|error| call.refuse(from, format!("quantised values with {error}")))
    }

    /// The sum of what has come for this rank's slice and of its own values.
    fn sum(&self, call: &Call<'_, '_>, come: &[Vec<u8>], own: &[f32]) -> Result<Vec<f32>> {
        let mut decoded = Vec::with_capacity(come.len());
        for (from, message) in (0..).zip(come) {
            let mut values = Vec::new();
            if from != call.rank() {
                values = call.zeros(own.len())?;
                self.read(call, from, message, &mut values)?;
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
