//! Collectives on the simulated network, which needs no ranks.

use brevity_bench::perf::{Simulation, simulate};

use super::arguments::Plan;
use super::error::{Error, Result};
use super::report::{Gathered, Report, Row, Table};
use super::{ranks, write};

/// The transport in tables.
pub const NAME: &str = "sim";

/// Refuses to be a rank of a launcher.
///
/// # Errors
/// [`Error::Arguments`].
pub fn check_alone() -> Result<()> {
    if ranks::is_launched() {
        return Err(Error::Arguments(
            "--transport sim has its ranks in one process: start it without a launcher".into(),
        ));
    }
    Ok(())
}

/// Measures every row and prints it.
///
/// # Errors
/// [`Error::Arguments`] in a rank of a launcher; if a result is wrong or the output can't be written.
pub fn perf(plan: &Plan, simulation: Simulation) -> Result<()> {
    check_alone()?;
    let outputs = plan.open_outputs()?;
    let network = (NAME, simulation.world_size);
    let table = Table::new(0, plan);
    table.begin(network, plan)?;
    let mut report = Report::new(network, plan);
    for &case in &plan.cases {
        let ranks = simulate(simulation, plan.benchmark, plan.dtype, case)?;
        let gathered = Gathered {
            times: ranks.iter().map(|rank| rank.times.clone()).collect(),
            bytes_sent: ranks.iter().map(|rank| rank.bytes_sent).collect(),
            kept: ranks.first().and_then(|rank| rank.kept),
            ..Gathered::default()
        };
        if let Some(row) = Row::of(plan.benchmark, case, &gathered) {
            table.row(&row)?;
            report.rows.push(row);
        }
    }
    write(outputs, &report)
}
