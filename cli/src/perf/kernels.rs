//! `brevity perf compress`: kernels of compression beside their floors. No ranks are started.

use std::io::{self, Write as _};
use std::path::Path;

use brevity_bench::kernels::{Extent, Row, head, line, measure_all, verdict};
use serde::Serialize;

use super::arguments::PerfArguments;
use super::error::{Error, Result};
use super::report::write_json;

/// The name on the command line.
pub const NAME: &str = "compress";

/// Elements of the vectors unless told otherwise: a model of 100 MB, far beyond any cache of one core.
const DEFAULT_ELEMENTS: usize = 25_000_000;

/// Turns of each kernel and its floor unless told otherwise.
const DEFAULT_ITERATIONS: usize = 11;

/// All figures of one run.
#[derive(Debug, Serialize)]
struct Report {
    name: &'static str,
    version: &'static str,
    rows: Vec<Row>,
}

/// Measures and prints; the exit status, which bars do not change.
///
/// # Errors
/// [`Error::Arguments`] for options that go with ranks, before anything is measured.
pub fn perf(arguments: &PerfArguments) -> Result<u8> {
    let extent = extent(arguments)?;
    let quiet = arguments.json.as_deref() == Some(Path::new("-"));
    let mut printed = print(quiet, &head());
    let mut rows = Vec::new();
    measure_all(extent, |row| {
        if printed.is_ok() {
            printed = print(quiet, &line(&row));
        }
        rows.push(row);
    })?;
    printed?;
    print(quiet, &verdict(&rows))?;
    if let Some(path) = &arguments.json {
        write_json(path, &Report { name: NAME, version: env!("CARGO_PKG_VERSION"), rows })?;
    }
    Ok(0)
}

/// Checks the arguments.
fn extent(arguments: &PerfArguments) -> Result<Extent> {
    let refuse = |option: &str, given: bool| {
        let message =
            || Error::Arguments(format!("{option} does not go with {NAME}: it takes --elements, --iterations, --json"));
        if given { Err(message()) } else { Ok(()) }
    };
    refuse("--np", arguments.np.is_some())?;
    refuse("--transport", arguments.transport.is_some())?;
    refuse("--size", arguments.size.is_some())?;
    refuse("--density", !arguments.density.is_empty())?;
    refuse("--plot", arguments.plot.is_some())?;
    refuse("--iterations 0", arguments.iterations == Some(0))?;
    let elements = arguments.elements.map_or(DEFAULT_ELEMENTS, |elements| elements.0);
    refuse("an empty vector", elements == 0)?;
    refuse("a vector of more than 2^32 elements", elements as u64 > 1 << 32)?;
    let iterations = arguments.iterations.map_or(DEFAULT_ITERATIONS, |count| count as usize);
    Ok(Extent { elements, iterations })
}

fn print(quiet: bool, text: &str) -> Result<()> {
    if quiet {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: PerfArguments,
    }

    fn arguments(line: &str) -> PerfArguments {
        Command::try_parse_from(["perf", NAME].into_iter().chain(line.split_whitespace())).unwrap().arguments
    }

    #[test]
    fn elements_and_turns_have_defaults() {
        let found = |line: &str| extent(&arguments(line)).unwrap();
        assert_eq!(found(""), Extent { elements: 25_000_000, iterations: 11 });
        assert_eq!(found("--elements 4K --iterations 3"), Extent { elements: 4096, iterations: 3 });
    }

    #[test]
    fn what_goes_with_ranks_is_refused_in_one_line() {
        for line in ["--np 2", "--size 4:8", "--density 0.1", "--plot a.svg", "--iterations 0"] {
            let message = extent(&arguments(line)).expect_err(line).to_string();
            assert!(message.contains(NAME) && message.lines().count() == 1, "{line}: {message}");
        }
    }
}
