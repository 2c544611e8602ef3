//! The errors of this crate. Each message is one line with what was found, what was expected, and the remedy.

use std::path::PathBuf;

/// Why a program of this crate stopped.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line could not be parsed; `line` says where.
    #[error("{line}; see --help")]
    CommandLine {
        /// The parser's message, in one line.
        line: String,
    },
    /// An argument is outside its range.
    #[error("{flag} is {found}, expected {expected}")]
    Argument {
        /// The flag, with its dashes.
        flag: &'static str,
        /// The given value.
        found: String,
        /// The accepted values.
        expected: String,
    },
    /// The folder given by `--data` does not exist.
    #[error(
        "--data {}: no such folder; give the folder of the four MNIST files, or leave --data out for the \
         built-in digits",
        .folder.display()
    )]
    MissingFolder {
        /// The path of the folder.
        folder: PathBuf,
    },
    /// A data file does not exist, neither plain nor compressed.
    #[error(
        "{}: no such file, plain or with .gz; put it there, or leave --data out for the built-in digits",
        .file.display()
    )]
    MissingFile {
        /// The path without `.gz`.
        file: PathBuf,
    },
    /// A file could not be read or decompressed.
    #[error("{}: cannot {action}: {source}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What was tried, for example `"read"`.
        action: &'static str,
        /// The system's error.
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
        /// The expected magic number.
        expected: u32,
        /// What such a file contains.
        what: &'static str,
    },
    /// A data file is longer or shorter than its header says.
    #[error("{}: {found} bytes, expected {expected}; fetch the file again", .file.display())]
    Length {
        /// The file.
        file: PathBuf,
        /// Its length, uncompressed.
        found: u64,
        /// The length according to its header.
        expected: u64,
    },
    /// A data file's header has an invalid dimension.
    #[error("{}: {what} {found}, expected {expected}; fetch the file again", .file.display())]
    Dimension {
        /// The file.
        file: PathBuf,
        /// The dimension, such as `"image count"`.
        what: &'static str,
        /// The value in the header.
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
        /// Its index.
        index: usize,
        /// The number of classes.
        classes: usize,
    },
    /// The results can't be written to the requested file, or standard output was closed.
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
    /// The exit status: 2 for what the caller can correct (arguments, data files), 1 for a failed run.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Network(_) | Self::Exchange(_) | Self::Diverged { .. } => 1,
            Self::Output(error) => error.status(),
            _ => 2,
        }
    }
}
