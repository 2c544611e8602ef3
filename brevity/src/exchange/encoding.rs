//! How one tensor is written into the message of a rank that all ranks gather.
//!
//! A message is a list of 32-bit words. A singular component's factors are numbers; signs are the magnitude
//! and a bit for each element.

use std::ops::Range;

use brevity_compress::low_rank::{Workspace, largest_product, product};
use brevity_compress::quantise::{Encoded, Format, Magnitude, Values};
use bytemuck::{cast_slice, cast_slice_mut};

use super::spectral;

/// How one tensor is written.
#[derive(Clone, Copy)]
pub(super) enum Encoding {
    /// Its largest singular components.
    Best(Shape),
    /// A sample of its singular components.
    Atomo(Shape),
    /// Its signs, and the mean of all magnitudes.
    SignNorm { count: usize },
}

/// The shape of a matrix, and how many components of it are sent.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) rank: usize,
}

/// Where a rank's random numbers come from in a step.
#[cfg_attr(not(feature = "svd"), expect(dead_code, reason = "only Spectral Atomo draws"))]
#[derive(Clone, Copy)]
pub(super) struct Draw {
    pub(super) seed: u64,
    pub(super) stream: u64,
}

/// Space to decode in.
#[derive(Default)]
pub(super) struct Scratch {
    workspace: Workspace,
    bytes: Vec<u8>,
    values: Vec<Vec<f32>>,
}

/// Elements that are decoded at once: about so many.
const BLOCK: usize = 1 << 14;

impl Encoding {
    /// The number of elements.
    pub(super) fn count(self) -> usize {
        match self {
            Self::Best(shape) | Self::Atomo(shape) => shape.rows * shape.cols,
            Self::SignNorm { count } => count,
        }
    }

    /// The words of a message.
    pub(super) fn words(self) -> usize {
        match self {
            Self::Best(shape) | Self::Atomo(shape) => shape.factors_len(),
            Self::SignNorm { count } => 1 + count.div_ceil(32),
        }
    }

    /// Whether what is not sent stays in the residual.
    pub(super) fn has_feedback(self) -> bool {
        !matches!(self, Self::Atomo(_))
    }

    /// Writes values. Returns whether they can be written and decoded to finite numbers.
    pub(super) fn encode(self, values: &[f32], draw: Draw, message: &mut [u32]) -> bool {
        let is_written = match self {
            Self::Best(shape) => spectral::encode(values, shape, None, cast_slice_mut(message)),
            Self::Atomo(shape) => spectral::encode(values, shape, Some(draw), cast_slice_mut(message)),
            Self::SignNorm { .. } => {
                let mut bytes = Vec::with_capacity(4 * message.len());
                let encoded = Values::OneBit(Magnitude::Mean).quantiser().encode(values, &mut bytes);
                message.fill(0);
                let room: &mut [u8] = cast_slice_mut(message);
                room.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
                encoded.is_ok()
            }
        };
        // What is decoded, and what it leaves of the values, is finite.
        is_written && self.most(message) + largest(values) <= f64::from(f32::MAX)
    }

    /// No element decodes to a larger magnitude. Not a number if the message has one that is not finite.
    pub(super) fn most(self, message: &[u32]) -> f64 {
        match self {
            Self::Best(shape) | Self::Atomo(shape) => {
                let (p, q) = shape.split(message);
                largest_product(p, q, shape.rank)
            }
            Self::SignNorm { .. } => {
                f64::from(message.first().map_or(0.0, |word| f32::from_bits(*word))).abs()
            }
        }
    }

