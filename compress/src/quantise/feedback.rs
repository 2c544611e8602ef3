//! Error feedback for quantisers that know their scale before they write codes.

use super::{Bucketed, Encoded, Quantiser, begin, check_contracts, later};
use crate::Error;
use crate::dense::{accumulate, take_out};
use crate::error::check_length;
use crate::simd::{Level, codes};
use crate::state::{Reader, State, Writer};

/// Error feedback around any quantiser, in three passes or more: `r += g`, encode, `r -= d`.
#[derive(Debug, Clone)]
pub struct Feedback<Q> {
    quantiser: Q,
    residual: Vec<f32>,
}

impl<Q: Quantiser> Feedback<Q> {
    /// Feedback for a vector of `n` values, initially zero.
    ///
    /// # Errors
    /// [`Error::Diverges`] unless the quantiser [contracts](Quantiser::contracts).
    pub fn new(n: usize, quantiser: Q) -> Result<Self, Error> {
        check_contracts(&quantiser, n)?;
        Ok(Self { quantiser, residual: vec![0.0; n] })
    }

    /// Adds `gradient` to the residual and moves what the quantiser encodes of it to `bytes`.
    ///
    /// # Errors
    /// The same as for [`accumulate`] on the sum; the residual then contains no part of the gradient. The
    /// same as for [`new`](Self::new) if the quantiser was replaced; nothing has changed then.
    pub fn compress(&mut self, gradient: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        check_contracts(&self.quantiser, self.residual.len())?;
        accumulate(&mut self.residual, gradient)?;
        self.quantiser.encode(&self.residual, bytes)?;
        Encoded::new(self.quantiser.format(), self.residual.len(), bytes)?.add_to(-1.0, &mut self.residual)
    }

    /// Puts back a message that was not delivered, up to rounding. The residual stays finite.
    ///
    /// # Errors
    /// The same as for [`Encoded::new`], for bytes that this object has not written; nothing has changed
    /// then.
    pub fn put_back(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Encoded::new(self.quantiser.format(), self.residual.len(), bytes)?.put_back_to(&mut self.residual)
    }
}

/// Error feedback in one pass for quantisers with buckets: each bucket is added to, encoded and decoded while
/// it is in the cache.
#[derive(Debug, Clone)]
pub struct BucketFeedback<Q> {
    quantiser: Q,
    residual: Vec<f32>,
    decoded: Vec<f32>,
}

impl<Q: Bucketed> BucketFeedback<Q> {
    /// Feedback for a vector of `n` values, initially zero.
    ///
    /// # Errors
    /// [`Error::Diverges`] unless the quantiser [contracts](Quantiser::contracts).
    pub fn new(n: usize, quantiser: Q) -> Result<Self, Error> {
        check_contracts(&quantiser, n)?;
        let decoded = vec![0.0; quantiser.bucket().min(n)];
        Ok(Self { quantiser, residual: vec![0.0; n], decoded })
    }

    /// Adds `gradient` to the residual and moves what the quantiser encodes of it to `bytes`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], and the same as for [`new`](Self::new) if the quantiser was replaced:
    /// nothing has changed then. [`Error::NonFinite`] for the first sum that is not finite: the residual is
    /// finite and unchanged up to rounding, and `bytes` must not be sent.
    pub fn compress(&mut self, gradient: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        check_length(self.residual.len(), gradient.len())?;
        check_contracts(&self.quantiser, gradient.len())?;
        let level = Level::best();
        let mut at = begin(&mut self.quantiser, gradient.len(), bytes);
        let bucket = self.quantiser.bucket();
        // The caller may have replaced the quantiser.
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

    /// Puts back a message that was not delivered, up to rounding. The residual stays finite.
    ///
    /// # Errors
    /// The same as for [`Encoded::new`], for bytes that this object has not written; nothing has changed
    /// then.
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

/// The kind of saved residuals of quantisers. Their meaning does not depend on the quantiser or the type of
/// feedback, so one may be loaded into another. A quantiser's own state is saved separately.
pub(super) const KIND: [u8; 4] = *b"qfbk";

/// The accessors and the saved state that both types have in common.
macro_rules! lend_parts {
    ($feedback:ident, $quantiser:ident) => {
        impl<Q: $quantiser> $feedback<Q> {
            /// The quantiser.
            pub fn quantiser(&self) -> &Q {
                &self.quantiser
            }

            /// The quantiser, for loading its saved state.
            pub fn quantiser_mut(&mut self) -> &mut Q {
                &mut self.quantiser
            }

            /// The residual.
            pub fn residual(&self) -> &[f32] {
                &self.residual
            }

            /// The residual, for changing it or replacing it by a saved one.
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
