//! `brevity perf exchange`: a step of the gradient exchange of a model.

use brevity::transport::MAX_WORLD_SIZE;
use brevity::{Group, PolicyRules};
use brevity_bench::models::{ModelShape, TensorShape};
use brevity_bench::output::{Output, Outputs, is_standard_output, print};
use brevity_bench::perf::{Dtype, Exchanged, Simulation, Stepped, measure_exchange};
use brevity_bench::record;
use brevity_bench::size::Size;
use brevity_bench::timeline::Timeline;
use serde::Serialize;

use super::arguments::{PerfArguments, Wanted, refuse};
use super::error::{Error, Result};
use super::report::Report;
use super::way::{Over, network};
use super::{between_ranks, exchange_simulated, go_on_if_read};

/// The name on the command line.
pub const NAME: &str = "exchange";

/// How tensors travel, unless it is said.
const POLICIES: [&str; 3] = ["*=dense", "*=gtopk:0.001", "*=low-rank:4"];

/// Steps that are timed, unless it is said: between ranks, and on sim, where messages need be timed once.
const ITERATIONS: u32 = 20;
const SIMULATED_ITERATIONS: u32 = 5;

/// What is measured.
pub struct Plan {
    pub model: ModelShape,
    pub tensors: Vec<TensorShape>,
    pub policies: Vec<PolicyRules>,
    pub dtype: Dtype,
    bucket_bytes: Option<usize>,
    iterations: usize,
    warmup: usize,
    verify: bool,
    /// The network, if it is simulated.
    pub on: Option<Simulation>,
}

/// The figures of one list of policies, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The rules.
    pub policy: String,
    /// Elements of all gradients, in bytes.
    pub bytes: usize,
    pub tensors: usize,
    pub buckets: usize,
    /// A step of the slowest rank: the mean over its iterations. On sim, the sum of `kernels_us` and
    /// `communicate_us`.
    pub avg_us: f64,
    /// All that the rank computes that takes longest, on sim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels_us: Option<f64>,
    /// Means over ranks and iterations. On sim, the time of communicating is virtual, and all of it is
    /// waited for.
    pub select_us: f64,
    pub communicate_us: f64,
    pub wait_us: f64,
    pub apply_us: f64,
    pub bytes_sent_per_rank: f64,
    pub iterations: usize,
    /// How many times as long the dense all-reduce of `f32` takes, and that of `bf16`, on sim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faster_than_f32: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faster_than_bf16: Option<f64>,
}

/// Measures as a rank of a job, or starts the ranks and waits for them. Returns the exit status.
///
/// # Errors
/// As for [`perf`](super::perf()).
pub fn perf(arguments: &PerfArguments) -> Result<u8> {
    let plan = Plan::of(arguments)?;
    if let Some(simulation) = plan.on {
        return exchange_simulated::perf(arguments, &plan, simulation).map(|()| 0);
    }
    let transport = match arguments.transport {
        Some(Over::Ranks(choice)) => Some(choice),
        Some(Over::Simulated) | None => None,
    };
    let PerfArguments { ranks, grace, .. } = *arguments;
    let wanted = Wanted { ranks, fewest: 1, transport, grace };
    between_ranks(&wanted, || open(arguments).map(drop), |group| measure_all(group, arguments, &plan))
}

/// The open files of `--json` and `--trace`.
fn open(arguments: &PerfArguments) -> Result<(Outputs, Option<Output>)> {
    let trace = arguments.trace.as_deref().map(|path| Output::open("--trace", path)).transpose()?;
    Ok((Outputs::open(arguments.json.as_deref(), None)?, trace))
}

impl Plan {
    /// What the arguments ask for.
    ///
    /// # Errors
    /// [`Error::Arguments`] for options that do not go together.
    pub fn of(arguments: &PerfArguments) -> Result<Self> {
        let PerfArguments { ranks, bucket_bytes, iterations, warmup, .. } = *arguments;
        let others = [
            ("--size", arguments.size.is_some()),
            ("--elements", arguments.elements.is_some()),
            ("--density", !arguments.density.is_empty()),
            ("--values", arguments.values.is_some()),
            ("--rank", arguments.rank.is_some()),
            ("--overlap", arguments.overlap),
            ("--plot", arguments.plot.is_some()),
            ("--only", !arguments.only.is_empty()),
            ("--record", arguments.record.is_some()),
        ];
        for (option, is_given) in others {
            refuse(is_given, || {
                format!("{option} does not go with exchange: give a --model and a --policy")
            })?;
        }
        refuse(ranks.is_some_and(|ranks| !(1..=MAX_WORLD_SIZE).contains(&ranks)), || {
            format!("--ranks {}: exchange takes from 1 to {MAX_WORLD_SIZE} ranks", ranks.unwrap_or(0))
        })?;
        arguments.check_iterations()?;
        let on = simulated(arguments)?;
        let dtype: Dtype = arguments.dtype.as_deref().map_or(Ok(Dtype::default()), str::parse)?;
        let model: ModelShape = arguments.model.as_deref().unwrap_or("resnet50").parse()?;
        let texts: Vec<&str> = match &arguments.policy[..] {
            [] => POLICIES.to_vec(),
            given => given.iter().map(String::as_str).collect(),
        };
        let tensors = model.tensors();
        let policies = texts.into_iter().map(|text| read(text, &tensors)).collect::<Result<_>>()?;
        let default = if on.is_some() { SIMULATED_ITERATIONS } else { ITERATIONS };
        let iterations = iterations.unwrap_or(default);
        Ok(Self {
            model,
            tensors,
            policies,
            dtype,
            bucket_bytes: bucket_bytes.map(|Size(bytes)| bytes),
            iterations: iterations as usize,
            warmup: warmup.unwrap_or(iterations.div_ceil(10)) as usize,
            verify: arguments.verify,
            on,
        })
    }

