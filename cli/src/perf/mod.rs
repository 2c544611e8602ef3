//! `brevity perf`: measures an operation between ranks.
//!
//! The command starts its own ranks, which are this same program with the same arguments: each finds a
//! launcher's variables in its environment and measures. Results are checked before anything is timed.

mod arguments;
mod error;
mod kernels;
mod plot;
mod ranks;
mod report;

use brevity::Group;

pub use arguments::PerfArguments;
pub use error::{Error, Result};

use arguments::Plan;
use brevity_bench::perf::measure;
use report::{Report, Row, Table};

/// Measures as a rank of a job, or starts the ranks and waits for them; the exit status.
///
/// # Errors
/// [`Error::Arguments`] before any rank is started; any other error after that.
pub fn perf(arguments: PerfArguments) -> Result<u8> {
    if arguments.name == kernels::NAME {
        return kernels::perf(&arguments);
    }
    let plan = arguments.plan()?;
    if !ranks::is_launched() {
        return ranks::start(&plan);
    }
    let measured = ranks::join().and_then(|group| {
        let measured = ranks::check(&plan, &group).and_then(|()| measure_all(&group, &plan));
        measured.inspect_err(|_| group.abort())
    });
    match measured {
        Ok(()) => Ok(0),
        Err(error) if ranks::is_told_elsewhere(&error, ranks::rank_of_environment()) => Ok(error.status()),
        Err(error) => Err(error),
    }
}

/// Measures every row on this rank; rank 0 tells.
fn measure_all(group: &Group, plan: &Plan) -> Result<()> {
    let table = Table::begin(group, plan)?;
    let mut report = Report::new(group, plan);
    for &case in &plan.cases {
        let measured = measure(group, plan.benchmark, plan.dtype, case, plan.verify)?;
        if let Some(row) = Row::gather(group, plan.benchmark, case, measured)? {
            table.row(&row)?;
            report.rows.push(row);
        }
    }
    if group.rank() == 0 {
        if let Some(path) = &plan.json {
            report::write_json(path, &report)?;
        }
        if let Some(path) = &plan.plot {
            plot::write_svg(&report, path)?;
        }
    }
    // Nobody leaves before the figures are safe: a rank that fails to write them tells all others.
    Ok(group.barrier()?)
}

#[cfg(test)]
mod tests;
