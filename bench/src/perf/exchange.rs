//! Steps of a gradient exchange of a whole model.

use std::time::{Duration, Instant};

use brevity::compress::generator::Generator;
use brevity::{BucketReport, GradientElement, GradientExchange, Group, PolicyRules, StepReport};

use super::{Difference, Dtype, of_dtype};
use crate::Result;
use crate::collective::Number;
use crate::models::TensorShape;
use crate::timeline::Timeline;

/// What is exchanged, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Exchanged<'a> {
    /// The tensors of a model.
    pub tensors: &'a [TensorShape],
    /// How they travel.
    pub rules: &'a PolicyRules,
    /// The type of the gradients.
    pub dtype: Dtype,
    /// The bytes of a bucket, if it is said.
    pub bucket_bytes: Option<usize>,
    /// Timed steps.
    pub iterations: usize,
    /// Steps before those, and after a first one, which is checked.
    pub warmup: usize,
    /// Whether every step is checked.
    pub verify: bool,
}

/// What a step of one rank takes: means over the iterations, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stepped {
    /// From the first gradient to the last average.
    pub step_us: f64,
    /// Adding to residuals and selecting, of all buckets together.
    pub select_us: f64,
    /// Collectives, of all buckets together: these go on at the same time.
    pub communicate_us: f64,
    /// What the end of the step waited for.
    pub wait_us: f64,
    /// Writing averages and residuals.
    pub apply_us: f64,
    /// Bytes that this rank sends in a step.
    pub bytes_sent: f64,
    /// Into how many buckets the tensors were put.
    pub buckets: f64,
}

/// Measures steps of an exchange of these tensors. Gradients are standard normal, the same in each step, and
/// are handed in from the last tensor on. After the first step, and with `verify` after each, all ranks must
/// have the same averages. A barrier follows each, outside the clock. Timed steps are added to the timeline.
///
/// # Errors
/// If no rule is for a tensor, the exchange refuses a policy, a rank is lost, or averages differ.
pub fn measure_exchange(
    group: &Group,
    exchanged: &Exchanged<'_>,
    timeline: &mut Option<Timeline>,
) -> Result<Stepped> {
    of_dtype!(exchanged.dtype, measure_as(group, exchanged, timeline))
}

fn measure_as<E: Number + GradientElement>(
    group: &Group,
    exchanged: &Exchanged<'_>,
    timeline: &mut Option<Timeline>,
) -> Result<Stepped> {
    let Exchanged { rules, iterations, warmup, verify, .. } = *exchanged;
    let mut exchange = exchanged.built(group)?;
    let source: Vec<Vec<E>> = exchanged.gradients(group.rank());
    let mut gradients = source.clone();
    let mut all = Stepped::default();
    for iteration in 0..1 + warmup + iterations {
        gradients.iter_mut().zip(&source).for_each(|(gradient, source)| gradient.copy_from_slice(source));
        group.barrier()?;
        let sent_before = super::workload::bytes_out(group);
        let begun = Instant::now();
        let mut step = exchange.begin()?;
        for (tensor, gradient) in gradients.iter().enumerate().rev() {
            step.ready(tensor, gradient)?;
        }
        let report = step.finish(&mut gradients)?;
        let time = begun.elapsed();
        let sent = super::workload::bytes_out(group) - sent_before;
        if verify || iteration == 0 {
            check_alike(group, &gradients)?;
        }
        if iteration > warmup {
            all.add(time, &report, sent, iterations);
            if let Some(timeline) = timeline {
                let name = format!("{rules}, step {}", iteration - warmup);
                timeline.add(&name, &exchange, &report);
            }
        }
    }
    Ok(all)
}

impl Stepped {
    /// Adds one of so many steps.
    fn add(&mut self, time: Duration, report: &StepReport, sent: u64, iterations: usize) {
        let share = |time: Duration| time.as_secs_f64() * 1e6 / iterations as f64;
        let of = |part: fn(&BucketReport) -> Duration| share(report.total(part));
        self.step_us += share(time);
        self.select_us += of(|bucket| bucket.select);
        self.communicate_us += of(|bucket| bucket.communicate);
        self.wait_us += of(|bucket| bucket.wait);
        self.apply_us += of(|bucket| bucket.apply);
        self.bytes_sent += sent as f64 / iterations as f64;
        self.buckets = report.buckets.len() as f64;
    }
}

