//! The figures, as a table and as JSON.

use std::fmt::Write as _;

use brevity::Group;
use brevity::compress::Density;
use brevity_bench::output::{is_standard_output, print};
use brevity_bench::perf::{Benchmark, Case, Measured};
use brevity_bench::statistics::{Summary, mean};
use serde::Serialize;

use super::arguments::Plan;
use super::error::Result;

/// All figures of one run.
#[derive(Debug, Serialize)]
pub struct Report<R> {
    /// What was measured.
    pub name: String,
    /// The transport.
    pub transport: &'static str,
    /// Ranks.
    pub world_size: u32,
    /// Type of the elements.
    pub dtype: &'static str,
    /// The version of Brevity.
    pub version: &'static str,
    /// A row for each size and density.
    pub rows: Vec<R>,
}

/// The figures of one size and density.
#[derive(Debug, Serialize)]
#[allow(non_snake_case, reason = "the names are those of the JSON contract")]
pub struct Row {
    /// Bytes of the message, or of the dense vector.
    pub bytes: usize,
    /// The mean over ranks and iterations.
    pub avg_us: f64,
    /// The fastest iteration of any rank.
    pub min_us: f64,
    /// The slowest iteration of any rank.
    pub max_us: f64,
    /// The median of all iterations of all ranks.
    pub p50_us: f64,
    /// The time that 99 of 100 iterations do not exceed.
    pub p99_us: f64,
    /// `bytes` divided by `avg_us`; both directions together if messages cross.
    pub bandwidth_MBps: f64,
    /// The mean of the rank whose mean is largest.
    pub slowest_rank_us: f64,
    /// Iterations that were timed.
    pub iterations: usize,
    /// Bytes that a rank sends to the network in an iteration, including headers: the mean over ranks.
    pub bytes_sent_per_rank: f64,
    /// The mean with one call for each round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_avg_us: Option<f64>,
    /// The share of entries that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub density: Option<f64>,
    /// Entries that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<usize>,
    /// The rank of low-rank factors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
}

/// What all ranks measured for one row, in rank order.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// Microseconds of each iteration.
    pub times: Vec<Vec<f64>>,
    /// Microseconds of each iteration as a separate call, if that differs.
    pub call_times: Vec<Vec<f64>>,
    /// Bytes that a rank sends in an iteration.
    pub bytes_sent: Vec<f64>,
    /// The number of entries that are kept, if some are dropped.
    pub kept: Option<usize>,
}

impl Row {
    /// Gathers what all ranks measured; the same row on each rank. A collective call.
    pub fn gather(
        group: &Group,
        benchmark: Benchmark,
        case: Case,
        measured: Measured,
    ) -> Result<Option<Self>> {
        let times = group.all_gather_varying(measured.times)?;
        let call_times = group.all_gather_varying(measured.call_times)?;
        let mut bytes_sent = vec![0.0; group.world_size() as usize];
        group.all_gather(&[measured.bytes_sent], &mut bytes_sent)?;
        let gathered = Gathered { times, call_times, bytes_sent, kept: measured.kept };
        Ok(Self::of(benchmark, case, &gathered))
    }

    /// The row; `None` if no rank has times.
    pub fn of(benchmark: Benchmark, case: Case, gathered: &Gathered) -> Option<Self> {
        Summary::new(&gathered.times).map(|summary| Self {
            bytes: case.bytes,
            avg_us: summary.avg,
            min_us: summary.min,
            max_us: summary.max,
            p50_us: summary.p50,
            p99_us: summary.p99,
            bandwidth_MBps: case.bytes as f64 * benchmark.messages_at_a_time() / summary.avg,
            slowest_rank_us: summary.slowest_rank,
            iterations: case.iterations,
            bytes_sent_per_rank: mean(&gathered.bytes_sent),
            call_avg_us: Summary::new(&gathered.call_times).map(|summary| summary.avg),
            density: case.density.map(Density::share),
            kept: gathered.kept,
            rank: benchmark.rank(),
        })
    }
}

impl<R> Report<R> {
    /// A report without rows, of ranks over a transport.
    pub fn new((transport, world_size): (&'static str, u32), plan: &Plan) -> Self {
        Self {
            name: plan.benchmark.to_string(),
            transport,
            world_size,
            dtype: plan.dtype.name(),
            version: env!("CARGO_PKG_VERSION"),
            rows: Vec::new(),
        }
    }
}

/// The table, printed row by row as the figures come.
pub struct Table {
    wanted: bool,
    sparse: bool,
    streams: bool,
}

impl Table {
    /// A table, if this rank prints one.
    pub fn new(rank: u32, plan: &Plan) -> Self {
        let wanted = rank == 0 && !plan.json.as_deref().is_some_and(is_standard_output);
        let streams = matches!(plan.benchmark, Benchmark::Bandwidth | Benchmark::Bibandwidth);
        Self { wanted, sparse: plan.benchmark.is_sparse(), streams }
    }

