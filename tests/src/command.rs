//! Runs programs that must end in time.

use std::panic::resume_unwind;
use std::process::Command;
use std::thread;
use std::time::Duration;

use brevity_testing::worlds::reserved_port;
pub use brevity_testing::{Ended, run_within};

/// Runs the ranks of a job to their ends, each by a command from `make`, at most for `patience`. They meet on
/// loopback, with a key unless the command names one.
///
/// # Panics
/// If a command can't be started.
#[must_use]
pub fn run_ranks(world_size: u32, patience: Duration, make: impl Fn(u32) -> Command) -> Vec<Ended> {
    let (_reserved, port) = reserved_port();
    let ranks: Vec<_> = (0..world_size)
        .map(|rank| {
            let mut command = make(rank);
            command.env("BREVITY_RANK", rank.to_string()).env("BREVITY_WORLD_SIZE", world_size.to_string());
            command.env("BREVITY_MASTER", format!("127.0.0.1:{port}")).env("BREVITY_MASTER_RESERVED", "1");
            if !command.get_envs().any(|(name, _)| name == "BREVITY_KEY_FILE") {
                command.env("BREVITY_KEY", "a key of this test alone");
            }
            thread::spawn(move || run_within(&mut command, patience))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
}
