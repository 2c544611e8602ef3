//! A classifier of handwritten digits, trained by several ranks that exchange compressed gradients.
//!
//! The program `train` is built from these modules, which can be read independently: [`data`] reads the
//! examples and distributes them to the ranks, [`model`] is the network (candle computes its gradients),
//! [`optimizer`] turns an averaged gradient into a step, [`trainer`] is the loop between them, and [`report`]
//! and [`plot`] show the results. Ranks communicate in one place only: the trait [`trainer::Exchange`]. In
//! [`asynchronous`] training they do so through a parameter server.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod asynchronous;
pub mod course;
pub mod data;
pub mod embed;
pub mod error;
pub mod exchange;
pub mod in_process;
pub mod job;
pub mod method;
pub mod model;
pub mod optimizer;
pub mod plot;
pub mod progress;
pub mod ranks;
pub mod report;
pub mod surviving;
pub mod trainer;

pub use error::Error;
