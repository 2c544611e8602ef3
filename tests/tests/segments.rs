//! All-reduces of long vectors, which are cut into segments: on threads, and on the simulated network with a
//! death at every message.

use std::time::Duration;

use brevity::transport::Rank;
use brevity::transport::local;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, ReduceOp, Settings};
use brevity_tests::mixed::is_lost;
use brevity_tests::oracle;

/// The elements that a rank brings to one segment.
const SLICE: usize = (512 << 10) / 4;

/// One segment less one element, one exactly, one more, and three and a half.
fn counts(world_size: u32) -> [usize; 4] {
    let segment = SLICE * world_size as usize;
    [segment - 1, segment, segment + 1, 3 * segment + segment / 2 + 1]
}

#[test]
fn long_vectors_are_reduced_to_their_last_element() {
    for world_size in 2..=5 {
        for count in counts(world_size) {
            let all: Vec<_> = (0..world_size).map(|rank| oracle::vector(rank, count)).collect();
            let sum = oracle::sum(&all);
            let ranks: Vec<_> = local::world(world_size)
                .into_iter()
                .zip(all)
                .map(|(transport, own)| {
                    std::thread::spawn(move || {
                        let group = Group::new(Box::new(transport), Settings::default());
                        let started = group.start_all_reduce(own.clone(), ReduceOp::Sum);
                        let mut data = own;
                        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                        let (also, result) = started.wait();
                        result.unwrap();
                        assert!(data == also, "{count} elements");
                        data
                    })
                })
                .collect();
            for rank in ranks {
                assert!(rank.join().unwrap() == sum, "{count} elements, {world_size} ranks");
            }
        }
    }
}

/// What a rank has got, how that ended, and the messages that it has sent.
type Ended = (Vec<f32>, brevity::collectives::Result<()>, u64);

fn simulate(world_size: u32, count: usize, fault: Option<Fault>) -> Vec<Ended> {
    let cluster = Cluster::new(world_size, Links::new(20e-6, 1e-9)).with_faults(fault);
    let ended = run(cluster, |transport| {
        let settings = Settings { timeout: Duration::from_secs(100), ..Settings::default() };
        let group = Group::new(transport, settings);
        async move {
            let own = oracle::vector(group.rank(), count);
            let (sum, result) = group.start_all_reduce(own, ReduceOp::Sum).await;
            (sum, result, group.statistics().messages_sent)
        }
    });
    ended.unwrap()
}

#[test]
fn a_death_at_any_message_of_any_segment_is_told() {
    for world_size in 2..=4 {
        let count = 4 * SLICE * world_size as usize;
        let sum = oracle::sum(&(0..world_size).map(|rank| oracle::vector(rank, count)).collect::<Vec<_>>());
        let calm = simulate(world_size, count, None);
        assert!(calm.iter().all(|(found, result, _)| result.is_ok() && *found == sum));
        let victim = world_size - 1;
        for messages in 1..=calm[victim as usize].2 {
            let fault = Fault::KillAfter { rank: Rank(victim), messages };
            let ended = simulate(world_size, count, Some(fault));
            for (rank, (found, result, _)) in ended.iter().enumerate().take(victim as usize) {
                let is_right = if result.is_ok() { *found == sum } else { is_lost(result, victim) };
                assert!(is_right, "rank {rank} of {world_size}, {fault:?}: {result:?}");
            }
        }
    }
}