    /// Prints the head.
    pub fn begin(&self, (transport, ranks): (&str, u32), plan: &Plan) -> Result<()> {
        let name = plan.benchmark;
        self.print(&format!("# brevity {name}: {ranks} ranks, {transport}\n{}", self.head()))
    }

    /// Prints a row.
    pub fn row(&self, row: &Row) -> Result<()> {
        self.print(&self.line(row))
    }

    fn head(&self) -> String {
        let mut head = format!(
            "{:<10} {:>16} {:>12} {:>12} {:>12} {:>12}",
            "# Size", "Avg Latency(us)", "Min", "Max", "p50", "p99"
        );
        if self.streams {
            let _ = write!(head, " {:>16}", "Bandwidth(MB/s)");
        }
        if self.sparse {
            let _ = write!(head, " {:>10} {:>14}", "Density", "Sent(B)/rank");
        }
        head
    }

    fn line(&self, row: &Row) -> String {
        let mut line = format!("{:<10} {:>16.2}", row.bytes, row.avg_us);
        for figure in [row.min_us, row.max_us, row.p50_us, row.p99_us] {
            let _ = write!(line, " {figure:>12.2}");
        }
        if self.streams {
            let _ = write!(line, " {:>16.2}", row.bandwidth_MBps);
        }
        if self.sparse {
            let _ = write!(line, " {:>10} {:>14.0}", row.density.unwrap_or(1.0), row.bytes_sent_per_rank);
        }
        line
    }

    fn print(&self, text: &str) -> Result<()> {
        if self.wanted { Ok(print(&format!("{text}\n"))?) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use brevity_bench::collective::Collective;
    use brevity_bench::perf::Dtype;

    use super::super::way::Way;
    use super::*;

    fn row() -> Row {
        Row {
            bytes: 1024,
            avg_us: 4.0,
            min_us: 1.0,
            max_us: 9.0,
            p50_us: 3.5,
            p99_us: 8.0,
            bandwidth_MBps: 256.0,
            slowest_rank_us: 4.5,
            iterations: 10,
            bytes_sent_per_rank: 96.4,
            call_avg_us: None,
            density: Some(0.001),
            kept: Some(1),
            rank: None,
        }
    }

    #[test]
    fn columns_are_those_of_the_osu_benchmarks() {
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        let dense = Table { wanted: false, sparse: false, streams: false };
        assert_eq!(words(dense.head()), "# Size Avg Latency(us) Min Max p50 p99");
        assert_eq!(words(dense.line(&row())), "1024 4.00 1.00 9.00 3.50 8.00");
        let streams = Table { wanted: false, sparse: false, streams: true };
        assert_eq!(words(streams.head()), "# Size Avg Latency(us) Min Max p50 p99 Bandwidth(MB/s)");
        assert_eq!(words(streams.line(&row())), "1024 4.00 1.00 9.00 3.50 8.00 256.00");
        let sparse = Table { wanted: false, sparse: true, streams: false };
        assert_eq!(words(sparse.head()), "# Size Avg Latency(us) Min Max p50 p99 Density Sent(B)/rank");
        assert_eq!(words(sparse.line(&row())), "1024 4.00 1.00 9.00 3.50 8.00 0.001 96");
        assert_eq!(dense.head().len(), dense.line(&row()).len());
    }

    #[test]
    fn json_has_the_names_of_the_contract() {
        let plan = Plan {
            benchmark: Benchmark::Dense(Collective::AllReduce),
            way: Way::Timed,
            dtype: Dtype::F64,
            ranks: None,
            transport: None,
            grace: None,
            cases: Vec::new(),
            verify: false,
            json: None,
            plot: None,
        };
        let report = Report { rows: vec![row()], ..Report::new(("self", 1), &plan) };
        let report = serde_json::to_value(report).unwrap();
        assert_eq!((&report["name"], &report["dtype"]), (&"allreduce".into(), &"f64".into()));
        for name in ["name", "transport", "world_size", "dtype", "version", "rows"] {
            assert!(!report[name].is_null(), "{name}");
        }
        for name in ["bytes", "avg_us", "min_us", "max_us", "p50_us", "p99_us", "bandwidth_MBps"] {
            assert!(report["rows"][0][name].is_number(), "{name}");
        }
        assert!(report["rows"][0].get("call_avg_us").is_none());
    }
}
