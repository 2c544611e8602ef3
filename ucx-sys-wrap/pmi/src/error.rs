//! Why the launcher's store could not be used.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why rank 0's text did not reach this rank.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such library, or it can't be loaded.
    #[error("no PMIx library (looked for {}): {reason}", looked_for.display())]
    NotLoaded {
        /// The file name or path that was asked for.
        looked_for: PathBuf,
        /// The dynamic linker's reason.
        reason: String,
    },

    /// The library lacks functions.
    #[error("{} is no PMIx library, it lacks {}", looked_for.display(), names.join(", "))]
    Incomplete {
        /// The file name or path that was asked for.
        looked_for: PathBuf,
        /// The functions that it lacks, all of them.
        names: Vec<&'static str>,
    },

    /// The launcher refused.
    #[error("{call} failed: {reason}")]
    Refused {
        /// The call.
        call: &'static str,
        /// The launcher's reason.
        reason: String,
    },

    /// The launcher's answer is invalid.
    #[error("the launcher answered {found:?} to {call}, expected {expected}")]
    Malformed {
        /// The call.
        call: &'static str,
        /// The answer, cut to a line.
        found: String,
        /// The expected form.
        expected: &'static str,
    },

    /// The rank of this process differs between the launcher's server and the environment.
    #[error("the launcher's PMIx server takes this process for rank {found}, expected {expected}")]
    OtherRank {
        /// The server's rank.
        found: u32,
        /// The environment's rank.
        expected: u32,
    },

    /// The deadline passed.
    #[error("{call} did not end in time: do all ranks of the launcher's job join?")]
    Late {
        /// The call.
        call: &'static str,
    },

    /// The launcher is gone.
    #[error("the launcher closed the connection during {call}")]
    Closed {
        /// The call.
        call: &'static str,
    },

    /// The text is empty, too long, or has characters that the protocol does not allow.
    #[error(
        "the text {text:?} can't be stored: expected at most 512 printable bytes without blanks, quotes, = \
         and ;"
    )]
    Unfit {
        /// The text.
        text: String,
    },

    /// The operating system refused.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's reason.
        source: Arc<io::Error>,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { call, source: Arc::new(source.into()) }
    }
}
