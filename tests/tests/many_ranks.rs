//! gTop-k of pairs, and low rank, among as many ranks as the other collectives are tested with.

use brevity::collectives::sparse::Coder;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, PutBack, Settings};
use brevity_tests::{oracle, suite};

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

/// The result is that of a serial tree of merges. It and the residuals together are what was handed in,
/// except with the published rule, which drops entries.
#[test]
fn gtopk_of_pairs_is_a_tree_of_merges() {
    for (count, k) in [(0, 0), (1, 1), (300, 0), (300, 20), (300, 300)] {
        for world_size in WORLD_SIZES {
            let all = suite::vectors(world_size, count);
            let expected = oracle::gtopk(all.iter().map(|vector| oracle::top_k(vector, k)).collect(), k);
            let given: Vec<_> = all.iter().map(|vector| suite::sparse(vector, k).to_dense()).collect();
            for rule in [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps] {
                let about = format!("{rule:?}, P = {world_size}, n = {count}, k = {k}");
                let outcomes = on_sim(world_size, |group| async move {
                    let own = suite::sparse(&oracle::vector(group.rank(), count), k);
                    group.start_gtopk_all_reduce(own, k, rule, Coder::pairs()).await.1.unwrap()
                });
                for outcome in &outcomes {
                    let found = outcome.result.iter();
                    assert!(found.eq(expected.iter().map(|(&index, &value)| (index, value))), "{about}");
                }
                if rule != PutBack::Published {
                    let mut parts: Vec<_> = outcomes.iter().map(|of| of.put_back.to_dense()).collect();
                    parts.push(outcomes[0].result.to_dense());
                    assert_eq!(oracle::sum(&parts), oracle::sum(&given), "{about}");
                }
            }
        }
    }
}

/// The factors have the same bits on all ranks, and are a step of power iteration on the mean.
#[test]
fn low_rank_is_a_step_of_power_iteration() {
    const SHAPES: [(usize, usize, usize); 4] = [(1, 1, 1), (1, 7, 2), (24, 17, 2), (9, 30, 4)];
    for world_size in WORLD_SIZES {
        let matrix = |rank: u32, position: usize| {
            let (rows, cols, _) = SHAPES[position];
            oracle::vector(rank + 100 * position as u32, rows * cols)
        };
        let outcomes = on_sim(world_size, |group| async move {
            let states = SHAPES.map(|(rows, cols, rank)| LowRank::new(rows, cols, rank, 7).unwrap());
            let own = (0..SHAPES.len()).map(|position| matrix(group.rank(), position)).collect();
            let (call, factors) = group.start_low_rank_all_reduce(Batch::new(states.into()), own).await;
            (call.batch, factors.unwrap())
        });
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let first = &outcomes[0].1;
        for (_, factors) in &outcomes {
            assert_eq!((bits(&factors.p), bits(&factors.q)), (bits(&first.p), bits(&first.q)));
        }
        let (mut batch, factors) = outcomes.into_iter().next().unwrap();
        for (position, (rows, cols, _)) in SHAPES.into_iter().enumerate() {
            let mut found = vec![0.0; rows * cols];
            batch.reconstruct(position, &factors, &mut found).unwrap();
            let all: Vec<_> = (0..world_size).map(|rank| matrix(rank, position)).collect();
            let mean: Vec<f64> =
                oracle::sum(&all).iter().map(|sum| f64::from(*sum) / f64::from(world_size)).collect();
            let expected = oracle::power_iteration(&mean, rows, cols, batch.states()[position].q());
            let scale = mean.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let about = format!("P = {world_size}, {rows} x {cols}: {found} {expected}");
                assert!((f64::from(*found) - expected).abs() < 1e-3 * scale, "{about}");
            }
        }
    }
}
