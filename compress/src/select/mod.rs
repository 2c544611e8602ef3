//! Selection of the `k` entries of largest magnitude.
//!
//! The total order: larger `|v|` first, equal magnitudes by smaller index (by tensor and index for a list of
//! tensors). Zeros are never selected. The algorithm, for `n` values:
//!
//! 1. guess a lower bound of the `k`-th magnitude: slightly below the end of the last step's selection, or
//!    from a sample of single values, a few deviations on the safe side;
//! 2. one pass collects the values at or above the bound: the *candidates*, somewhat more than `k`. The same
//!    pass adds the gradient to the residual and leaves zeros for the candidates. When the room for
//!    candidates is full, all but their first `k` go back, and the bound rises above the magnitude of the
//!    last of these;
//! 3. at least `k` candidates prove the bound, and the exact cut is searched among them. With fewer
//!    candidates, a lower bound is tried.
//!
//! Guesses, threads and instruction sets affect the time, never the selection.
//!
//! Other selection rules, for comparison: [`sampled_top_k`], [`resampled_top_k`], [`fixed_threshold`],
//! [`over_threshold`], [`top_k_by_sign`], [`random_k`], [`random_block`], [`bin_maxima`], [`non_zero_blocks`]
//! and [`largest_blocks`]. Each takes a dense vector, such as a residual with the gradient added, and returns
//! what is sent of it. The caller subtracts what was sent from the residual, so that both together equal the
//! input.

mod bins;
mod blocks;
mod by_sign;
mod candidates;
mod cut;
mod feed;
mod fixed_threshold;
mod guess;
mod ladder;
mod part;
mod passing;
mod random;
mod sampled;
mod search;
mod top_k;

pub use bins::bin_maxima;
pub use blocks::{BLOCK_PLACES, Blocks, largest_blocks, non_zero_blocks};
pub use by_sign::{BySignScratch, top_k_by_sign};
pub use candidates::LeftOut;
pub(crate) use cut::{CutScratch, find_cut};
pub use feed::{feed_top_k, feed_top_k_of_all};
pub use fixed_threshold::{fixed_threshold, over_threshold};
pub use guess::Hint;
pub use ladder::{RUNGS, ladder_counts, ladder_rungs};
pub use random::{random_block, random_k};
pub use sampled::{SampledScratch, resampled_top_k, sampled_top_k};
pub use search::TopKScratch;
pub use top_k::{top_k, top_k_of_all};
