//! Messages between the two ranks of a pair; all pairs at the same time.

use brevity::Group;
use brevity::transport::Rank;

use super::{Benchmark, Case, Measured};
use crate::order::{Order, Over, WINDOW, What};
use crate::p2p::{self, Waiting};
use crate::{Error, Result};

/// The largest number of calls of one round trip each.
const MOST_CALLS: usize = 1000;

/// Measures one row. The lower rank of each pair has the times. A rank without a peer only joins the
/// barriers.
pub(super) fn measure(group: &Group, benchmark: Benchmark, case: Case, verify: bool) -> Result<Measured> {
    let at_a_time =
        if matches!(benchmark, Benchmark::Bandwidth | Benchmark::Bibandwidth) { WINDOW } else { 1 };
    let order = Order {
        what: what(benchmark)?,
        bytes: case.bytes,
        iterations: case.iterations * at_a_time,
        warmup: case.warmup * at_a_time,
        most_samples: case.iterations,
        salt: 0,
        // Also for ranks of one host that share memory: the transport's name does not distinguish them.
        over: if group.engine().port().name() == "tcp" { Over::Sockets } else { Over::Memory },
        unwritten: false,
    };
    let one = |salt| Order { iterations: at_a_time, warmup: 0, most_samples: 1, salt, ..order };
    let check = |iterations: usize| {
        let run = |salt: usize| run(group, &one(salt));
        (1..=iterations).map(run).collect::<Result<Vec<_>>>().map(|times| times.concat())
    };
    group.barrier()?;
    check(1)?;
    let sent_before = group.statistics().bytes_sent;
    // If every iteration is checked, each is a separate run with other bytes.
    let times = if verify { check(case.iterations)? } else { run(group, &order)? };
    let sent = (group.statistics().bytes_sent - sent_before) as f64;
    let calls = if benchmark == Benchmark::Latency { case.iterations.min(MOST_CALLS) } else { 0 };
    let call_times = (0..calls).map(|_| run(group, &one(0))).collect::<Result<Vec<_>>>()?.concat();
    let counted = if verify { case.iterations } else { case.iterations + case.warmup };
    Ok(Measured { times, call_times, bytes_sent: sent / counted.max(1) as f64, kept: None })
}

fn run(group: &Group, order: &Order) -> Result<Vec<f64>> {
    let peer = Rank(group.rank() ^ 1);
    if peer.0 >= group.world_size() {
        return Ok(Vec::new());
    }
    p2p::run(Waiting::AsEngine(group.engine()), peer, order)
}

fn what(benchmark: Benchmark) -> Result<What> {
    Ok(match benchmark {
        Benchmark::Latency => What::Latency,
        Benchmark::Bandwidth => What::Bandwidth,
        Benchmark::Bibandwidth => What::Bibandwidth,
        Benchmark::Put => What::Put,
        Benchmark::Get => What::Get,
        other => return Err(Error::Arguments(format!("{other} is not between two ranks"))),
    })
}