    /// What is exchanged by these rules.
    pub fn exchanged<'a>(&'a self, rules: &'a PolicyRules) -> Exchanged<'a> {
        let Self { ref tensors, dtype, bucket_bytes, iterations, warmup, verify, .. } = *self;
        Exchanged { tensors, rules, dtype, bucket_bytes, iterations, warmup, verify }
    }

    /// A row with what is not measured.
    pub fn row(&self, policy: String, dtype: Dtype) -> Row {
        let elements: usize = self.tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        Row {
            policy,
            bytes: elements * dtype.bytes(),
            tensors: self.tensors.len(),
            buckets: 0,
            avg_us: 0.0,
            kernels_us: None,
            select_us: 0.0,
            communicate_us: 0.0,
            wait_us: 0.0,
            apply_us: 0.0,
            bytes_sent_per_rank: 0.0,
            iterations: self.iterations,
            faster_than_f32: None,
            faster_than_bf16: None,
        }
    }
}

/// The simulated network, if that is asked for.
fn simulated(arguments: &PerfArguments) -> Result<Option<Simulation>> {
    if arguments.transport != Some(Over::Simulated) {
        let has_links = arguments.alpha.is_some() || arguments.beta.is_some();
        refuse(has_links, || "--alpha and --beta go with --transport sim".into())?;
        return Ok(None);
    }
    let others = [("--trace", arguments.trace.is_some()), ("--grace", arguments.grace.is_some())];
    for (option, is_given) in others {
        refuse(is_given, || {
            format!("{option} does not go with --transport sim, which has all ranks in one process")
        })?;
    }
    network(arguments).map(Some)
}

/// Rules that have a policy for each tensor.
fn read(text: &str, tensors: &[TensorShape]) -> Result<PolicyRules> {
    let refused = |error| Error::Arguments(format!("--policy {text:?}: {error}"));
    let rules: PolicyRules = text.parse().map_err(refused)?;
    for (name, shape) in tensors {
        rules.policy(name, shape).and_then(|policy| policy.check(name, shape)).map_err(refused)?;
    }
    Ok(rules)
}

/// Measures every row on this rank; rank 0 prints.
fn measure_all(group: &Group, arguments: &PerfArguments, plan: &Plan) -> Result<()> {
    let (outputs, trace) =
        if group.rank() == 0 { open(arguments).map(|(all, to)| (Some(all), to))? } else { (None, None) };
    let prints = group.rank() == 0 && !arguments.json.as_deref().is_some_and(is_standard_output);
    let tell = |text: &str| if prints { Ok(print(&format!("{text}\n"))?) } else { Ok(()) };
    let (ranks, transport) = (group.world_size(), group.transport());
    go_on_if_read(
        group,
        tell(&format!("# brevity exchange of {}: {ranks} ranks, {transport}\n{}", plan.model, head())),
    )?;
    let mut timeline = arguments.trace.as_ref().map(|_| Timeline::start(group)).transpose()?;
    let mut rows = Vec::new();
    for rules in &plan.policies {
        let stepped = measure_exchange(group, &plan.exchanged(rules), &mut timeline)?;
        let row = Row::gather(group, plan, rules, stepped)?;
        go_on_if_read(group, tell(&row.line()))?;
        rows.push(row);
    }
    let traced = timeline.map_or(Ok(None), |timeline| timeline.gather(group))?;
    let report = Report {
        name: NAME.into(),
        transport,
        world_size: ranks,
        dtype: plan.dtype.name(),
        version: env!("CARGO_PKG_VERSION"),
        rows,
    };
    let write = || {
        if let (Some(to), Some(text)) = (trace, traced) {
            to.write(&text)?;
        }
        Ok(outputs.and_then(|all| all.json).map_or(Ok(()), |to| to.write(&record::to_json(&report)?))?)
    };
    go_on_if_read(group, write())
}

