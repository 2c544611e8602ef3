//! Why a measurement failed.

use brevity::collectives::Error as Collective;
use brevity::transport::Error as Transport;

use crate::UNREAD;

/// The result type of `brevity perf`.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments are invalid; nothing was started.
    #[error("{0}")]
    Arguments(String),

    /// A collective failed.
    #[error("{0}")]
    Collective(#[from] brevity::collectives::Error),

    /// A measurement failed, or its result is wrong.
    #[error("{0}")]
    Measurement(brevity_bench::Error),

    /// The ranks can't be started or watched.
    #[error("{0}")]
    Launch(#[from] brevity::transport::Error),

    /// The file of this program can't be found, so that it can't be started again.
    #[error("can't start the ranks: {0}")]
    Program(String),
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
    /// Whether standard output was closed, which is not worth a message.
    pub fn is_unread(&self) -> bool {
        matches!(self, Self::Measurement(brevity_bench::Error::Unread))
    }

    /// The exit status for this error.
    pub fn status(&self) -> u8 {
        let of_environment = |error: &Transport| matches!(error, Transport::Environment { .. });
        match self {
            _ if self.is_unread() => UNREAD,
            Self::Arguments(_) => 2,
            Self::Launch(error) | Self::Collective(Collective::Transport(error)) if of_environment(error) => {
                2
            }
            Self::Measurement(error) => error.status(),
            _ => 1,
        }
    }
}
