//! How much Ok-Topk sends, as a simulated network counts it: all bytes but the headers.

use brevity::collectives::sparse::{Coder, OkTopk};
use brevity::compress::SparseVec;
use brevity::compress::generator::Generator;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};

const STEPS: u64 = 32;
/// Bytes of an index and a value.
const ENTRY: f64 = 8.0;

/// The bytes that each rank has sent in all steps.
fn sent(
    (world_size, count, k): (u32, usize, usize),
    keeps_residual: bool,
    gradient: impl Fn(u32, u64) -> Vec<f32> + Copy,
) -> Vec<usize> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9)).with_passages();
    let ends = run(cluster.clone(), |transport| async move {
        let group = Group::new(transport, Settings::default());
        let mut state = OkTopk::new(count, k, world_size);
        let mut residual = vec![0.0; count];
        for step in 0..STEPS {
            let new = gradient(group.rank(), step);
            residual.iter_mut().zip(new).for_each(|(residual, value)| *residual += value);
            let mut local = SparseVec::new(count);
            state.select(&residual, &mut local).unwrap();
            assert!(local.len() <= 2 * k);
            local.indices().iter().for_each(|index| residual[*index as usize] = 0.0);
            let (call, outcome) = group.start_ok_topk_all_reduce(local, state, Coder::pairs()).await;
            let outcome = outcome.unwrap();
            assert!((k / 2..=2 * k).contains(&outcome.result.len()), "{}", outcome.result.len());
            state = call.state;
            outcome.put_back.add_to(&mut residual);
            if !keeps_residual {
                residual.fill(0.0);
            }
        }
        state.step()
    });
    assert_eq!(ends.unwrap(), vec![STEPS; world_size as usize]);
    let mut bytes = vec![0; world_size as usize];
    cluster.passages().iter().for_each(|passage| bytes[passage.from.0 as usize] += passage.bytes);
    bytes
}

/// A rank sends at most `6 k (P - 1) / P` entries a step, by all that it sends, on average over ranks and
/// steps.
fn check(world_size: u32, count: usize, k: usize) {
    let normal = |rank: u32, step: u64| {
        let mut gradient = vec![0.0; count];
        Generator::for_stream(step, u64::from(rank)).fill_normal(&mut gradient);
        gradient
    };
    let ranks = f64::from(world_size);
    for keeps_residual in [false, true] {
        let bytes: usize = sent((world_size, count, k), keeps_residual, normal).iter().sum();
        let entries = bytes as f64 / ENTRY / ranks / STEPS as f64;
        let share = entries / (k as f64 * (ranks - 1.0) / ranks);
        println!(
            "P = {world_size}, residual {keeps_residual}: {share:.2} k (P - 1) / P entries a rank and step"
        );
        assert!(share <= 6.0, "P = {world_size}, residual {keeps_residual}: {share} k (P - 1) / P entries");
        // Less than each rank's entries to their owners, and the result to all, would be a miscount.
        assert!(share >= 1.4, "P = {world_size}, residual {keeps_residual}: {share} k (P - 1) / P entries");
    }
}

/// Among up to 16 ranks, and up to `BREVITY_VOLUME_RANKS` in `ci/exhaustive.sh`, which takes minutes.
#[test]
fn a_rank_sends_at_most_six_k_entries() {
    [4, 8, 16].into_iter().for_each(|world_size| check(world_size, 20_000, 200));
    let most = std::env::var("BREVITY_VOLUME_RANKS").map_or(0, |ranks| ranks.parse().unwrap());
    let many = [4, 8, 16, 32, 64, 128].into_iter().filter(|world_size| *world_size <= most);
    many.for_each(|world_size| check(world_size, 100_000, 1000));
}

/// With all mass at the first indices, or all large sums in the region of one rank, no rank sends much more
/// than the others.
#[test]
fn no_rank_sends_more_than_six_k_entries_of_skewed_gradients() {
    let (count, k) = (20_000, 400);
    let at_the_front = |rank: u32, step: u64| {
        let mut gradient = vec![0.0; count];
        Generator::for_stream(step, u64::from(rank)).fill_normal(&mut gradient[..2 * k]);
        gradient
    };
    // The large values agree in sign, so that all of the result is in a sixteenth of the indices.
    let in_one_region = |rank: u32, step: u64| {
        let mut gradient = at_the_front(rank, step);
        Generator::for_stream(step, u64::from(rank)).fill_normal(&mut gradient);
        gradient[count / 4..count / 4 + k / 4].iter_mut().for_each(|value| *value = value.abs() + 8.0);
        gradient
    };
    for world_size in [5, 8, 16] {
        let cases = [
            sent((world_size, count, k), false, at_the_front),
            sent((world_size, count, k), false, in_one_region),
        ];
        for bytes in cases {
            let most = bytes.iter().max().copied().unwrap_or(0) as f64 / ENTRY / STEPS as f64;
            println!("P = {world_size}: at most {:.2} k entries a rank and step", most / k as f64);
            assert!(most <= 6.0 * k as f64, "P = {world_size}: {most} entries by one rank");
        }
    }
}
