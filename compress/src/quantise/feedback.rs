//! Error feedback for quantisers that know their scale before they write.

use super::{Bucketed, Encoded, Quantiser, begin, later};
use crate::dense::{accumulate, take_out};
use crate::error::check_length;
use crate::simd::{Level, codes};
use crate::state::{Reader, State, Writer};
use crate::{Error, SparseVec};

/// Error feedback around any quantiser, in three passes or more: `r += g`, encode, `r -= d`.
#[derive(Debug, Clone)]
pub struct Feedback<Q> {
    quantiser: Q,
    residual: Vec<f32>,
}

impl<Q: Quantiser> Feedback<Q> {
    /// Feedback for a vector of `n` values, which is zero.
    pub fn new(n: usize, quantiser: Q) -> Self {
        Self { quantiser, residual: vec![0.0; n] }
    }

    /// Adds `gradient` to the residual and moves to `bytes` what the quantiser can say of it.
    ///
    /// # Errors
    /// As [`accumulate`] for the sum: the residual has no part of the gradient then.
    pub fn compress(&mut self, gradient: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        accumulate(&mut self.residual, gradient)?;
        self.quantiser.encode(&self.residual, bytes)?;
        Encoded::new(self.quantiser.format(), self.residual.len(), bytes)?.add_to(-1.0, &mut self.residual)
    }

    /// Puts a message that was not delivered back, to rounding; the residual stays finite.
    ///
    /// # Errors
    /// As [`Encoded::new`] for bytes that this object has not written; nothing has changed then.
    pub fn put_back(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Encoded::new(self.quantiser.format(), self.residual.len(), bytes)?.put_back_to(&mut self.residual)
    }
}

/// Error feedback in one pass for quantisers with buckets: each is added to, encoded and decoded while it is
/// in the cache.
#[derive(Debug, Clone)]
pub struct BucketFeedback<Q> {
    quantiser: Q,
    residual: Vec<f32>,
    decoded: Vec<f32>,
}

impl<Q: Bucketed> BucketFeedback<Q> {
    /// Feedback for a vector of `n` values, which is zero.
    pub fn new(n: usize, quantiser: Q) -> Self {
        let decoded = vec![0.0; quantiser.bucket().min(n)];
        Self { quantiser, residual: vec![0.0; n], decoded }
    }

    /// Adds `gradient` to the residual and moves to `bytes` what the quantiser can say of it.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]: nothing has changed then. [`Error::NonFinite`] for the first sum that is
    /// not finite: the residual is finite then and what it was, but for roundings, and `bytes` is not to be
    /// sent.
    pub fn compress(&mut self, gradient: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        check_length(self.residual.len(), gradient.len())?;
        let level = Level::best();
        let mut at = begin(&mut self.quantiser, gradient.len(), bytes);
        let bucket = self.quantiser.bucket();
        // The quantiser may have been replaced by another.
        self.decoded.resize(bucket.min(gradient.len()), 0.0);
        for (number, g) in gradient.chunks(bucket).enumerate() {
            let first = number * bucket;
            let r = &mut self.residual[first..first + g.len()];
            if let Err(error) = accumulate(r, g) {
                self.undo(&gradient[..first], bytes);
                return Err(later(error, first));
            }
            let length = self.quantiser.bucket_bytes(g.len());
            self.quantiser.encode_bucket(first, r, &mut bytes[at..at + length]);
            let decoded = &mut self.decoded[..g.len()];
            self.quantiser.decode_bucket(&bytes[at..at + length], decoded);
            codes::add_scaled(level, r, -1.0, decoded);
            at += length;
        }
        Ok(())
    }

    /// Puts a message that was not delivered back, to rounding; the residual stays finite.
    ///
    /// # Errors
    /// As [`Encoded::new`] for bytes that this object has not written; nothing has changed then.
    pub fn put_back(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Encoded::new(self.quantiser.format(), self.residual.len(), bytes)?.put_back_to(&mut self.residual)
    }

    /// Takes out a gradient whose first buckets were added and encoded.
    fn undo(&mut self, gradient: &[f32], bytes: &[u8]) {
        let (bucket, mut at) = (self.quantiser.bucket(), self.quantiser.head_bytes());
        for (r, g) in self.residual.chunks_mut(bucket).zip(gradient.chunks(bucket)) {
            let length = self.quantiser.bucket_bytes(g.len());
            let decoded = &mut self.decoded[..g.len()];
            self.quantiser.decode_bucket(&bytes[at..at + length], decoded);
            codes::add_scaled(Level::best(), r, 1.0, decoded);
            take_out(Level::best(), r, g);
            at += length;
        }
    }
}

/// The kind of saved residuals of quantisers. They mean the same whatever quantiser they are of, and whatever
/// feeds it, so that one may be loaded into another; what a quantiser itself remembers is saved apart.
pub(super) const KIND: [u8; 4] = *b"qfbk";

/// What both feedbacks let others see of their quantiser and their residual, and save.
macro_rules! lend_parts {
    ($feedback:ident, $quantiser:ident) => {
        impl<Q: $quantiser> $feedback<Q> {
            /// The quantiser.
            pub fn quantiser(&self) -> &Q {
                &self.quantiser
            }

            /// The quantiser, to load what it remembers.
            pub fn quantiser_mut(&mut self) -> &mut Q {
                &mut self.quantiser
            }

            /// The residual.
            pub fn residual(&self) -> &[f32] {
                &self.residual
            }

            /// The residual, to be changed or replaced by a saved one.
            pub fn residual_mut(&mut self) -> &mut [f32] {
                &mut self.residual
            }
        }

        impl<Q> State for $feedback<Q> {
            fn kind(&self) -> [u8; 4] {
                KIND
            }

            fn shape(&self) -> Vec<u64> {
                vec![self.residual.len() as u64]
            }

            fn write_contents(&self, contents: &mut Writer) {
                contents.f32s(&self.residual);
            }

            fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
                contents.f32s(&mut self.residual)
            }
        }
    };
}

lend_parts!(Feedback, Quantiser);
lend_parts!(BucketFeedback, Bucketed);

/// Encodes what a selection has taken out of `residual`: `entries` become what the message says, and what
/// rounding has changed is added back at their places. `decoded` is work space.
///
/// # Errors
/// [`Error::LengthMismatch`] unless `residual` has the dense length, [`Error::NonFinite`] for the first entry
/// that is not finite, or the first sum; `entries` and `residual` are unchanged then, and `bytes` is not to
/// be sent.
pub fn encode_entries<Q: Quantiser + ?Sized>(
    quantiser: &mut Q,
    entries: &mut SparseVec,
    residual: &mut [f32],
    decoded: &mut Vec<f32>,
    bytes: &mut Vec<u8>,
) -> Result<(), Error> {
    check_length(entries.dim(), residual.len())?;
    quantiser.encode_sparse(entries.view(), bytes)?;
    decoded.resize(entries.len(), 0.0);
    Encoded::new(quantiser.format(), entries.len(), bytes)?.decode_sparse(entries.indices(), decoded)?;
    let sum = |(index, value): (u32, f32), said: f32| residual[index as usize] + (value - said);
    let mut sums = entries.iter().zip(&*decoded).map(|(entry, &said)| (entry.0, sum(entry, said)));
    if let Some((index, value)) = sums.find(|(_, sum)| !sum.is_finite()) {
        return Err(Error::NonFinite { index: index as usize, value });
    }
    drop(sums);
    for ((index, value), &said) in entries.iter().zip(&*decoded) {
        residual[index as usize] += value - said;
    }
    entries.values_mut().copy_from_slice(decoded);
    Ok(())
}
