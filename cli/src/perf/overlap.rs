//! How much of a collective is hidden behind computing, in the columns of the OSU benchmarks.

use brevity::Group;
use brevity_bench::output::{is_standard_output, print};
use brevity_bench::perf::{Benchmark, Case, Overlapped, measure_overlap};
use brevity_bench::record;
use serde::Serialize;

use super::arguments::Plan;
use super::error::{Error, Result};
use super::go_on_if_read;
use super::report::Report;

/// The figures of one size, in microseconds: means over ranks and iterations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Bytes, as for the times of the same collective.
    pub bytes: usize,
    /// All of an iteration: start, computing, tests and wait.
    pub overall_us: f64,
    /// Computing.
    pub compute_us: f64,
    /// A call without computing.
    pub pure_us: f64,
    /// The share of the pure time that was hidden.
    pub overlap_percent: f64,
    /// Start of a call.
    pub init_us: f64,
    /// Tests.
    pub test_us: f64,
    /// The wait at the end.
    pub wait_us: f64,
    /// Iterations that were measured.
    pub iterations: usize,
}

impl Row {
    /// The mean over the ranks, the same on each. A collective call.
    fn gather(group: &Group, case: Case, times: Overlapped) -> Result<Self> {
        let Overlapped { pure_us, init_us, compute_us, test_us, wait_us } = times;
        let own = [pure_us, init_us, compute_us, test_us, wait_us];
        let mut all = vec![0.0; own.len() * group.world_size() as usize];
        group.all_gather(&own, &mut all)?;
        let mean = |figure: usize| {
            all.iter().skip(figure).step_by(own.len()).sum::<f64>() / f64::from(group.world_size())
        };
        let times = Overlapped {
            pure_us: mean(0),
            init_us: mean(1),
            compute_us: mean(2),
            test_us: mean(3),
            wait_us: mean(4),
        };
        Ok(Self::of(case, times))
    }

    fn of(case: Case, times: Overlapped) -> Self {
        let Overlapped { pure_us, init_us, compute_us, test_us, wait_us } = times;
        let (overall_us, overlap_percent) = (times.overall_us(), times.overlap_percent());
        let (bytes, iterations) = (case.bytes, case.iterations);
        Self {
            bytes,
            overall_us,
            compute_us,
            pure_us,
            overlap_percent,
            init_us,
            test_us,
            wait_us,
            iterations,
        }
    }

    fn line(&self) -> String {
        let Self { bytes, overall_us, compute_us, pure_us, overlap_percent, .. } = self;
        format!("{bytes:<10}{overall_us:>20.2}{compute_us:>20.2}{pure_us:>20.2}{overlap_percent:>20.2}")
    }
}

fn head() -> String {
    format!(
        "{:<10}{:>20}{:>20}{:>20}{:>20}",
        "# Size", "Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)"
    )
}

/// Measures every row on this rank; rank 0 prints.
///
/// # Errors
/// If a rank is lost, or a result is wrong.
pub fn measure_all(group: &Group, plan: &Plan, tests: u32) -> Result<()> {
    let Benchmark::Dense(collective) = plan.benchmark else {
        return Err(Error::Arguments(format!(
            "--overlap measures dense collectives: not {}",
            plan.benchmark
        )));
    };
    let outputs = if group.rank() == 0 { Some(plan.open_outputs()?) } else { None };
    let prints = group.rank() == 0 && !plan.json.as_deref().is_some_and(is_standard_output);
    let tell = |text: &str| if prints { Ok(print(&format!("{text}\n"))?) } else { Ok(()) };
    let title = format!(
        "# brevity {collective}, overlapped: {} ranks, {}\n\
         # Overall = start + Compute + {tests} tests + wait\n{}",
        group.world_size(),
        group.transport(),
        head()
    );
    go_on_if_read(group, tell(&title))?;
    let mut report = Report::new((group.transport(), group.world_size()), plan);
    for &case in &plan.cases {
        let times = measure_overlap(group, collective, plan.dtype, case, tests, plan.verify)?;
        let row = Row::gather(group, case, times)?;
        go_on_if_read(group, tell(&row.line()))?;
        report.rows.push(row);
    }
    let write =
        || Ok(outputs.and_then(|all| all.json).map_or(Ok(()), |to| to.write(&record::to_json(&report)?))?);
    go_on_if_read(group, write())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_the_osu_benchmarks() {
        assert_eq!(
            head(),
            "# Size             Overall(us)         Compute(us)      Pure Comm.(us)          Overlap(%)"
        );
        let times = Overlapped { pure_us: 10.0, init_us: 1.0, compute_us: 10.0, test_us: 0.5, wait_us: 1.0 };
        let case = Case { bytes: 1024, density: None, iterations: 7, warmup: 1 };
        let line = Row::of(case, times).line();
        assert_eq!(
            line,
            "1024                     12.50               10.00               10.00               75.00"
        );
    }
}
