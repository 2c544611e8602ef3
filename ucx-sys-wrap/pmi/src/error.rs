//! Why the launcher's store could not be used.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// What this crate returns.
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
        /// What the dynamic linker said.
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
        /// What was asked.
        call: &'static str,
        /// The launcher's own words.
        reason: String,
    },

    /// The launcher's answer is none.
    #[error("the launcher answered {found:?} to {call}, expected {expected}")]
    Malformed {
        /// What was asked.
        call: &'static str,
        /// What came, cut to a line.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },

    /// The launcher knows this process as another rank than its environment does.
    #[error("the launcher's PMIx server takes this process for rank {found}, expected {expected}")]
    OtherRank {
        /// The server's number.
        found: u32,
        /// The environment's number.
        expected: u32,
    },

    /// The deadline passed.
    #[error("{call} did not end in time: do all ranks of the launcher's job join?")]
    Late {
        /// What was waited for.
        call: &'static str,
    },

    /// The launcher is gone.
    #[error("the launcher closed the connection during {call}")]
    Closed {
        /// What was waited for.
        call: &'static str,
    },

    /// The text is empty, too long, or has signs that the protocol does not carry.
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
        /// What was tried.
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
