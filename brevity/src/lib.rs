//! Brevity averages gradients between the processes of a data-parallel program, with compression.
//!
//! Ranks exchange gradients as sparse or low-rank messages over UCX, TCP or shared memory. Error feedback
//! keeps what is not sent and sends it later.
//!
//! ```no_run
//! use brevity::{GradientExchange, Group, Policy};
//!
//! # fn backward() -> Vec<Vec<f32>> { vec![] }
//! let group = Group::from_env()?; // rank, world size and transport from the environment
//! let mut exchange = GradientExchange::builder(&group)
//!     .tensor("embedding", [50_000, 512], Policy::gtopk(0.001))
//!     .tensor("linear.weight", [512, 512], Policy::low_rank(4))
//!     .tensor("linear.bias", [512], Policy::dense())
//!     .build()?;
//! let mut gradients: Vec<Vec<f32>> = backward();
//! // In place; the same bits on every rank; the rest stays in the residuals.
//! exchange.average(&mut gradients)?;
//! # Ok::<(), brevity::Error>(())
//! ```
//!
//! A program that starts its ranks itself, without a launcher and its environment, joins by [`Join`]: at an
//! address, by a [`JobId`] that its own store carries, or through its own all-gather.
//!
//! The layers below are public: the collectives on plain slices ([`Group`]), the compressors on plain vectors
//! ([`compress`]), and the transport by itself ([`transport`]).
#![forbid(unsafe_code)]

mod error;
mod exchange;
#[cfg(feature = "log")]
pub mod log;
mod policy;
pub mod server;
#[cfg(feature = "smol")]
pub mod smol;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use brevity_collectives as collectives;
pub use brevity_collectives::engine::{Driver, Handle};
pub use brevity_collectives::sparse::PutBack;
pub use brevity_collectives::{
    Element, Group, Join, Joining, Leaving, Link, Machine, Message, ReduceOp, Reduction, Settings,
};
pub use brevity_compress as compress;
pub use error::{Error, Result};
pub use exchange::{
    Averaged, Averaging, BucketReport, Choice, ExchangeBuilder, GradientElement, GradientExchange, Phase,
    PhaseReport, Step, StepReport,
};
pub use policy::{Policy, PolicyRules, Scope, Threshold};
pub use server::ParameterServer;
pub use ucx_sys_wrap as transport;
pub use ucx_sys_wrap::bootstrap::JobId;
pub use ucx_sys_wrap::launch;
