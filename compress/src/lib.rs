//! Arithmetic for saying less: selection, sparse vectors, error feedback and low-rank factors.
//!
//! Nothing here knows a network. State is `f32`, indices are `u32`, and every result depends on the
//! inputs alone, never on timing, thread count or the CPU's instruction set, so that ranks which
//! start from the same bits end with the same bits.
//!
//! That holds for threads in the standard floating-point mode, which programs start in. What is called here
//! computes in the mode of the calling thread: a thread that may have another one calls what must have the
//! same bits on all ranks (merging, decoding, orthonormalising, reconstructing, averaging) inside
//! [`in_standard_float_mode`]. The collectives of Brevity do that by themselves. What one rank decides for
//! itself and sends (selection, residuals, codes) may be computed in any mode.
//!
//! - [`select`]: the `k` entries of largest magnitude of a dense vector or of a list, also while a gradient
//!   is added to it; other rules of what is sent.
//! - [`SparseVec`], [`SparseView`]: indices and values of the entries that are kept.
//! - [`merge`]: sums of sparse vectors, among them the gTop-k operator.
//! - [`feedback`]: what was not sent stays in a residual and goes out later.
//! - [`momentum`]: momentum before selection, and after aggregation.
//! - [`dense`]: sums and conversions of dense vectors of `f32`, `f64`, `f16` and `bf16`.
//! - [`quantise`]: values in 1 to 16 bits, and what rounding loses kept for later.
//! - [`codec`]: sparse vectors as messages, few bits an index, and their checked decoding.
//! - [`low_rank`]: the phases of PowerSGD, to be reduced between.
//! - [`schedule`]: warm-up of the density.
//! - [`generator`]: random numbers that are the same on every rank and platform.
//! - [`state`]: what must be found again after a restart, saved and checked.
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

/// The instruction set that kernels run on here: `scalar`, `avx2`, `avx512` or `neon`. All give the same
/// bits.
pub fn instruction_set() -> &'static str {
    simd::Level::best().name()
}
