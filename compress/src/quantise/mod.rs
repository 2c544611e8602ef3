//! Quantisers: values in 1 to 16 bits, with error feedback for the rounding.
//!
//! | [`Format`] | bits | what a value becomes | source |
//! | --- | --- | --- | --- |
//! | [`F16`](Format::F16), [`Bf16`](Format::Bf16) | 16 | the nearest number of the format | |
//! | [`Sign`](Format::Sign) | 1 | its sign times one magnitude: the mean ("sign + norm"), or the smallest | Vogels 2019; Aji and Heafield 2017 |
//! | [`SignColumns`](Format::SignColumns), [`SignPairs`](Format::SignPairs) | 1 | the same with a mean for each column, or one for its positive and one for its negative values | Dryden 2016; Seide 2014 |
//! | [`TwoBit`](Format::TwoBit) | 2 | its sign times one of two magnitudes | Aji and Heafield 2017 |
//! | [`Ternary`](Format::Ternary) | 2 | -1, 0 or 1 times the largest magnitude, at random without bias | TernGrad, Wen 2017 |
//! | [`Qsgd`](Format::Qsgd) | 2, 4, 8 | one of `s` levels of its bucket's norm, at random without bias | QSGD, Alistarh 2017 |
//! | [`MinMax`](Format::MinMax) | 8 | the nearest of 256 points between its bucket's extremes | |
//!
//! A [`Quantiser`] writes the values of a dense or sparse vector as bytes; [`Values`] names the choices of
//! callers. [`Encoded`] checks bytes and decodes them; it needs only format and count. Numbers are
//! little-endian; codes are packed in blocks of 512. Error feedback: [`DeferredFeedback`] (1 and 2 bits, one
//! pass), [`BucketFeedback`] (formats with buckets, one pass), [`Feedback`] (any, three passes). They refuse
//! quantisers that don't [contract](Quantiser::contracts).
//!
//! All results have the same bits on every CPU. Random rounding depends only on the seed, the message number
//! and the place.

mod columns;
mod deferred;
pub mod elias;
mod encoded;
mod feedback;
mod format;
mod half_precision;
mod min_max;
mod qsgd;
mod seeded;
mod sign;
mod ternary;
mod two_bit;
mod values;
mod vote;

pub use columns::ColumnSign;
pub use deferred::{DeferredFeedback, OnePass};
pub use encoded::Encoded;
pub use feedback::{BucketFeedback, Feedback};
pub use format::Format;
pub use half_precision::HalfPrecision;
pub use min_max::MinMax;
pub use qsgd::{Norm, Qsgd};
pub use sign::{Magnitude, Sign};
pub use ternary::Ternary;
pub use two_bit::TwoBit;
pub use values::Values;
pub use vote::{Signs, Votes, encode_signs};

use crate::bits::check_finite;
use crate::simd::{Level, dense, pack};
use crate::{Error, SparseView};

/// Values that are processed together, and the unit of packing.
pub(crate) const BLOCK: usize = pack::BLOCK;

/// Writes values as bytes.
pub trait Quantiser {
    /// The format of the bytes.
    fn format(&self) -> Format;

    /// The exact number of bytes that `count` values take.
    fn encoded_bytes(&self, count: usize) -> usize;

    /// Replaces `bytes` by the encoded `values`. Does not allocate once `bytes` has had this length.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for the first NaN or infinity; `bytes` must not be sent then.
    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error>;

    /// Like [`encode`](Self::encode), for the values of a sparse vector. The indices matter only for formats
    /// with columns.
    ///
    /// # Errors
    /// The same as for [`encode`](Self::encode); the index in the error is that of the dense vector.
    fn encode_sparse(&mut self, entries: SparseView<'_>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.encode(entries.values(), bytes).map_err(|error| dense_index(error, entries))
    }

    /// Whether error feedback around this quantiser is sound: for every vector `x` of `count` values whose
    /// decoded message is `C(x)`, zero and what is outside of the format's range aside, either
    /// `E|C(x) - x|^2 < |x|^2`, or no element of `C(x) - x` exceeds a fixed share below 1 of the largest of
    /// `x`. Otherwise residuals may grow without bound. With a share `q`, gradients of magnitudes up to `G`
    /// leave residuals of magnitudes up to `q / (1 - q) G`. The values of a selection are not zero; those of
    /// a dense vector may be (`may_be_zero`).
    ///
    /// | quantiser | contracts |
    /// | --- | --- |
    /// | [`Plain`](crate::codec::Plain), [`HalfPrecision`], [`ColumnSign`] | always |
    /// | [`Sign`], [`TwoBit`], [`Magnitude::Mean`] | always |
    /// | [`Sign`], [`TwoBit`], [`Magnitude::Min`] | if no value is zero, or there is one value |
    /// | [`MinMax`] | with buckets of at most 130,050 values |
    /// | [`Qsgd`], `s` levels of `d` values | if `d < 4 s^2` |
    /// | [`Qsgd`] by [`Norm::Largest`] | if `s > 1` (`q = 1 / s`) or `d <= 8` |
    /// | [`Ternary`] | [`halved`](Ternary::halved) (`q = 1 / 2`); up to 8 values without clipping |
    ///
    /// With [`Magnitude::Min`] no fixed share of `|x|^2` is sure to be delivered: a value that gets more than
    /// the smallest survivor in every step falls behind, as with the published method.
    fn contracts(&self, count: usize, may_be_zero: bool) -> bool;
}

