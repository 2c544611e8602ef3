//! The `k` entries of largest magnitude.
//!
//! The total order: larger `|v|` first, equal magnitudes by smaller index (by tensor and index where several tensors are
//! selected from together). Zeros are never selected. How it is done, for `n` values:
//!
//! 1. guess a lower bound of the `k`-th magnitude: a little under where the last step's selection ended, or from a sample of
//!    single values, a few deviations to the safe side;
//! 2. one pass collects the values at or above the bound: *candidates*, somewhat more than `k`. In the same pass a gradient
//!    is added to a residual, and the candidates leave zeros there. When the room for candidates is full, all but their
//!    first `k` go back, and the bound rises above the magnitude of the last of these;
//! 3. at least `k` candidates prove the bound, and the exact cut is found among them. With fewer, a lower bound is tried.
//!
//! Guesses, threads and instruction sets change how long it takes, never what is selected.

mod candidates;
mod cut;
mod feed;
mod guess;
mod part;
mod search;
mod top_k;

pub use candidates::LeftOut;
pub(crate) use cut::{CutScratch, find_cut};
pub use feed::{feed_top_k, feed_top_k_of_all};
pub use guess::Hint;
pub use search::TopKScratch;
pub use top_k::{top_k, top_k_of_all};
