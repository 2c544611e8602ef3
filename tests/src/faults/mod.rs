//! Jobs with faults: the reports of their ranks, and what the test does to them.
//!
//! A rank (`fault`) and the test communicate through a folder, named by `FAULT_DIR`: `ready-RANK` says that a
//! rank is in the middle of its work, `go` that it may continue, `report-RANK` how its calls ended.

mod job;
mod report;
mod returning;

pub use job::{Job, PATIENCE};
pub use report::{Ended, Kind, Log, Report, now};
pub use returning::Returning;

/// Names the folder.
const FOLDER: &str = "FAULT_DIR";
