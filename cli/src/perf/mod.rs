//! `brevity perf`: measures an operation between ranks.
//!
//! The command starts its own ranks, which are this same program with the same arguments: each finds a launcher's
//! variables in its environment and measures. Results are checked before anything is timed.

mod all_reduce;
mod arguments;
mod error;
mod gtopk;
mod latency;
mod measure;
mod oracle;
mod plot;
mod ranks;
mod report;
mod statistics;

use brevity::Group;

pub use arguments::PerfArguments;
pub use error::{Error, Result};

use all_reduce::AllReduce;
use arguments::{Benchmark, Case, Plan};
use gtopk::GtopkAllReduce;
use measure::{Measured, Workload, measure};
use report::{Report, Row, Table};

/// Measures as a rank of a job, or starts the ranks and waits for them; the exit status.
///
/// # Errors
/// [`Error::Arguments`] before any rank is started; any other error after that.
pub fn perf(arguments: PerfArguments) -> Result<u8> {
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
    let mut report = Report::new(group, plan.benchmark);
    for &case in &plan.cases {
        let measured = measure_case(group, plan, case)?;
        if let Some(row) = Row::gather(group, case, measured)? {
            table.row(&row)?;
            report.rows.push(row);
        }
    }
    if group.rank() == 0 {
        if let Some(path) = &plan.json {
            report.write_json(path)?;
        }
        if let Some(path) = &plan.plot {
            plot::write_svg(&report, path)?;
        }
    }
    // Nobody leaves before the figures are safe: a rank that fails to write them tells all others.
    Ok(group.barrier()?)
}

fn measure_case(group: &Group, plan: &Plan, case: Case) -> Result<Measured> {
    if plan.benchmark == Benchmark::Latency {
        return latency::measure(group, case, plan.verify);
    }
    let count = case.bytes / size_of::<f32>();
    let mut workload: Box<dyn Workload> = match case.density {
        Some(density) => Box::new(GtopkAllReduce::new(group, count, density)?),
        None => Box::new(AllReduce::new(group, count)),
    };
    measure(group, &mut *workload, plan.benchmark, case, plan.verify)
}

#[cfg(test)]
mod tests;
