//! Error feedback: what is not sent stays in a residual and is sent later.
//!
//! `r` is the residual of one tensor on one rank, `g` its gradient. Each step does `r += g` and takes a
//! message out of `r`; a failed message is put back. So what was sent plus the residual is always the sum of
//! the gradients (Aji and Heafield, EMNLP 2017; Vogels et al., NeurIPS 2019, algorithm 2).

mod compressor;
mod error_feedback;
mod gradient;
mod residual;
mod selector;
mod tracked;

pub use compressor::{Compressor, Quantised, add_in_parts};
pub use error_feedback::{ErrorFeedback, Rule};
pub use gradient::Gradient;
pub use residual::Residual;
pub(crate) use selector::add_entries;
pub use selector::{NonZeroBlocks, SelectBy, TopK};
pub use tracked::{Tracked, TrackedScratch};
