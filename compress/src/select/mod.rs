//! The `k` entries of largest magnitude.
//!
//! The total order: larger `|v|` first, equal magnitudes by smaller index (by tensor and index where several
//! tensors are selected from together). Zeros are never selected. How it is done, for `n` values:
//!
//! 1. guess a lower bound of the `k`-th magnitude: a little under where the last step's selection ended, or
//!    from a sample of single values, a few deviations to the safe side;
//! 2. one pass collects the values at or above the bound: *candidates*, somewhat more than `k`. In the same
//!    pass a gradient is added to a residual, and the candidates leave zeros there. When the room for
//!    candidates is full, all but their first `k` go back, and the bound rises above the magnitude of the
//!    last of these;
//! 3. at least `k` candidates prove the bound, and the exact cut is found among them. With fewer, a lower
//!    bound is tried.
//!
//! Guesses, threads and instruction sets change how long it takes, never what is selected.
//!
//! Other rules of what is sent, to be compared with it: [`sampled_top_k`], [`resampled_top_k`],
//! [`fixed_threshold`], [`top_k_by_sign`], [`random_k`], [`random_block`], [`bin_maxima`] and
//! [`non_zero_blocks`]. Each turns a dense vector, such as a residual to which the gradient has been added,
//! into what is sent of it; what was sent, subtracted from the residual, leaves what stays, so that both
//! together are what came in.

mod bins;
mod blocks;
mod by_sign;
mod candidates;
mod cut;
mod feed;
mod fixed_threshold;
mod guess;
mod part;
mod passing;
mod random;
mod sampled;
mod search;
mod top_k;

pub use bins::bin_maxima;
pub use blocks::{BLOCK_PLACES, Blocks, non_zero_blocks};
pub use by_sign::{BySignScratch, top_k_by_sign};
pub use candidates::LeftOut;
pub(crate) use cut::{CutScratch, find_cut};
pub use feed::{feed_top_k, feed_top_k_of_all};
pub use fixed_threshold::fixed_threshold;
pub use guess::Hint;
pub use random::{random_block, random_k};
pub use sampled::{SampledScratch, resampled_top_k, sampled_top_k};
pub use search::TopKScratch;
pub use top_k::{top_k, top_k_of_all};