    /// Parts of all elements that can be decoded by themselves.
    fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        let unit = match self {
            Self::Best(shape) | Self::Atomo(shape) => shape.cols.max(1),
            Self::SignNorm { .. } => 8,
        };
        let (length, count) = (unit * (BLOCK / unit).max(1), self.count());
        (0..count).step_by(length).map(move |start| start..count.min(start + length))
    }

    /// Decodes a block of a message whose [`most`](Self::most) is finite.
    fn decode(
        self,
        message: &[u32],
        block: Range<usize>,
        out: &mut [f32],
        scratch: (&mut Workspace, &mut Vec<u8>),
    ) {
        let (workspace, bytes) = scratch;
        match self {
            Self::Best(shape) | Self::Atomo(shape) => {
                let (p, q) = shape.split(message);
                let rows = block.start / shape.cols..block.end / shape.cols;
                let p = &p[rows.start * shape.rank..rows.end * shape.rank];
                let written = product(p, q, shape.rank, out, workspace);
                debug_assert!(written.is_ok(), "{written:?}");
            }
            Self::SignNorm { .. } => {
                let all: &[u8] = cast_slice(message);
                bytes.clear();
                bytes.extend_from_slice(&all[..4]);
                bytes.extend_from_slice(&all[4 + block.start / 8..4 + block.end.div_ceil(8)]);
                let decoded = Encoded::new(Format::Sign, out.len(), bytes);
                let written = decoded.and_then(|decoded| decoded.decode_into(out));
                debug_assert!(written.is_ok(), "{written:?}");
            }
        }
    }

    /// Subtracts what a message decodes to.
    pub(super) fn subtract(self, message: &[u32], values: &mut [f32], scratch: &mut Scratch) {
        let Scratch { workspace, bytes, values: decoded } = scratch;
        decoded.resize_with(decoded.len().max(1), Vec::new);
        for block in self.blocks() {
            let out = &mut decoded[0];
            out.resize(block.len(), 0.0);
            self.decode(message, block.clone(), out, (workspace, bytes));
            values[block].iter_mut().zip(&*out).for_each(|(value, sent)| *value -= sent);
        }
    }

    /// The sum of what all ranks' messages decode to, in the fixed order of dense sums.
    pub(super) fn sum(self, messages: &[&[u32]], sum: &mut [f32], scratch: &mut Scratch) {
        let members = 1_usize << messages.len().ilog2();
        scratch.values.resize_with(scratch.values.len().max(members.ilog2() as usize + 1), Vec::new);
        for block in self.blocks() {
            let Scratch { workspace, bytes, values } = &mut *scratch;
            values.iter_mut().for_each(|values| values.resize(block.len(), 0.0));
            let mut decode = |rank: usize, out: &mut [f32]| {
                self.decode(messages[rank], block.clone(), out, (&mut *workspace, &mut *bytes));
            };
            let ranks = Ranks { first: 0, members, all: messages.len() };
            in_order(ranks, members, &mut sum[block.clone()], values, &mut decode);
        }
    }
}

/// Which ranks are summed: `members` of them are a power of two, the others are their guests.
#[derive(Clone, Copy)]
struct Ranks {
    first: usize,
    members: usize,
    all: usize,
}

/// The sum over `members` members from the first one on, each with its guest, in the fixed order (docs:
/// algorithms.md). There is space for one vector at each level.
fn in_order(
    ranks: Ranks,
    members: usize,
    sum: &mut [f32],
    space: &mut [Vec<f32>],
    decode: &mut impl FnMut(usize, &mut [f32]),
) {
    let Some((own, rest)) = space.split_first_mut() else { return };
    if members > 1 {
        let half = members / 2;
        in_order(ranks, half, sum, rest, decode);
        in_order(Ranks { first: ranks.first + half, ..ranks }, half, own, rest, decode);
    } else {
        decode(ranks.first, sum);
        let guest = ranks.first + ranks.members;
        if guest >= ranks.all {
            return;
        }
        decode(guest, own);
    }
    sum.iter_mut().zip(&*own).for_each(|(sum, value)| *sum += value);
}

/// The largest magnitude: NaN if there is one.
fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |most: f64, &value| {
        let value = f64::from(value).abs();
        if most.is_nan() || value <= most { most } else { value }
    })
}

impl Shape {
    pub(super) fn new(rows: usize, cols: usize, rank: usize) -> Self {
        Self { rows, cols, rank: rank.min(rows).min(cols) }
    }

    fn factors_len(self) -> usize {
        (self.rows + self.cols).saturating_mul(self.rank)
    }

    /// The factors of a message, both row-major.
    fn split(self, message: &[u32]) -> (&[f32], &[f32]) {
        cast_slice::<u32, f32>(message).split_at(self.rows * self.rank)
    }
}
