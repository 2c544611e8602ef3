//! What can go wrong, each in one line that says what was found, what was expected and what to do.

use std::path::PathBuf;

/// Why a program of this crate stopped.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line could not be parsed; `line` says where.
    #[error("{line}; see --help")]
    CommandLine {
        /// What the parser said, in one line.
        line: String,
    },
    /// An argument lies outside its range.
    #[error("{flag} is {found}, expected {expected}")]
    Argument {
        /// The flag, with its dashes.
        flag: &'static str,
        /// What was given.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// The folder given by `--data` is not there.
    #[error(
        "--data {}: no such folder; give the folder of the four MNIST files, or leave --data out for the \
         built-in digits",
        .folder.display()
    )]
    MissingFolder {
        /// The folder that was looked for.
        folder: PathBuf,
    },
    /// A data file is not there, neither plain nor compressed.
    #[error(
        "{}: no such file, plain or with .gz; put it there, or leave --data out for the built-in digits",
        .file.display()
    )]
    MissingFile {
        /// The plain name that was looked for.
        file: PathBuf,
    },
    /// A file could not be read or decompressed.
    #[error("{}: cannot {action}: {source}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// `"read"` or the like.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A data file starts with another magic number.
    #[error(
        "{}: magic number {found:#010x}, expected {expected:#010x} ({what}); is it the right file?",
        .file.display()
    )]
    Magic {
        /// The file.
        file: PathBuf,
        /// The first four bytes, big endian.
        found: u32,
        /// What they should be.
        expected: u32,
        /// What such a file holds.
        what: &'static str,
    },
    /// A data file is longer or shorter than its header says.
    #[error("{}: {found} bytes, expected {expected}; fetch the file again", .file.display())]
    Length {
        /// The file.
        file: PathBuf,
        /// Its length, uncompressed.
        found: u64,
        /// The length that its header asks for.
        expected: u64,
    },
    /// A data file's header holds a dimension that cannot be right.
    #[error("{}: {what} {found}, expected {expected}; fetch the file again", .file.display())]
    Dimension {
        /// The file.
        file: PathBuf,
        /// The dimension, such as `"image count"`.
        what: &'static str,
        /// What the header says.
        found: u32,
        /// What was expected.
        expected: String,
    },
    /// A label is not one of the classes.
    #[error(
        "{}: label {found} at index {index}, expected 0 to {}; fetch the file again",
        .file.display(), .classes - 1
    )]
    Label {
        /// The file.
        file: PathBuf,
        /// The label.
        found: u8,
        /// Where it stands.
        index: usize,
        /// How many classes there are.
        classes: usize,
    },
    /// The results can't be written where they are asked for, or nobody reads them.
    #[error("{0}")]
    Output(#[from] brevity_bench::Error),
    /// The network could not be computed.
    #[error("the network failed: {0}")]
    Network(#[from] candle_core::Error),
    /// The ranks could not exchange their gradients.
    #[error("{0}")]
    Exchange(Box<dyn std::error::Error + Send + Sync>),
    /// The loss is no longer a number.
    #[error("the loss of method {method} is {loss} at step {step}; try a smaller --learning-rate")]
    Diverged {
        /// The method being trained.
        method: String,
        /// The step, counted from 0.
        step: usize,
        /// The loss found there.
        loss: f64,
    },
}

impl Error {
    /// The status a program exits with: 2 where the caller can mend it (arguments, data files),
    /// 1 for a run that failed.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Network(_) | Self::Exchange(_) | Self::Diverged { .. } => 1,
            Self::Output(error) => error.status(),
            _ => 2,
        }
    }
}
