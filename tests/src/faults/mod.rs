//! Jobs in which something goes wrong: what their ranks say, and what the test does to them.
//!
//! A rank (`fault`) and the test talk through a folder, named by `FAULT_DIR`: `ready-RANK` says that a rank
//! is in the middle of it, `go` that it may go on, `report-RANK` how its calls ended.

mod job;
mod report;

pub use job::{Job, PATIENCE};
pub use report::{Ended, Kind, Log, Report};

/// Names the folder.
const FOLDER: &str = "FAULT_DIR";
