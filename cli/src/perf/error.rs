//! Why a measurement failed.

use std::io;
use std::path::PathBuf;

use brevity::collectives::Error as Collective;
use brevity::transport::Error as Transport;

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

    /// A measurement failed, or its result is wrong.
    #[error("{0}")]
    Measurement(brevity_bench::Error),

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

impl From<brevity_bench::Error> for Error {
    fn from(error: brevity_bench::Error) -> Self {
        match error {
            brevity_bench::Error::Arguments(why) => Self::Arguments(why),
            brevity_bench::Error::Collective(error) => Self::Collective(error),
            brevity_bench::Error::Transport(error) => {
                Self::Collective(brevity::collectives::Error::Transport(error))
            }
            other => Self::Measurement(other),
        }
    }
}

impl Error {
    /// The exit status that tells it.
    pub fn status(&self) -> u8 {
        let of_environment = |error: &Transport| matches!(error, Transport::Environment { .. });
        match self {
            Self::Arguments(_) => 2,
            Self::Launch(error) | Self::Collective(Collective::Transport(error)) if of_environment(error) => {
                2
            }
            _ => 1,
        }
    }
}
