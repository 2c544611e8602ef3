//! `brevity perf`: measures an operation between ranks.
//!
//! The command starts its own ranks, which are this same program with the same arguments: each finds a
//! launcher's variables in its environment and measures. Results are checked before anything is timed.

mod arguments;
mod error;
mod exchange;
mod exchange_simulated;
mod kernels;
mod overlap;
#[cfg(test)]
mod parsed;
mod plot;
mod ranks;
mod report;
mod scaling;
mod simulated;
mod way;

use brevity::Group;
use brevity_bench::Error as Measurement;

pub use arguments::PerfArguments;
pub use error::{Error, Result};

use arguments::{Plan, Wanted};
use brevity_bench::output::Outputs;
use brevity_bench::perf::measure;
use brevity_bench::record;
use report::{Report, Row, Table};
use way::Way;

/// Measures as a rank of a job, or starts the ranks and waits for them. Returns the exit status.
///
/// # Errors
/// [`Error::Arguments`] before any rank is started; any other error after that.
pub fn perf(arguments: PerfArguments) -> Result<u8> {
    if arguments.name == kernels::NAME {
        return kernels::perf(&arguments);
    }
    if arguments.name == exchange::NAME {
        return exchange::perf(&arguments);
    }
    if arguments.name == scaling::NAME {
        return scaling::perf(&arguments).map(|()| 0);
    }
    let plan = arguments.plan()?;
    if let Way::Simulated(simulation) = plan.way {
        return simulated::perf(&plan, simulation).map(|()| 0);
    }
    // Rank 0 opens them again later; this reports errors before any rank starts.
    between_ranks(
        &plan.wanted(),
        || plan.open_outputs().map(drop),
        |group| match plan.way {
            Way::Overlapped { tests } => overlap::measure_all(group, &plan, tests),
            Way::Timed | Way::Simulated(_) => measure_all(group, &plan),
        },
    )
}

/// Measures as a rank of a job, or checks what it can beforehand, starts the ranks and waits for them.
/// Returns the exit status.
fn between_ranks(
    wanted: &Wanted,
    check: impl FnOnce() -> Result<()>,
    measure: impl FnOnce(&Group) -> Result<()>,
) -> Result<u8> {
    if !ranks::is_launched() {
        check()?;
        return ranks::start(wanted);
    }
    let measured = ranks::join().and_then(|group| {
        let measured = ranks::check(wanted, &group).and_then(|()| measure(&group));
        measured.inspect_err(|error| {
            if !error.is_unread() {
                group.abort();
            }
        })
    });
    match measured {
        Ok(()) => Ok(0),
        Err(error) if ranks::is_told_elsewhere(&error, ranks::rank_of_environment()) => Ok(error.status()),
        Err(error) => Err(error),
    }
}

/// Measures every row on this rank; rank 0 prints.
fn measure_all(group: &Group, plan: &Plan) -> Result<()> {
    let outputs = if group.rank() == 0 { Some(plan.open_outputs()?) } else { None };
    let table = Table::new(group.rank(), plan);
    let network = (group.transport(), group.world_size());
    go_on_if_read(group, table.begin(network, plan))?;
    let mut report = Report::new(network, plan);
    for &case in &plan.cases {
        let measured = measure(group, plan.benchmark, plan.dtype, case, plan.verify)?;
        if let Some(row) = Row::gather(group, plan.benchmark, case, measured)? {
            go_on_if_read(group, table.row(&row))?;
            report.rows.push(row);
        }
    }
    // No rank leaves before the figures are written: if rank 0 fails to write them, it tells all others.
    go_on_if_read(group, outputs.map_or(Ok(()), |outputs| write(outputs, &report)))
}

fn write(outputs: Outputs, report: &Report<Row>) -> Result<()> {
    if let Some(plot) = outputs.plot {
        plot.write(&plot::svg(report)?)?;
    }
    let json = || record::to_json(report);
    Ok(outputs.json.map_or(Ok(()), |output| output.write(&json()?))?)
}

/// Ends the run on all ranks in step if rank 0's output was closed, so that no rank finds another one lost. A
/// collective call.
fn go_on_if_read(group: &Group, printed: Result<()>) -> Result<()> {
    let mut unread = [u8::from(printed.as_ref().is_err_and(Error::is_unread))];
    if unread == [0] {
        printed?;
    }
    group.broadcast(&mut unread, 0)?;
    if unread == [0] { Ok(()) } else { Err(Error::Measurement(Measurement::Unread)) }
}

#[cfg(test)]
mod tests;
