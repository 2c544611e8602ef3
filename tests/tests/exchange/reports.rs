//! What a step tells of itself.

use brevity::transport::Statistics;
use brevity::{BucketReport, Phase, StepReport};

use super::*;

/// A step that hands in its tensors from the last one on.
fn step(exchange: &mut GradientExchange, gradients: &mut [Vec<f32>]) -> StepReport {
    let mut step = exchange.begin().unwrap();
    for tensor in (0..gradients.len()).rev() {
        step.ready(tensor, &gradients[tensor]).unwrap();
    }
    step.finish(gradients).unwrap()
}

fn sum(report: &StepReport, of: impl Fn(&BucketReport) -> u64) -> u64 {
    report.buckets.iter().map(of).sum()
}

/// Bytes of messages are those of the transport, but for its headers.
#[test]
fn bytes_of_buckets_are_those_that_the_transport_counts() {
    let mut header = None;
    for (name, policy) in POLICIES {
        for (world_size, between) in [1, 2, 3, 5].into_iter().flat_map(|size| BOTH.map(|all| (size, all))) {
            let ranks = between.run(world_size, move |group| {
                let mut exchange = exchange(group, policy);
                let before = group.statistics();
                let report = step(&mut exchange, &mut gradients(group.rank(), 0));
                (report, before, group.statistics())
            });
            let over = |of: fn(&Statistics) -> u64| -> Vec<u64> {
                ranks.iter().map(|(_, before, after)| of(after) - of(before)).collect()
            };
            let told = |of: fn(&BucketReport) -> u64| -> Vec<u64> {
                ranks.iter().map(|(report, ..)| sum(report, of)).collect()
            };
            let what = format!("{name}, {between:?}, P = {world_size}");
            let (sent, received) = (told(|bucket| bucket.bytes_sent), told(|bucket| bucket.bytes_received));
            assert_eq!(sent.iter().sum::<u64>(), received.iter().sum::<u64>(), "{what}");
            assert_eq!(told(|bucket| bucket.bytes_shared), over(|all| all.bytes_shared), "{what}");
            let (bytes, messages) = (over(|all| all.bytes_sent), over(|all| all.messages_sent));
            for ((bytes, sent), messages) in bytes.into_iter().zip(sent).zip(messages) {
                let found = (bytes - sent).checked_div(messages);
                let found = found.map(|found| *header.get_or_insert(found));
                assert_eq!(bytes, sent + found.unwrap_or(0) * messages, "{what}");
            }
        }
    }
    assert!(header.is_some_and(|bytes| bytes > 0));
}

/// The phases of a bucket make up its times, and come in their order.
#[test]
fn phases_make_up_the_times() {
    for between in BOTH {
        between.run(3, |group| {
            let mut exchange = exchange(group, Policy::gtopk(0.05));
            let report = step(&mut exchange, &mut gradients(group.rank(), 0));
            assert_eq!(report.buckets.len(), 2);
            for bucket in &report.buckets {
                let of = |phase| bucket.phases.iter().filter(move |found| found.phase == phase);
                let took = |phase| of(phase).map(|found| found.took).sum::<Duration>();
                assert_eq!(took(Phase::Select), bucket.select);
                assert_eq!(took(Phase::Communicate), bucket.communicate);
                assert_eq!(took(Phase::Wait), bucket.wait);
                assert_eq!(took(Phase::Apply), bucket.apply);
                let selected: Vec<_> = of(Phase::Select).filter_map(|found| found.tensor).collect();
                assert_eq!(selected, bucket.tensors);
                let ends = |phase| of(phase).map(|found| found.start + found.took).max().unwrap();
                let begins = |phase| of(phase).map(|found| found.start).min().unwrap();
                assert!(ends(Phase::Select) <= begins(Phase::Communicate), "{bucket:?}");
                assert!(ends(Phase::Communicate) <= begins(Phase::Apply), "{bucket:?}");
                assert!(ends(Phase::Wait) <= begins(Phase::Apply), "{bucket:?}");
            }
        });
    }
}
