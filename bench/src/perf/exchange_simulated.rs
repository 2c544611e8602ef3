//! Steps of a gradient exchange on the simulated network. Computing takes no time there: it is measured on
//! the clock of this machine, and stands beside the virtual time of the messages.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::run;
use brevity::{BucketReport, GradientElement, Group, Machine, ReduceOp, Settings, StepReport};

use super::exchange::{Exchanged, check_digests, digest};
use super::simulated::{Simulation, TIMEOUT};
use super::{Dtype, of_dtype};
use crate::collective::Number;
use crate::{Error, Result};

/// What a step takes: means over the iterations, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Simulated {
    /// All that a rank computes: selecting, coding, merging or adding, applying, and copying messages. Of the
    /// rank that takes longest.
    pub kernels_us: f64,
    /// From the time when the last rank begins to the time when the last one ends, if computing takes no
    /// time.
    pub communicate_us: f64,
    /// Of the kernels, adding to residuals and selecting. The mean over ranks.
    pub select_us: f64,
    /// Of the kernels, writing averages and residuals. The mean over ranks.
    pub apply_us: f64,
    /// Bytes that a rank sends in a step. The mean over ranks.
    pub bytes_sent: f64,
    /// Into how many buckets the tensors were put.
    pub buckets: usize,
}

/// Measures steps of an exchange of these tensors, as [`measure_exchange`](super::measure_exchange) does,
/// with all ranks in this process. Its messages take virtual time alone, which is the same in every run. What
/// ranks compute is measured one rank at a time.
///
/// # Errors
/// If no rule is for a tensor, the exchange refuses a policy, or averages differ.
pub fn simulate_exchange(simulation: Simulation, exchanged: &Exchanged<'_>) -> Result<Simulated> {
    of_dtype!(exchanged.dtype, exchange_as(simulation, exchanged))
}

/// Measures the dense all-reduce of as many elements of a type in the same way. Its sums are checked.
///
/// # Errors
/// If a sum is wrong.
pub fn simulate_dense(simulation: Simulation, dtype: Dtype, exchanged: &Exchanged<'_>) -> Result<Simulated> {
    of_dtype!(dtype, dense_as(simulation, exchanged))
}

fn exchange_as<E: Number + GradientElement>(
    simulation: Simulation,
    exchanged: &Exchanged<'_>,
) -> Result<Simulated> {
    let Exchanged { iterations, warmup, verify, .. } = *exchanged;
    let ranks = on_ranks(simulation, async |group: &Group, meter: &Meter| {
        let mut exchange = exchanged.built(group)?;
        let source: Vec<Vec<E>> = exchanged.gradients(group.rank());
        let (mut gradients, mut steps) = (source.clone(), Vec::new());
        for iteration in 0..1 + warmup + iterations {
            let all = gradients.iter_mut().zip(&source);
            all.for_each(|(gradient, source)| gradient.copy_from_slice(source));
            group.start_barrier().await.1?;
            let watch = Watch::start(group, meter);
            let mut step = exchange.begin()?;
            for (tensor, gradient) in gradients.iter().enumerate().rev() {
                step.ready(tensor, gradient)?;
            }
            let report = step.finish_async(&mut gradients).await?;
            let mut ended = watch.end(group, meter).reported(&report);
            if verify || iteration == 0 {
                ended.digest = digest(&gradients);
            }
            steps.push(ended);
        }
        Ok(steps)
    })?;
    summed(exchanged, exchanged.elements() * size_of::<E>(), &ranks)
}

