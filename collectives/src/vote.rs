//! Vote: the majority of all ranks' signs.
//!
//! As a [quantised all-reduce](crate::quantised) of signs: the vector is cut in a slice for each rank, whose
//! owner counts the signs of all and sends the majority to all. With zeros, which vote for nothing, a sign
//! takes two bits, otherwise one: `(P - 1) / P` times `n / 4` to `n / 2` bytes a rank, in two rounds.
//! Bernstein et al., "signSGD: compressed optimisation for non-convex problems", ICML 2018, and "signSGD with
//! majority vote is communication efficient and fault tolerant", ICLR 2019. Signum's momentum is up to the
//! caller. What a vote ignores is not kept anywhere.

use brevity_compress::in_standard_float_mode;
use brevity_compress::quantise::{Signs, Votes, encode_signs};

use crate::all_pairs::{gather_bytes, scatter_bytes, slice};
use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::Element;
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::plan::{Algorithm, Row, Work, always};
use crate::quantised::by_slices;

/// Bytes of a message before the bits, and values of a block of bits.
const HEAD_BYTES: usize = 8;
const BLOCK: usize = 512;

/// What ranks of a vote must agree on.
#[must_use]
pub fn describe(count: usize) -> Description {
    Description::new(Operation::VOTE_ALL_REDUCE, f32::TYPE.number(), count)
}

/// The algorithm.
pub(crate) const ROWS: &[Row] = &[Row {
    algorithm: Algorithm::Direct,
    fits: always,
    estimate: |work, ground| {
        // To count a vote takes about half as long as to sum a value.
        let counting = ground.combining(0.5 * 4.0 * work.dim as f64);
        by_slices(work, ground).computing(counting)
    },
}];

/// What a vote on so many values has to do, if none is zero.
#[must_use]
pub(crate) fn work(count: usize) -> Work {
    let bytes = HEAD_BYTES + count.div_ceil(BLOCK).saturating_mul(BLOCK / 8);
    Work { bytes, wide_bytes: bytes, dim: count, ..Work::default() }
}

/// Replaces each value of `vector` by the majority of all ranks' signs: 1, -1, or 0 for a tie and where all
/// have zero.
///
/// A value that is not finite poisons the call, as tensor `tensor`.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`](crate::Error::Payload) for an invalid message of a peer.
/// `vector` is unspecified then.
pub async fn vote_all_reduce(call: &Call<'_, '_>, vector: &mut [f32], tensor: u32) -> Result<()> {
    call.check_open()?;
    if !vector.iter().all(|value| value.is_finite()) {
        call.set_poison(tensor);
        vector.fill(0.0);
    }
    let (count, world_size) = (vector.len(), call.world_size());
    let place = |owner| slice(count, world_size, owner);
    let most = HEAD_BYTES + place(0).len().div_ceil(BLOCK).saturating_mul(BLOCK / 4);
    let mut going = Vec::with_capacity(world_size as usize);
    for owner in 0..world_size {
        let mut message = Vec::new();
        let encoded = in_standard_float_mode(|| encode_signs(&vector[place(owner)], &mut message));
        call.computed(encoded.map_err(Into::into))?;
        going.push(message);
    }
    let come = scatter_bytes(call, going, 0, most).await?;
    let own = place(call.rank());
    let mut votes = Votes::new(own.len());
    for (from, message) in (0..).zip(&come) {
        let counted = Signs::new(own.len(), message).and_then(|signs| votes.add(signs));
        counted.map_err(|error| call.refuse(from, format!("signs with {error}")))?;
    }
    let mut message = Vec::new();
    let decided = in_standard_float_mode(|| {
        votes.majority(&mut vector[own.clone()])?;
        encode_signs(&vector[own], &mut message)
    });
    call.computed(decided.map_err(Into::into))?;
    let all = gather_bytes(call, message, 1, most).await?;
    for (owner, message) in (0..).zip(&all) {
        let signs = &mut vector[place(owner)];
        let read = Signs::new(signs.len(), message).and_then(|decided| decided.decode_into(signs));
        read.map_err(|error| call.refuse(owner, format!("signs with {error}")))?;
    }
    Ok(())
}

/// The majority of all ranks' signs, as a call of a group; see [`vote_all_reduce`].
#[derive(Clone, Debug)]
pub struct VoteAllReduce<V = Vec<f32>> {
    /// The vector of this rank, which becomes the majority.
    pub vector: V,
}

impl<V: AsRef<[f32]> + AsMut<[f32]> + Send + Sync> Compressed for VoteAllReduce<V> {
    type Output = ();

    const OPERATION: Operation = Operation::VOTE_ALL_REDUCE;
    const ROWS: &'static [Row] = ROWS;

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn description(&self) -> Description {
        describe(self.vector.as_ref().len())
    }

    fn work(&self) -> Work {
        work(self.vector.as_ref().len())
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<()> {
        vote_all_reduce(call, self.vector.as_mut(), 0).await
    }
}