/// Fails unless error feedback around the quantiser is sound for dense vectors of `count` values.
///
/// # Errors
/// [`Error::Diverges`].
pub(crate) fn check_contracts(quantiser: &(impl Quantiser + ?Sized), count: usize) -> Result<(), Error> {
    let format = quantiser.format();
    if quantiser.contracts(count, true) {
        return Ok(());
    }
    let remedy = match format {
        Format::Sign | Format::TwoBit => "use the mean, or quantise the values of a selection",
        Format::Qsgd => {
            "use the largest magnitude as norm, more levels or shorter buckets, or no feedback: QSGD has no \
             bias"
        }
        Format::Ternary => "clip to half of the largest value, or use no feedback: TernGrad has no bias",
        Format::MinMax => "use buckets of at most 130050 values",
        _ => "use another quantiser, or no feedback",
    };
    Err(Error::Diverges { format, count, remedy })
}

impl<Q: Quantiser + ?Sized> Quantiser for Box<Q> {
    fn format(&self) -> Format {
        (**self).format()
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        (**self).encoded_bytes(count)
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        (**self).encode(values, bytes)
    }

    fn encode_sparse(&mut self, entries: SparseView<'_>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        (**self).encode_sparse(entries, bytes)
    }

    fn contracts(&self, count: usize, may_be_zero: bool) -> bool {
        (**self).contracts(count, may_be_zero)
    }
}

/// A quantiser that encodes buckets of consecutive values independently of each other.
pub trait Bucketed: Quantiser {
    /// Values in a bucket, a multiple of 512.
    fn bucket(&self) -> usize;

    /// Bytes before the buckets.
    fn head_bytes(&self) -> usize;

    /// Starts a new message and writes its head, which comes before the buckets.
    fn begin(&mut self, head: &mut [u8]);

    /// Bytes of a bucket of `count` values.
    fn bucket_bytes(&self, count: usize) -> usize;

    /// Encodes finite values. The first is at place `first` of its vector.
    fn encode_bucket(&self, first: usize, values: &[f32], bytes: &mut [u8]);

    /// Decodes what [`encode_bucket`](Self::encode_bucket) wrote.
    fn decode_bucket(&self, bytes: &[u8], values: &mut [f32]);
}

/// Implements [`State`](crate::state::State) for a quantiser that draws a key for each message: it saves the
/// generator of keys.
macro_rules! state_of_keys {
    ($quantiser:ty, $kind:literal) => {
        /// Saves the generator of the messages' keys.
        impl crate::state::State for $quantiser {
            fn kind(&self) -> [u8; 4] {
                *$kind
            }

            fn shape(&self) -> Vec<u64> {
                Vec::new()
            }

            fn write_contents(&self, contents: &mut crate::state::Writer) {
                contents.part(&self.keys);
            }

            fn read_contents(&mut self, contents: &mut crate::state::Reader<'_>) -> Result<(), crate::Error> {
                contents.part(&mut self.keys)
            }
        }
    };
}
use state_of_keys;

/// [`Quantiser::encode`] for quantisers with buckets.
fn encode_buckets(quantiser: &mut impl Bucketed, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
    let first = begin(quantiser, values.len(), bytes);
    let (bucket, mut rest) = (quantiser.bucket(), &mut bytes[first..]);
    for (number, values) in values.chunks(bucket).enumerate() {
        check_finite(values).map_err(|error| later(error, number * bucket))?;
        let (own, others) = rest.split_at_mut(quantiser.bucket_bytes(values.len()));
        quantiser.encode_bucket(number * bucket, values, own);
        rest = others;
    }
    Ok(())
}

/// Makes room, writes the head, and returns where the buckets begin.
fn begin(quantiser: &mut impl Bucketed, count: usize, bytes: &mut Vec<u8>) -> usize {
    bytes.resize(quantiser.encoded_bytes(count), 0);
    let head = quantiser.head_bytes();
    quantiser.begin(&mut bytes[..head]);
    head
}

/// Shifts the index of an error by `first`, where the slice begins.
fn later(error: Error, first: usize) -> Error {
    match error {
        Error::NonFinite { index, value } => Error::NonFinite { index: first + index, value },
        other => other,
    }
}

/// Replaces the index of an error by that of the sparse vector's entry.
fn dense_index(error: Error, entries: SparseView<'_>) -> Error {
    match error {
        Error::NonFinite { index, value } => {
            Error::NonFinite { index: entries.indices()[index] as usize, value }
        }
        other => other,
    }
}

/// Encodes blocks of values by `codes`, with `width` bits each.
fn pack_values(
    width: usize,
    values: &[f32],
    bytes: &mut [u8],
    mut code: impl FnMut(usize, &[f32], &mut [u8]),
) {
    let level = Level::best();
    let mut codes = [0; BLOCK];
    let parts = bytes.chunks_mut(pack::packed_bytes(BLOCK, width));
    for (number, (values, bytes)) in values.chunks(BLOCK).zip(parts).enumerate() {
        let codes = &mut codes[..values.len()];
        code(number * BLOCK, values, codes);
        pack::pack_width(level, width, codes, bytes);
    }
}

/// The codes of block `number` of a packed vector.
fn unpack_block(width: usize, bytes: &[u8], number: usize, codes: &mut [u8]) {
    let first = number * pack::packed_bytes(BLOCK, width);
    let bytes = &bytes[first..][..pack::packed_bytes(codes.len(), width)];
    pack::unpack_width(Level::best(), width, bytes, codes);
}

/// The largest magnitude of finite values.
fn largest(values: &[f32]) -> f32 {
    f32::from_bits(dense::largest_magnitude(Level::best(), values))
}