fn dense_as<T: Number>(simulation: Simulation, exchanged: &Exchanged<'_>) -> Result<Simulated> {
    let (count, Exchanged { iterations, warmup, .. }) = (exchanged.elements(), *exchanged);
    // Every type holds the sum of two ones.
    let sum = T::of(simulation.world_size.min(2) as f32);
    let ranks = on_ranks(simulation, async |group: &Group, meter: &Meter| {
        let own = T::of(if group.rank() < 2 { 1.0 } else { 0.0 });
        let (mut vector, mut steps) = (vec![own; count], Vec::new());
        for _ in 0..1 + warmup + iterations {
            vector.fill(own);
            group.start_barrier().await.1?;
            let watch = Watch::start(group, meter);
            let outcome;
            (vector, outcome) = group.start_all_reduce(vector, ReduceOp::Sum).await;
            outcome?;
            steps.push(watch.end(group, meter));
            if let Some(wrong) = vector.iter().find(|value| **value != sum) {
                return Err(Error::contestant("the simulation", format!("a sum of ones is {wrong:?}")));
            }
        }
        Ok(steps)
    })?;
    summed(exchanged, count * size_of::<T>(), &ranks)
}

/// What one rank measures of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// When it has begun and ended, in virtual time.
    begun: Duration,
    ended: Duration,
    kernels: Duration,
    select: Duration,
    apply: Duration,
    bytes_sent: u64,
    buckets: usize,
    /// Of the averages, if these are checked.
    digest: u64,
}

impl Step {
    fn reported(self, report: &StepReport) -> Self {
        let of = |part: fn(&BucketReport) -> Duration| report.total(part);
        let (select, apply) = (of(|bucket| bucket.select), of(|bucket| bucket.apply));
        Self { select, apply, buckets: report.buckets.len(), ..self }
    }
}

/// A step that goes on.
struct Watch(Step);

impl Watch {
    fn start(group: &Group, meter: &Meter) -> Self {
        let bytes_sent = group.statistics().bytes_sent;
        Self(Step { begun: group.now(), kernels: meter.busy(), bytes_sent, ..Step::default() })
    }

    fn end(self, group: &Group, meter: &Meter) -> Step {
        let Self(before) = self;
        let bytes_sent = group.statistics().bytes_sent - before.bytes_sent;
        Step { ended: group.now(), kernels: meter.busy() - before.kernels, bytes_sent, ..before }
    }
}

/// How long a rank has computed: the time of its polls, between which others compute.
#[derive(Default)]
struct Meter {
    before: Cell<Duration>,
    /// When the poll that goes on has begun.
    since: Cell<Option<Instant>>,
}

