//! Steps of a gradient exchange of a whole model.

use std::time::{Duration, Instant};

use brevity::compress::generator::Generator;
use brevity::{BucketReport, GradientExchange, Group, PolicyRules};

use super::Difference;
use crate::Result;
use crate::models::TensorShape;
use crate::timeline::Timeline;

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
    (tensors, rules): (&[TensorShape], &PolicyRules),
    bucket_bytes: Option<usize>,
    (iterations, warmup): (usize, usize),
    verify: bool,
    timeline: &mut Option<Timeline>,
) -> Result<Stepped> {
    let mut exchange = built(group, tensors, rules, bucket_bytes)?;
    let mut generator = Generator::for_stream(3, u64::from(group.rank()));
    let source: Vec<Vec<f32>> = tensors
        .iter()
        .map(|(_, shape)| {
            let mut gradient = vec![0.0; shape.iter().product()];
            generator.fill_normal(&mut gradient);
            gradient
        })
        .collect();
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
            let share = |time: Duration| time.as_secs_f64() * 1e6 / iterations as f64;
            let of = |part: fn(&BucketReport) -> Duration| share(report.total(part));
            all.step_us += share(time);
            all.select_us += of(|bucket| bucket.select);
            all.communicate_us += of(|bucket| bucket.communicate);
            all.wait_us += of(|bucket| bucket.wait);
            all.apply_us += of(|bucket| bucket.apply);
            all.bytes_sent += sent as f64 / iterations as f64;
            all.buckets = report.buckets.len() as f64;
            if let Some(timeline) = timeline {
                let name = format!("{rules}, step {}", iteration - warmup);
                timeline.add(&name, &exchange, &report);
            }
        }
    }
    Ok(all)
}

fn built(
    group: &Group,
    tensors: &[TensorShape],
    rules: &PolicyRules,
    bucket_bytes: Option<usize>,
) -> Result<GradientExchange> {
    let mut builder = GradientExchange::builder(group);
    if let Some(bytes) = bucket_bytes {
        builder = builder.bucket_bytes(bytes);
    }
    for (name, shape) in tensors {
        builder = builder.tensor(name, shape, rules.policy(name, shape)?);
    }
    Ok(builder.build()?)
}

/// Compares a digest of all averages with those of the other ranks.
///
/// # Errors
/// [`Error::Wrong`](crate::Error::Wrong) if they differ; errors of the group.
pub(crate) fn check_alike(group: &Group, averages: &[Vec<f32>]) -> Result<()> {
    let bits = averages.iter().flatten().map(|value| u64::from(value.to_bits()));
    let own = bits.fold(0_u64, |digest, bits| (digest ^ bits).wrapping_mul(0x100_0000_01b3).rotate_left(7));
    let mut all = vec![0; group.world_size() as usize];
    group.all_gather(&[own], &mut all)?;
    let expected = vec![all[0]; all.len()];
    let bytes = averages.iter().map(Vec::len).sum::<usize>() * size_of::<f32>();
    Difference::find(&all, &expected).map_err(|wrong| wrong.of(group.rank(), "exchange", bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_measured_and_checked() {
        let tensors = crate::models::ModelShape::Vectors(3, 40).tensors();
        let group = Group::solo();
        for (rules, bytes, buckets) in [
            ("*=gtopk:0.1", None, 1.0),
            ("*=topk:0.1", Some(0), 3.0),
            ("vector1=dense; *=signum:0.5", None, 2.0),
        ] {
            let rules: PolicyRules = rules.parse().unwrap();
            let stepped =
                measure_exchange(&group, (&tensors, &rules), bytes, (3, 1), true, &mut None).unwrap();
            assert_eq!(stepped.buckets, buckets, "{stepped:?}");
            assert!(stepped.step_us > 0.0 && stepped.step_us >= stepped.select_us, "{stepped:?}");
        }
        let rules: PolicyRules = "vector1=dense".parse().unwrap();
        assert!(measure_exchange(&group, (&tensors, &rules), None, (1, 0), false, &mut None).is_err());
    }
}
