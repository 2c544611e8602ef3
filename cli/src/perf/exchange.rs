//! `brevity perf exchange`: a step of the gradient exchange of a model.

use brevity::transport::MAX_WORLD_SIZE;
use brevity::{Group, PolicyRules};
use brevity_bench::models::{ModelShape, TensorShape};
use brevity_bench::output::{Output, Outputs, is_standard_output, print};
use brevity_bench::perf::{Stepped, measure_exchange};
use brevity_bench::record;
use brevity_bench::size::Size;
use brevity_bench::timeline::Timeline;
use serde::Serialize;

use super::arguments::{PerfArguments, Wanted, refuse};
use super::error::{Error, Result};
use super::report::Report;
use super::way::Over;
use super::{between_ranks, go_on_if_read};

/// The name on the command line.
pub const NAME: &str = "exchange";

/// How tensors travel, unless it is said.
const POLICIES: [&str; 3] = ["*=dense", "*=gtopk:0.001", "*=low-rank:4"];

/// Steps that are timed, and those before, unless it is said.
const ITERATIONS: u32 = 20;

/// What is measured.
struct Plan {
    model: ModelShape,
    tensors: Vec<TensorShape>,
    policies: Vec<PolicyRules>,
    bucket_bytes: Option<usize>,
    iterations: usize,
    warmup: usize,
}

/// The figures of one list of policies, in microseconds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// The rules.
    policy: String,
    /// Elements of all gradients, in bytes.
    bytes: usize,
    tensors: usize,
    buckets: usize,
    /// A step of the slowest rank: the mean over its iterations.
    avg_us: f64,
    /// Means over ranks and iterations.
    select_us: f64,
    communicate_us: f64,
    wait_us: f64,
    apply_us: f64,
    bytes_sent_per_rank: f64,
    iterations: usize,
}

/// Measures as a rank of a job, or starts the ranks and waits for them. Returns the exit status.
///
/// # Errors
/// As for [`perf`](super::perf()).
pub fn perf(arguments: &PerfArguments) -> Result<u8> {
    let plan = Plan::of(arguments)?;
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
    fn of(arguments: &PerfArguments) -> Result<Self> {
        let PerfArguments { ranks, bucket_bytes, iterations, warmup, .. } = *arguments;
        let others = [
            ("--size", arguments.size.is_some()),
            ("--elements", arguments.elements.is_some()),
            ("--dtype", arguments.dtype.is_some()),
            ("--density", !arguments.density.is_empty()),
            ("--values", arguments.values.is_some()),
            ("--rank", arguments.rank.is_some()),
            ("--overlap", arguments.overlap),
            ("--plot", arguments.plot.is_some()),
            ("--only", !arguments.only.is_empty()),
            ("--record", arguments.record.is_some()),
            ("--alpha", arguments.alpha.is_some()),
            ("--beta", arguments.beta.is_some()),
            ("--transport sim", arguments.transport == Some(Over::Simulated)),
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
        let model: ModelShape = arguments.model.as_deref().unwrap_or("resnet50").parse()?;
        let texts: Vec<&str> = match &arguments.policy[..] {
            [] => POLICIES.to_vec(),
            given => given.iter().map(String::as_str).collect(),
        };
        let tensors = model.tensors();
        let policies = texts.into_iter().map(|text| read(text, &tensors)).collect::<Result<_>>()?;
        let iterations = iterations.unwrap_or(ITERATIONS);
        Ok(Self {
            model,
            tensors,
            policies,
            bucket_bytes: bucket_bytes.map(|Size(bytes)| bytes),
            iterations: iterations as usize,
            warmup: warmup.unwrap_or(iterations.div_ceil(10)) as usize,
        })
    }
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
        let stepped = measure_exchange(
            group,
            (&plan.tensors, rules),
            plan.bucket_bytes,
            (plan.iterations, plan.warmup),
            arguments.verify,
            &mut timeline,
        )?;
        let row = Row::gather(group, plan, rules, stepped)?;
        go_on_if_read(group, tell(&row.line()))?;
        rows.push(row);
    }
    let traced = timeline.map_or(Ok(None), |timeline| timeline.gather(group))?;
    let report = Report {
        name: NAME.into(),
        transport,
        world_size: ranks,
        dtype: "f32",
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
        let elements: usize = plan.tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        Ok(Self {
            policy: rules.to_string(),
            bytes: elements * size_of::<f32>(),
            tensors: plan.tensors.len(),
            buckets: buckets as usize,
            avg_us: of(0).copied().fold(0.0, f64::max),
            select_us: mean(1),
            communicate_us: mean(2),
            wait_us: mean(3),
            apply_us: mean(4),
            bytes_sent_per_rank: mean(5),
            iterations: plan.iterations,
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: PerfArguments,
    }

    fn arguments(line: &str) -> PerfArguments {
        let words = ["perf", NAME].into_iter().chain(line.split_whitespace());
        Command::try_parse_from(words).unwrap().arguments
    }

    #[test]
    fn all_ranks_have_the_same_row() {
        let line = "--model 5x300 --policy vector1=dense;*=topk:0.1,momentum=0.5 --iterations 3 --verify";
        for world_size in [1, 2, 3] {
            let rows: Vec<String> = thread::scope(|scope| {
                let ranks: Vec<_> = local::world(world_size)
                    .into_iter()
                    .map(|rank| {
                        scope.spawn(move || {
                            let group = Group::new(Box::new(rank), Settings::default());
                            let plan = Plan::of(&arguments(line)).unwrap();
                            let (tensors, rules) = (&plan.tensors[..], &plan.policies[0]);
                            let stepped = measure_exchange(
                                &group,
                                (tensors, rules),
                                Some(2400),
                                (3, 1),
                                true,
                                &mut None,
                            )
                            .unwrap();
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
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_line() {
        for (line, expected) in [
            ("--size 4:8", "--size does not go with exchange"),
            ("--density 0.1", "--density does not go with exchange"),
            ("--transport sim", "--transport sim does not go with exchange"),
            ("--model alexnet", "--model alexnet: name one of resnet50"),
            ("--policy zip", "--policy \"zip\": "),
            ("--policy fc*=dense", "no rule for policies is for tensor \"conv1.weight\""),
            ("--policy *=gtopk:2", "--policy \"*=gtopk:2\": "),
            ("--iterations 0", "at least 1"),
            ("--ranks 0", "from 1 to"),
        ] {
            let message = Plan::of(&arguments(line)).err().unwrap().to_string();
            assert!(message.contains(expected), "{line}: {message}");
            assert_eq!(message.lines().count(), 1, "{line}: {message}");
        }
        let plan = Plan::of(&arguments("")).unwrap();
        assert_eq!((plan.tensors.len(), plan.policies.len(), plan.iterations, plan.warmup), (161, 3, 20, 2));
    }
}