impl Meter {
    fn busy(&self) -> Duration {
        self.before.get() + self.since.get().map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn during<R>(&self, poll: impl FnOnce() -> R) -> R {
        self.since.set(Some(Instant::now()));
        let polled = poll();
        self.before.set(self.busy());
        self.since.set(None);
        polled
    }
}

/// Runs a body on every rank of a simulation. Each rank is on a host of its own.
fn on_ranks<R>(simulation: Simulation, body: impl AsyncFn(&Group, &Meter) -> Result<R>) -> Result<Vec<R>> {
    let machine = Some(Machine::uniform(simulation.alpha, simulation.beta));
    let settings = Settings { timeout: TIMEOUT, machine, ..Settings::default() };
    let ranks = run(simulation.cluster(), |transport| {
        let (group, body) = (Group::opened(Opened::in_process(transport, None), settings), &body);
        async move {
            let meter = Meter::default();
            let mut going = pin!(body(&group, &meter));
            poll_fn(|context| meter.during(|| going.as_mut().poll(context))).await
        }
    });
    let ranks = ranks.map_err(|stuck| Error::contestant("the simulation", stuck.to_string()))?;
    ranks.into_iter().collect()
}

/// Sums up the timed steps of all ranks, whose averages are of so many bytes and must be alike.
fn summed(exchanged: &Exchanged<'_>, bytes: usize, ranks: &[Vec<Step>]) -> Result<Simulated> {
    let untimed = 1 + exchanged.warmup;
    let (steps, count) = (exchanged.iterations as f64, ranks.len() as f64);
    let mut all = Simulated::default();
    for number in 0..untimed + exchanged.iterations {
        let of_all = || ranks.iter().map(|steps| &steps[number]);
        check_digests(&of_all().map(|step| step.digest).collect::<Vec<_>>(), 0, bytes)?;
        if number < untimed {
            continue;
        }
        let last = |of: fn(&Step) -> Duration| of_all().map(of).max().unwrap_or_default();
        let lasting = last(|step| step.ended).saturating_sub(last(|step| step.begun));
        all.communicate_us += lasting.as_secs_f64() * 1e6 / steps;
        let mean = |of: fn(&Step) -> f64| of_all().map(of).sum::<f64>() / count / steps;
        all.select_us += mean(|step| step.select.as_secs_f64() * 1e6);
        all.apply_us += mean(|step| step.apply.as_secs_f64() * 1e6);
        all.bytes_sent += mean(|step| step.bytes_sent as f64);
        all.buckets = of_all().map(|step| step.buckets).max().unwrap_or_default();
    }
    let kernels = |own: &Vec<Step>| own[untimed..].iter().map(|step| step.kernels.as_secs_f64()).sum::<f64>();
    all.kernels_us = ranks.iter().map(kernels).fold(0.0, f64::max) * 1e6 / steps;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{ModelShape, TensorShape};

    const ON: Simulation = Simulation { world_size: 4, alpha: 1e-5, beta: 8e-9 };

    fn exchanged<'a>(
        tensors: &'a [TensorShape],
        rules: &'a brevity::PolicyRules,
        dtype: Dtype,
    ) -> Exchanged<'a> {
        Exchanged { tensors, rules, dtype, bucket_bytes: None, iterations: 3, warmup: 1, verify: true }
    }

    #[test]
    fn messages_take_the_same_time_in_every_run() {
        let tensors = ModelShape::Vectors(3, 4000).tensors();
        for rules in ["*=dense", "*=gtopk:0.01", "*=topk:0.01,values=bf16", "*=oktopk:0.01", "*=low-rank:2"] {
            let rules = rules.parse().unwrap();
            for world_size in [1, 2, 3, 4] {
                for dtype in [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16] {
                    let on = Simulation { world_size, ..ON };
                    let run = || simulate_exchange(on, &exchanged(&tensors, &rules, dtype)).unwrap();
                    let (first, second) = (run(), run());
                    assert_eq!(first.communicate_us, second.communicate_us, "{rules}, {world_size}");
                    assert_eq!(first.bytes_sent, second.bytes_sent, "{rules}, {world_size}");
                    assert_eq!(first.communicate_us > 0.0, world_size > 1, "{rules}, {first:?}");
                    assert!(first.kernels_us > 0.0 && first.buckets == 1, "{first:?}");
                    assert!(first.kernels_us >= first.select_us + first.apply_us, "{first:?}");
                }
            }
        }
    }

    /// Bytes per rank and step: 2 (P - 1) / P vectors, whatever the algorithm of long ones.
    #[test]
    fn dense_sums_take_the_time_of_their_bytes() {
        let tensors = ModelShape::Matrix(500, 400).tensors();
        let rules = "*=dense".parse().unwrap();
        let exchanged = exchanged(&tensors, &rules, Dtype::F32);
        for (dtype, bytes) in [(Dtype::F32, 4.0), (Dtype::Bf16, 2.0)] {
            let Simulated { communicate_us, kernels_us, .. } = simulate_dense(ON, dtype, &exchanged).unwrap();
            let expected = 1.5 * bytes * 200_000.0 * ON.beta * 1e6;
            assert!((expected..1.2 * expected).contains(&communicate_us), "{communicate_us} us");
            assert!(kernels_us > 0.0);
        }
        let step = simulate_exchange(ON, &exchanged).unwrap();
        let dense = simulate_dense(ON, Dtype::F32, &exchanged).unwrap();
        // The barrier that decides a step comes on top.
        assert!((dense.communicate_us..1.1 * dense.communicate_us).contains(&step.communicate_us));
    }

    #[test]
    fn only_polls_of_a_rank_are_its_time() {
        let meter = Meter::default();
        let pause = Duration::from_millis(2);
        meter.during(|| std::thread::sleep(pause));
        let first = meter.busy();
        std::thread::sleep(pause);
        assert!(first >= pause && meter.busy() == first);
        assert!(meter.during(|| meter.busy()) >= first && meter.busy() >= first);
    }
}
