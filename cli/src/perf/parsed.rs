//! Arguments of a line, for tests.

use clap::Parser;

use super::PerfArguments;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: PerfArguments,
}

/// Those of `perf LINE`, or what is wrong with them.
pub(super) fn parsed_line(line: &str) -> Result<PerfArguments, String> {
    let words = std::iter::once("perf").chain(line.split_whitespace());
    Command::try_parse_from(words).map(|command| command.arguments).map_err(|error| error.to_string())
}

/// Those of `perf NAME LINE`.
pub(super) fn parsed(name: &str, line: &str) -> PerfArguments {
    parsed_line(&format!("{name} {line}")).unwrap()
}
