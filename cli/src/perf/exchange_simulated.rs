//! `brevity perf exchange --transport sim`: what ranks compute in a step, and what their messages take.

use brevity_bench::output::{Outputs, is_standard_output, print};
use brevity_bench::perf::{Dtype, Simulated, Simulation, simulate_dense, simulate_exchange};
use brevity_bench::record;

use super::arguments::PerfArguments;
use super::error::Result;
use super::exchange::{NAME, Plan, Row};
use super::report::Report;
use super::simulated;

/// The dense all-reduces beside which all policies stand.
const DENSE: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

/// Measures every row and prints it.
///
/// # Errors
/// [`Error::Arguments`](super::Error::Arguments) in a rank of a launcher; if averages differ or the output
/// can't be written.
pub fn perf(arguments: &PerfArguments, plan: &Plan, simulation: Simulation) -> Result<()> {
    simulated::check_alone()?;
    let outputs = Outputs::open(arguments.json.as_deref(), None)?;
    let prints = !arguments.json.as_deref().is_some_and(is_standard_output);
    let tell = |text: &str| if prints { print(&format!("{text}\n")) } else { Ok(()) };
    let Simulation { world_size, alpha, beta } = simulation;
    tell(&format!(
        "# brevity exchange of {}: {world_size} ranks, sim: {alpha} s, {beta} s a byte\n{}",
        plan.model,
        head()
    ))?;
    let mut rows = Vec::new();
    measure(plan, simulation, &mut |row| {
        tell(&line(&row))?;
        rows.push(row);
        Ok(())
    })?;
    let report = Report {
        name: NAME.into(),
        transport: simulated::NAME,
        world_size,
        dtype: plan.dtype.name(),
        version: env!("CARGO_PKG_VERSION"),
        rows,
    };
    Ok(outputs.json.map_or(Ok(()), |json| json.write(&record::to_json(&report)?))?)
}

/// Takes the rows: the dense all-reduces, and then the policies.
fn measure(plan: &Plan, simulation: Simulation, take: &mut dyn FnMut(Row) -> Result<()>) -> Result<()> {
    let (mut dense, Some(first)) = (Vec::new(), plan.policies.first()) else { return Ok(()) };
    for dtype in DENSE {
        let simulated = simulate_dense(simulation, dtype, &plan.exchanged(first))?;
        let row = of(plan.row(format!("all-reduce of {}", dtype.name()), dtype), simulated);
        dense.push(row);
    }
    let [f32, bf16] = [dense[0].avg_us, dense[1].avg_us];
    let beside = |row: Row| Row {
        faster_than_f32: Some(f32 / row.avg_us),
        faster_than_bf16: Some(bf16 / row.avg_us),
        ..row
    };
    dense.into_iter().try_for_each(|row| take(beside(row)))?;
    for rules in &plan.policies {
        let simulated = simulate_exchange(simulation, &plan.exchanged(rules))?;
        take(beside(of(plan.row(rules.to_string(), plan.dtype), simulated)))?;
    }
    Ok(())
}

/// The row with what was measured.
fn of(row: Row, simulated: Simulated) -> Row {
    let Simulated { kernels_us, communicate_us, select_us, apply_us, bytes_sent, buckets } = simulated;
    Row {
        buckets,
        avg_us: kernels_us + communicate_us,
        kernels_us: Some(kernels_us),
        select_us,
        communicate_us,
        wait_us: communicate_us,
        apply_us,
        bytes_sent_per_rank: bytes_sent,
        ..row
    }
}

fn head() -> String {
    format!(
        "{:<9} {:>12} {:>12} {:>16} {:>12} {:>12} {:>14} {:>7} {:>7}  Policy",
        "# Buckets",
        "Sum(us)",
        "Kernels(us)",
        "Communicate(us)",
        "Select(us)",
        "Apply(us)",
        "Sent(B)/rank",
        "f32/",
        "bf16/"
    )
}

fn line(row: &Row) -> String {
    let Row { policy, buckets, avg_us, communicate_us, select_us, apply_us, .. } = row;
    let figure = |figure: Option<f64>| figure.unwrap_or_default();
    format!(
        "{buckets:<9} {avg_us:>12.1} {:>12.1} {communicate_us:>16.1} {select_us:>12.1} {apply_us:>12.1} \
         {:>14.0} {:>7.2} {:>7.2}  {policy}",
        figure(row.kernels_us),
        row.bytes_sent_per_rank,
        figure(row.faster_than_f32),
        figure(row.faster_than_bf16)
    )
}

#[cfg(test)]
mod tests {
    use super::super::parsed::parsed;
    use super::*;

    fn rows(line: &str) -> Vec<Row> {
        let plan = Plan::of(&parsed(NAME, &format!("--transport sim {line}"))).unwrap();
        let mut rows = Vec::new();
        measure(&plan, plan.on.unwrap(), &mut |row| {
            rows.push(row);
            Ok(())
        })
        .unwrap();
        rows
    }

    #[test]
    fn kernels_and_messages_stand_in_columns_of_their_own() {
        let line = "--np 4 --beta 8e-8 --model matrix:500x400 --policy *=gtopk:0.001 --policy *=low-rank:4 \
                    --iterations 2 --verify";
        let rows = rows(line);
        let names: Vec<&str> = rows.iter().map(|row| &*row.policy).collect();
        assert_eq!(names, ["all-reduce of f32", "all-reduce of bf16", "*=gtopk:0.001", "*=low-rank:4"]);
        assert_eq!(
            rows.iter().map(|row| row.bytes).collect::<Vec<_>>(),
            [800_000, 400_000, 800_000, 800_000]
        );
        for row in &rows {
            let kernels_us = row.kernels_us.unwrap();
            assert!(kernels_us > 0.0 && row.communicate_us > 0.0, "{row:?}");
            assert_eq!(row.avg_us, kernels_us + row.communicate_us, "{row:?}");
            assert_eq!(row.faster_than_bf16, Some(rows[1].avg_us / row.avg_us), "{row:?}");
            let figures = line_of(row);
            assert_eq!(figures, head().len() - "  Policy".len(), "{row:?}");
        }
        assert_eq!((rows[0].faster_than_f32, rows[1].faster_than_bf16), (Some(1.0), Some(1.0)));
        // 1.5 vectors of 0.8 MB, or of half of that, at 80 ns a byte.
        assert!((96_000.0..110_000.0).contains(&rows[0].communicate_us), "{:?}", rows[0]);
        assert!((48_000.0..60_000.0).contains(&rows[1].communicate_us), "{:?}", rows[1]);
        assert!(rows[2].communicate_us < rows[0].communicate_us / 20.0, "{:?}", rows[2]);
        assert!(rows[3].communicate_us < rows[0].communicate_us / 20.0, "{:?}", rows[3]);
    }

    /// The length of a line without its policy.
    fn line_of(row: &Row) -> usize {
        line(row).strip_suffix(&format!("  {}", row.policy)).map(str::len).unwrap()
    }
}
