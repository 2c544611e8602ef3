//! The arithmetic of compression: selection, sparse vectors, error feedback and low-rank factors.
//!
//! This crate does not use the network. State is `f32`, indices are `u32`. Every result depends on the inputs
//! alone, not on timing, thread count or the CPU's instruction set, so ranks that start from the same bits
//! end with the same bits.
//!
//! This holds for threads in the standard floating-point mode, which is the default. Functions here compute
//! in the mode of the calling thread. A thread that may be in another mode uses [`in_standard_float_mode`]
//! for everything that must have the same bits on all ranks: merging, decoding, orthonormalising,
//! reconstructing, averaging. Brevity's collectives do so themselves. What one rank decides alone and sends
//! (selection, residuals, codes) may be computed in any mode.
//!
//! - [`select`]: the `k` entries of largest magnitude of a dense vector or a list of vectors, also while a
//!   gradient is added; other selection rules.
//! - [`SparseVec`], [`SparseView`]: indices and values of the kept entries.
//! - [`merge`]: sums of sparse vectors, including the gTop-k operator.
//! - [`feedback`]: residuals that keep what is not sent.
//! - [`momentum`]: momentum before selection and after aggregation.
//! - [`dense`]: sums and conversions of dense vectors of `f32`, `f64`, `f16` and `bf16`.
//! - [`reduce`]: sums, products, maxima, minima and bitwise operations of dense vectors of numbers.
//! - [`quantise`]: values in 1 to 16 bits, with error feedback for the rounding.
//! - [`codec`]: sparse vectors as messages with few bits an index, and checked decoding.
//! - [`low_rank`]: the phases of PowerSGD, between which the caller reduces.
//! - [`schedule`]: warm-up of the density.
//! - [`generator`]: random numbers that are the same on every rank and platform.
//! - [`state`]: saving and loading what a restart needs, with checks.
//!
//! ```
//! use brevity_compress::{SparseVec, feedback::Residual, select::TopKScratch};
//!
//! let mut residual = Residual::new(4);
//! let mut sent = SparseVec::new(4);
//! residual.feed_top_k(&[0.5, -3.0, 1.0, 0.0][..], 2, &mut sent, &mut TopKScratch::new())?;
//! assert_eq!((sent.indices(), sent.values()), (&[1, 2][..], &[-3.0, 1.0][..]));
//! assert_eq!(residual.values(), [0.5, 0.0, 0.0, 0.0]);
//! # Ok::<(), brevity_compress::Error>(())
//! ```

#![deny(unsafe_code)]

mod bits;
mod density;
mod error;
#[allow(unsafe_code, reason = "kernels for instruction sets that are detected at run time")]
mod simd;
mod sparse;

pub mod codec;
pub mod dense;
pub mod feedback;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod generator;
pub mod low_rank;
pub mod merge;
pub mod momentum;
pub mod quantise;
pub mod reduce;
mod room;
pub mod schedule;
pub mod select;
pub mod state;

pub use density::Density;
pub use error::Error;
pub use simd::float_mode::in_standard_float_mode;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use simd::float_mode::testing as float_modes;
pub use sparse::{SparseVec, SparseView};

/// The instruction set of the kernels on this CPU: `scalar`, `avx2`, `avx512` or `neon`. All give the same
/// bits.
pub fn instruction_set() -> &'static str {
    simd::Level::best().name()
}
