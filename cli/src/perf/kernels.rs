//! `brevity perf compress`: kernels of compression compared with their floors. No ranks are started.

use brevity_bench::kernels::{Extent, Group, Row, head, line, peers, svg, verdict};
use brevity_bench::output::Outputs;
use brevity_bench::record::{self, Circumstances, Transcript};
use serde::Serialize;

use super::arguments::{PerfArguments, refuse};
use super::error::{Error, Result};

/// The name on the command line.
pub const NAME: &str = "compress";

/// The default number of elements: a model of 100 MB, far beyond any cache of one core.
const DEFAULT_ELEMENTS: usize = 25_000_000;

/// The default number of turns of each kernel and its floor.
const DEFAULT_ITERATIONS: usize = 11;

/// All figures of one run.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'static str,
    #[serde(flatten)]
    circumstances: &'a Circumstances,
    rows: &'a [Row],
}

/// Measures and prints. Returns the exit status, which does not depend on the bars.
///
/// # Errors
/// [`Error::Arguments`] for options that go with ranks, before anything is measured.
pub fn perf(arguments: &PerfArguments) -> Result<u8> {
    let (extent, groups) = (extent(arguments)?, groups(&arguments.only)?);
    if let Some(folder) = &arguments.record {
        record::prepare(folder).map_err(|error| Error::Arguments(format!("--record: {error}")))?;
    }
    let outputs = Outputs::open(arguments.json.as_deref(), arguments.plot.as_deref())?;
    let mut said = Transcript::beside(arguments.json.as_deref());
    let circumstances = Circumstances::now("brevity", peers());
    said.line(&circumstances.head())?;
    said.line(&head())?;
    let rows = measure(extent, &groups, &mut said)?;
    said.line(&verdict(&rows))?;
    let report = Report { name: NAME, circumstances: &circumstances, rows: &rows };
    let (json, drawing) = (record::to_json(&report)?, drawing(&circumstances, &rows)?);
    outputs.plot.map_or(Ok(()), |output| output.write(&drawing))?;
    outputs.json.map_or(Ok(()), |output| output.write(&json))?;
    if let Some(folder) = &arguments.record {
        let files = [("json", &*json), ("txt", said.text()), ("svg", &drawing)];
        let kept = record::keep(&circumstances, (folder, NAME), &files)?;
        said.line(&kept)?;
    }
    Ok(0)
}

/// Measures the rows of all groups, and prints each when it is complete.
fn measure(extent: Extent, groups: &[Group], said: &mut Transcript) -> Result<Vec<Row>> {
    let (mut rows, mut told) = (Vec::new(), Ok(()));
    for group in groups {
        group.measure(extent, &mut |row| {
            if told.is_ok() {
                told = said.line(&line(&row));
            }
            rows.push(row);
        })?;
    }
    told?;
    Ok(rows)
}

/// The drawing of how much of its bar each kernel takes.
fn drawing(circumstances: &Circumstances, rows: &[Row]) -> Result<String> {
    let Circumstances { date, machine, commit, command, .. } = circumstances;
    let head = [
        &*format!("{command}: share of its bar that each kernel takes"),
        &format!("{date}, {commit}, {machine}"),
    ];
    let drawn = svg(&head, rows);
    drawn.map_err(|why| Error::Measurement(brevity_bench::Error::contestant("the drawing", why)))
}

/// The named groups; all if none is named.
fn groups(names: &[String]) -> Result<Vec<Group>> {
    if names.is_empty() {
        return Ok(Group::ALL.to_vec());
    }
    Ok(names.iter().map(|name| name.parse()).collect::<Result<_, brevity_bench::Error>>()?)
}

/// Checks the arguments.
fn extent(arguments: &PerfArguments) -> Result<Extent> {
    for (option, is_given) in [
        ("--ranks", arguments.ranks.is_some()),
        ("--transport", arguments.transport.is_some()),
        ("--alpha", arguments.alpha.is_some()),
        ("--beta", arguments.beta.is_some()),
        ("--overlap", arguments.overlap),
        ("--tests", arguments.tests.is_some()),
        ("--size", arguments.size.is_some()),
        ("--density", !arguments.density.is_empty()),
        ("--rank", arguments.rank.is_some()),
        ("--dtype", arguments.dtype.is_some()),
        ("--warmup", arguments.warmup.is_some()),
        ("--verify", arguments.verify),
        ("--trace", arguments.trace.is_some()),
    ] {
        let takes = "--elements, --iterations, --only, --json, --plot, --record";
        refuse(is_given, || format!("{option} does not go with {NAME}: it takes {takes}"))?;
    }
    arguments.check_iterations()?;
    let elements = arguments.elements.map_or(DEFAULT_ELEMENTS, |elements| elements.0);
    refuse(!(1..=1 << 32).contains(&(elements as u64)), || {
        format!("--elements {elements}: {NAME} takes from 1 to 4096M, because indices have 32 bits")
    })?;
    let iterations = arguments.iterations.map_or(DEFAULT_ITERATIONS, |count| count as usize);
    Ok(Extent { elements, iterations })
}

#[cfg(test)]
mod tests {
    use super::super::parsed::parsed;
    use super::*;

    #[test]
    fn elements_and_turns_have_defaults() {
        let found = |line: &str| extent(&parsed(NAME, line)).unwrap();
        assert_eq!(found(""), Extent { elements: 25_000_000, iterations: 11 });
        assert_eq!(found("--elements 4K --iterations 3"), Extent { elements: 4096, iterations: 3 });
    }

    #[test]
    fn groups_are_named_or_all() {
        let found = |line: &str| groups(&parsed(NAME, line).only);
        assert_eq!(found("").unwrap(), Group::ALL);
        assert_eq!(found("--only codec,low-rank").unwrap(), [Group::Codec, Group::LowRank]);
        let message = found("--only codec,dance").unwrap_err().to_string();
        assert!(message.contains("dance") && message.contains("low-rank"), "{message}");
    }

    #[test]
    fn what_goes_with_ranks_is_refused_in_one_line() {
        let refused = [
            "--ranks 2",
            "--size 4:8",
            "--density 0.1",
            "--dtype f64",
            "--warmup 3",
            "--verify",
            "--trace t.json",
        ];
        for line in refused {
            let message = extent(&parsed(NAME, line)).expect_err(line).to_string();
            assert!(message.contains("does not go with compress"), "{line}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        for (line, expected) in [
            ("--iterations 0", "--iterations 0: expected at least 1"),
            ("--elements 8G", "--elements 8589934592: compress takes from 1 to 4096M"),
        ] {
            let message = extent(&parsed(NAME, line)).expect_err(line).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