impl Row {
    /// The same row on each rank. A collective call.
    fn gather(group: &Group, plan: &Plan, rules: &PolicyRules, stepped: Stepped) -> Result<Self> {
        let Stepped { step_us, select_us, communicate_us, wait_us, apply_us, bytes_sent, buckets } = stepped;
        let own = [step_us, select_us, communicate_us, wait_us, apply_us, bytes_sent];
        let mut all = vec![0.0; own.len() * group.world_size() as usize];
        group.all_gather(&own, &mut all)?;
        let of = |figure: usize| all.iter().skip(figure).step_by(own.len());
        let mean = |figure| of(figure).sum::<f64>() / f64::from(group.world_size());
        Ok(Self {
            buckets: buckets as usize,
            avg_us: of(0).copied().fold(0.0, f64::max),
            select_us: mean(1),
            communicate_us: mean(2),
            wait_us: mean(3),
            apply_us: mean(4),
            bytes_sent_per_rank: mean(5),
            ..plan.row(rules.to_string(), plan.dtype)
        })
    }

    fn line(&self) -> String {
        let Self { policy, buckets, avg_us, select_us, communicate_us, wait_us, apply_us, .. } = self;
        format!(
            "{buckets:<9} {avg_us:>12.1} {select_us:>12.1} {communicate_us:>16.1} {wait_us:>12.1} \
             {apply_us:>12.1} {:>14.0}  {policy}",
            self.bytes_sent_per_rank
        )
    }
}

fn head() -> String {
    format!(
        "{:<9} {:>12} {:>12} {:>16} {:>12} {:>12} {:>14}  Policy",
        "# Buckets", "Step(us)", "Select(us)", "Communicate(us)", "Wait(us)", "Apply(us)", "Sent(B)/rank"
    )
}

#[cfg(test)]
mod tests {
    use std::thread;

    use brevity::Settings;
    use brevity::transport::local;

    use super::super::parsed::parsed;
    use super::*;

    fn plan_of(line: &str) -> Plan {
        Plan::of(&parsed(NAME, line)).unwrap()
    }

    #[test]
    fn all_ranks_have_the_same_row() {
        let line = "--model 5x300 --policy vector1=dense;*=topk:0.1,momentum=0.5 --iterations 3 --verify \
                    --bucket-bytes 2400";
        for (world_size, dtype) in [(1, "f32"), (2, "f32"), (3, "f32"), (2, "f64"), (2, "f16"), (2, "bf16")] {
            let line = &format!("{line} --dtype {dtype}");
            let rows: Vec<String> = thread::scope(|scope| {
                let ranks: Vec<_> = local::world(world_size)
                    .into_iter()
                    .map(|rank| {
                        scope.spawn(move || {
                            let group = Group::new(Box::new(rank), Settings::default());
                            let plan = plan_of(line);
                            let rules = &plan.policies[0];
                            let stepped = measure_exchange(&group, &plan.exchanged(rules), &mut None);
                            let stepped = stepped.unwrap();
                            let row = Row::gather(&group, &plan, rules, stepped).unwrap();
                            let policy = format!("  {}", row.policy);
                            let figures = row.line().strip_suffix(&policy).map(str::len);
                            assert_eq!(figures, Some(head().len() - "  Policy".len()));
                            serde_json::to_string(&row).unwrap()
                        })
                    })
                    .collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert!(rows.iter().all(|row| *row == rows[0]), "{rows:?}");
            assert!(rows[0].contains("\"buckets\":3"), "{}", rows[0]);
            let bytes = 5 * 300 * plan_of(line).dtype.bytes();
            assert!(rows[0].contains(&format!("\"bytes\":{bytes},")), "{}", rows[0]);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_line() {
        for (line, expected) in [
            ("--size 4:8", "--size does not go with exchange"),
            ("--density 0.1", "--density does not go with exchange"),
            ("--rank 4", "--rank does not go with exchange"),
            ("--dtype i8", "--dtype i8: name one of f32, f64, f16, bf16"),
            ("--alpha 1e-5", "--alpha and --beta go with --transport sim"),
            ("--transport sim --trace a.json", "--trace does not go with --transport sim"),
            ("--transport sim --grace 3", "--grace does not go with --transport sim"),
            ("--transport sim --beta 2000", "from 0 to 1000 seconds"),
            ("--model matrix:5", "or matrix:ROWSxCOLUMNS"),
            ("--model alexnet", "--model alexnet: name one of resnet50"),
            ("--policy zip", "--policy \"zip\": "),
            ("--policy fc*=dense", "no rule for policies is for tensor \"conv1.weight\""),
            ("--policy *=gtopk:2", "--policy \"*=gtopk:2\": "),
            ("--iterations 0", "at least 1"),
            ("--ranks 0", "from 1 to"),
        ] {
            let message = Plan::of(&parsed(NAME, line)).err().unwrap().to_string();
            assert!(message.contains(expected), "{line}: {message}");
            assert_eq!(message.lines().count(), 1, "{line}: {message}");
        }
        let plan = plan_of("");
        assert_eq!((plan.tensors.len(), plan.policies.len(), plan.iterations, plan.warmup), (161, 3, 20, 2));
        let plan = plan_of("--transport sim --np 4 --model matrix:4096x6104 --dtype bf16");
        let shape = &plan.tensors[0].1[..];
        assert_eq!((shape, plan.iterations, plan.dtype), (&[4096, 6104][..], 5, Dtype::Bf16));
        assert_eq!(plan.on, Some(Simulation { world_size: 4, alpha: 20e-6, beta: 8e-9 }));
    }
}