impl Exchanged<'_> {
    /// The exchange of a rank.
    ///
    /// # Errors
    /// If no rule is for a tensor, or the exchange refuses a policy.
    pub(super) fn built(&self, group: &Group) -> Result<GradientExchange> {
        let mut builder = GradientExchange::builder(group);
        if let Some(bytes) = self.bucket_bytes {
            builder = builder.bucket_bytes(bytes);
        }
        for (name, shape) in self.tensors {
            builder = builder.tensor(name, shape, self.rules.policy(name, shape)?);
        }
        Ok(builder.build()?)
    }

    /// Standard normal gradients of a rank.
    pub(super) fn gradients<E: Number>(&self, rank: u32) -> Vec<Vec<E>> {
        let mut generator = Generator::for_stream(3, u64::from(rank));
        let gradient = |(_, shape): &TensorShape| {
            let mut gradient = vec![0.0; shape.iter().product()];
            generator.fill_normal(&mut gradient);
            gradient.into_iter().map(E::of).collect()
        };
        self.tensors.iter().map(gradient).collect()
    }

    /// The elements of all tensors.
    pub(super) fn elements(&self) -> usize {
        self.tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }
}

/// Compares a digest of all averages with those of the other ranks.
///
/// # Errors
/// [`Error::Wrong`](crate::Error::Wrong) if they differ; errors of the group.
pub(crate) fn check_alike<E: Number>(group: &Group, averages: &[Vec<E>]) -> Result<()> {
    let mut all = vec![0; group.world_size() as usize];
    group.all_gather(&[digest(averages)], &mut all)?;
    let bytes = averages.iter().map(Vec::len).sum::<usize>() * size_of::<E>();
    check_digests(&all, group.rank(), bytes)
}

/// Checks that the digests of all ranks are equal.
///
/// # Errors
/// [`Error::Wrong`](crate::Error::Wrong), as of rank `own`.
pub(super) fn check_digests(all: &[u64], own: u32, bytes: usize) -> Result<()> {
    let expected = vec![all.first().copied().unwrap_or_default(); all.len()];
    Difference::find(all, &expected).map_err(|wrong| wrong.of(own, "exchange", bytes))
}

/// A digest of all averages.
pub(super) fn digest<E: Number>(averages: &[Vec<E>]) -> u64 {
    let bits = averages.iter().flatten().map(|value| value.bits());
    bits.fold(0_u64, |digest, bits| (digest ^ bits).wrapping_mul(0x100_0000_01b3).rotate_left(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rules: &str, bucket_bytes: Option<usize>, dtype: Dtype) -> Result<Stepped> {
        let tensors = crate::models::ModelShape::Vectors(3, 40).tensors();
        let rules: PolicyRules = rules.parse().unwrap();
        let (iterations, warmup, verify) = (3, 1, true);
        let exchanged =
            Exchanged { tensors: &tensors, rules: &rules, dtype, bucket_bytes, iterations, warmup, verify };
        measure_exchange(&Group::solo(), &exchanged, &mut None)
    }

    #[test]
    fn steps_are_measured_and_checked() {
        for (rules, bytes, buckets) in [
            ("*=gtopk:0.1", None, 1.0),
            ("*=topk:0.1", Some(0), 3.0),
            ("vector1=dense; *=signum:0.5", None, 2.0),
        ] {
            for dtype in [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16] {
                let stepped = measured(rules, bytes, dtype).unwrap();
                assert_eq!(stepped.buckets, buckets, "{stepped:?}");
                assert!(stepped.step_us > 0.0 && stepped.step_us >= stepped.select_us, "{stepped:?}");
            }
        }
        assert!(measured("vector1=dense", None, Dtype::F32).is_err());
    }

    #[test]
    fn ranks_that_differ_are_told() {
        let averages = |value: f32| digest(&[vec![1.0, value], vec![0.0]]);
        assert!(check_digests(&[averages(2.0), averages(2.0)], 0, 12).is_ok());
        let error = check_digests(&[averages(2.0), averages(-2.0)], 1, 12).unwrap_err().to_string();
        assert!(error.starts_with("rank 1: exchange of 12 bytes is wrong at 1"), "{error}");
    }
}
