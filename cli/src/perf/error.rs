//! Why a measurement failed.

use std::io;
use std::path::PathBuf;

use brevity::collectives::Error as Collective;
use brevity::transport::Error as Transport;

use super::arguments::Benchmark;

/// What the parts of `brevity perf` return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments make no sense; nothing was started.
    #[error("{0}")]
    Arguments(String),

    /// A collective failed.
    #[error("{0}")]
    Collective(#[from] brevity::collectives::Error),

    /// A rank has a wrong result.
    #[error("rank {rank}: {benchmark} of {bytes} bytes is wrong at {index}: found {found}, expected {expected}")]
    Wrong {
        /// The rank.
        rank: u32,
        /// What was measured.
        benchmark: Benchmark,
        /// The size.
        bytes: usize,
        /// The first position that is wrong.
        index: usize,
        /// What is there.
        found: String,
        /// What belongs there.
        expected: String,
    },

    /// The figures can't be written.
    #[error("can't write {path}: {why}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        why: String,
    },

    /// The ranks can't be started or watched.
    #[error("{0}")]
    Launch(#[from] brevity::transport::Error),

    /// The file of this program can't be found, to start it again.
    #[error("can't start the ranks: {0}")]
    Program(String),

    /// A rank was killed.
    #[error("{0}")]
    Killed(String),

    /// The table can't be printed.
    #[error("can't print the table: {0}")]
    Print(#[from] io::Error),
}

impl Error {
    /// The exit status that tells it.
    pub fn status(&self) -> u8 {
        let of_environment = |error: &Transport| matches!(error, Transport::Environment { .. });
        match self {
            Self::Arguments(_) => 2,
            Self::Launch(error) | Self::Collective(Collective::Transport(error)) if of_environment(error) => 2,
            _ => 1,
        }
    }
}
