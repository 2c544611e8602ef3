//! Why a measurement failed.

use std::io;
use std::path::PathBuf;

use crate::output::UNREAD;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments are invalid; nothing was started.
    #[error("{0}")]
    Arguments(String),

    /// A rank has a wrong result.
    #[error("rank {rank}: {what} of {bytes} bytes is wrong at {index}: found {found}, expected {expected}")]
    Wrong {
        /// The rank.
        rank: u32,
        /// What was measured.
        what: &'static str,
        /// The size.
        bytes: usize,
        /// The first position that is wrong.
        index: usize,
        /// The value found.
        found: String,
        /// The value expected.
        expected: String,
    },

    /// A transport failed.
    #[error("{0}")]
    Transport(#[from] brevity::transport::Error),

    /// A collective failed.
    #[error("{0}")]
    Collective(#[from] brevity::collectives::Error),

    /// A server or an exchange of gradients failed.
    #[error("{0}")]
    Library(#[from] brevity::Error),

    /// A measured process did not do what it was told.
    #[error("{who}: {what}")]
    Contestant {
        /// The library or program.
        who: String,
        /// What happened, with the process's own message.
        what: String,
    },

    /// A line between the conductor and a measured process is invalid.
    #[error("{line:?} is not understood, expected {expected}")]
    Line {
        /// The line.
        line: String,
        /// What is expected there.
        expected: &'static str,
    },

    /// A file can't be written.
    #[error("can't write {path}: {why}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        why: String,
    },

    /// Standard output was closed, which is not worth a message.
    #[error("nobody reads the results")]
    Unread,

    /// The system refused something.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        why: io::Error,
    },
}

impl Error {
    /// Converts the system's error when `what` was tried.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |why| Self::System { what, why }
    }

    /// An error of the contestant `who`.
    pub fn contestant(who: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Contestant { who: who.into(), what: what.into() }
    }

    /// The exit status for this error.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Arguments(_) => 2,
            Self::Unread => UNREAD,
            _ => 1,
        }
    }
}
