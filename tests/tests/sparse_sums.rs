//! Sums of sparse vectors, by each algorithm: whole (top-k all-reduce), and a range to each rank
//! (reduce-scatter).

use brevity::collectives::sparse::{
    Coder, Scattered, TensorEnd, Tensors, TopK, Wire, owned, topk_all_reduce_by,
};
use brevity::collectives::{Algorithm, Description, Error, Operation};
use brevity::compress::SparseVec;
use brevity::compress::quantise::Values;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};
use brevity_tests::dense::in_order;
use brevity_tests::{on_local, oracle, suite};

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Bruck, Algorithm::Direct, Algorithm::Doubling];
const COUNT: usize = 300;
const K: usize = 40;

/// Integers up to this, which 8 significant bits do not hold.
const SCALE: f32 = 251.0;

fn wires() -> impl Iterator<Item = Wire> {
    [Wire::Pairs].into_iter().chain(Values::ALL.map(Wire::Coded))
}

/// The algorithms for a wire: doubling would round sums again and again.
fn algorithms(wire: Wire) -> impl Iterator<Item = Algorithm> {
    ALGORITHMS.into_iter().filter(move |by| *by != Algorithm::Doubling || wire.is_exact())
}

/// The entries of a rank: as many as it has less than the others. `scale` may make sums that depend on their
/// order.
fn entries(rank: u32, count: usize, k: usize, scale: f32) -> SparseVec {
    let vector: Vec<f32> = oracle::vector(rank, count).into_iter().map(|value| scale * value).collect();
    suite::sparse(&vector, k.saturating_sub(rank as usize % 4))
}

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn sums(world_size: u32, (count, k): (usize, usize), scale: f32, wire: Wire, by: Algorithm) -> Vec<TopK> {
    on_sim(world_size, |group| async move {
        let own = entries(group.rank(), count, k, scale);
        let group = group.with_algorithm(Some(by));
        group.start_topk_all_reduce(own, k, Coder::new(wire)).await.1.unwrap()
    })
}

fn scattered(world_size: u32, (count, k): (usize, usize), scale: f32, wire: Wire) -> Vec<Scattered> {
    on_sim(world_size, |group| async move {
        let own = entries(group.rank(), count, k, scale);
        group.start_sparse_reduce_scatter(own, k, Coder::new(wire)).await.1.unwrap()
    })
}

/// The zeros of a dense sum may be negative; a sparse one has none.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn exact_sums_have_the_bits_of_dense_ones_by_every_algorithm() {
    for world_size in WORLD_SIZES {
        for (count, k) in [(0, 0), (1, 1), (COUNT, 0), (COUNT, K), (COUNT, COUNT), (20, 20)] {
            // Thirds, so that another order has other bits.
            let scale = 1.0 / 3.0;
            let given = (0..world_size).map(|rank| entries(rank, count, k, scale).to_dense()).collect();
            let expected = bits(&in_order(given));
            for wire in [Wire::Pairs, Wire::Coded(Values::F32)] {
                for by in ALGORITHMS {
                    for found in sums(world_size, (count, k), scale, wire, by) {
                        assert_eq!(
                            bits(&found.sum.to_dense()),
                            expected,
                            "{by}, P = {world_size}, n = {count}"
                        );
                        assert!(found.kept.is_empty() && !found.sum.values().contains(&0.0));
                    }
                }
                for (rank, found) in (0..).zip(scattered(world_size, (count, k), scale, wire)) {
                    let place = owned(count, world_size, rank);
                    let found = (bits(&found.sum.to_dense()), found.kept.is_empty());
                    let mut of_place = vec![0; count];
                    of_place[place.clone()].copy_from_slice(&expected[place]);
                    assert_eq!(found, (of_place, true), "rank {rank} of {world_size}, n = {count}");
                }
            }
        }
    }
}

/// Sums of integers stay integers where values are rounded to some bits; elsewhere mass is conserved but for
/// the rounding of f32.
#[test]
fn what_rounding_takes_away_is_kept() {
    for (world_size, wire) in WORLD_SIZES.into_iter().flat_map(|size| wires().map(move |wire| (size, wire))) {
        let given: Vec<_> = (0..world_size).map(|rank| entries(rank, COUNT, K, SCALE).to_dense()).collect();
        let given = oracle::sum(&given);
        let whole = [Values::F32, Values::F16, Values::Bf16].map(Wire::Coded);
        let most = if wire == Wire::Pairs || whole.contains(&wire) { 0.0 } else { 0.5 };
        let check = |parts: &[Vec<f32>], what: &str| {
            for (found, given) in oracle::sum(parts).iter().zip(&given) {
                assert!(
                    (found - given).abs() <= most,
                    "{what}, {wire:?}, P = {world_size}: {found} of {given}"
                );
            }
        };
        for by in algorithms(wire) {
            let found = sums(world_size, (COUNT, K), SCALE, wire, by);
            assert!(found.iter().all(|other| other.sum == found[0].sum), "{by}, {wire:?}, P = {world_size}");
            let kept = found.iter().map(|found| &found.kept).chain([&found[0].sum]);
            check(&kept.map(SparseVec::to_dense).collect::<Vec<_>>(), by.name());
        }
        let found = scattered(world_size, (COUNT, K), SCALE, wire);
        let parts = found.iter().flat_map(|found| [&found.kept, &found.sum]).map(SparseVec::to_dense);
        check(&parts.collect::<Vec<_>>(), "scattered");
    }
}

type Call = fn(&Group, &SparseVec) -> Result<(), Error>;

#[test]
fn a_sum_that_is_not_finite_is_an_error_everywhere() {
    let calls: [(&str, Call); 4] = [
        ("bruck", |group, own| {
            group.with_algorithm(Some(Algorithm::Bruck)).topk_all_reduce(own.view(), 1).map(drop)
        }),
        ("direct", |group, own| {
            group.with_algorithm(Some(Algorithm::Direct)).topk_all_reduce(own.view(), 1).map(drop)
        }),
        ("doubling", |group, own| {
            group.with_algorithm(Some(Algorithm::Doubling)).topk_all_reduce(own.view(), 1).map(drop)
        }),
        ("scattered", |group, own| group.sparse_reduce_scatter(own.view(), 1, &mut Coder::pairs()).map(drop)),
    ];
    for ((name, call), world_size) in calls.into_iter().flat_map(|call| [2, 3, 5].map(|size| (call, size))) {
        let errors = on_local(world_size, move |group| {
            let own = SparseVec::from_parts(9, vec![7], vec![f32::MAX]).unwrap();
            let error = call(group, &own).unwrap_err();
            group.barrier().unwrap();
            error
        });
        let is_told =
            |error: &Error| matches!(error, Error::Overflow { tensor: 0 } | Error::NonFinite { .. });
        assert!(errors.iter().all(is_told), "{name}, P = {world_size}: {errors:?}");
    }
}

/// Where a sum is not finite travels with it, so that all ranks name the same tensor.
#[test]
fn a_sum_that_is_not_finite_is_of_its_tensor_everywhere() {
    const DIM: usize = 90;
    let ends = [(10, 4), (10, 7), (60, 2), (DIM, 9)].map(|(end, tensor)| TensorEnd { end, tensor });
    let wires = [Wire::Pairs, Wire::Coded(Values::F32)];
    for (algorithm, wire) in ALGORITHMS.into_iter().flat_map(|by| wires.map(|wire| (by, wire))) {
        for (index, tensor) in [(0, 4), (10, 2), (59, 2), (89, 9)] {
            for world_size in [2, 3, 4, 5] {
                let errors = on_local(world_size, move |group| {
                    let is_one_of_two = group.rank() == 0 || group.rank() + 1 == group.world_size();
                    let value = if is_one_of_two { f32::MAX } else { 1.0 };
                    let own = SparseVec::from_parts(DIM, vec![index], vec![value]).unwrap();
                    let description = Description::new(Operation::TOPK_ALL_REDUCE, 0, DIM);
                    group.run(description, async |call| {
                        let (mut coder, tensors) = (Coder::new(wire), Tensors::from(&ends[..]));
                        let sum = topk_all_reduce_by(call, algorithm, own.view(), 1, &mut coder, tensors);
                        sum.await.map(drop).and_then(|()| call.check_poison()).unwrap_err()
                    })
                });
                let found = |error: &Error| match error {
                    Error::Overflow { tensor } | Error::NonFinite { tensor, .. } => Some(*tensor),
                    _ => None,
                };
                let is_told = errors.iter().all(|error| found(error) == Some(tensor));
                assert!(is_told, "{algorithm:?}, {wire:?}, P = {world_size}, {index}: {errors:?}");
            }
        }
    }
}

/// In doubling the ranks that have such a sum tell the others, sparse and dense, also where it is that of one
/// block of ranks alone.
#[test]
fn a_partial_sum_that_is_not_finite_is_an_error_everywhere() {
    for (dim, world_size) in [1, 2, 9].into_iter().flat_map(|dim| [2, 3, 4, 5, 8, 12].map(|size| (dim, size)))
    {
        for wire in [Wire::Pairs, Wire::Coded(Values::F32)] {
            for first in [0, (world_size / 2).min(world_size - 2)] {
                let errors = on_local(world_size, move |group| {
                    let with = |value| SparseVec::from_parts(dim, vec![dim as u32 - 1], vec![value]).unwrap();
                    let group = group.with_algorithm(Some(Algorithm::Doubling));
                    let sum = |own: SparseVec| group.topk_all_reduce_by(own.view(), 1, &mut Coder::new(wire));
                    let is_large = (first..first + 2).contains(&group.rank());
                    let (finite, sums) = (sum(with(1.0)).unwrap(), group.world_size() as f32);
                    assert_eq!((finite.sum.values(), finite.kept.is_empty()), (&[sums][..], true));
                    let error = sum(with(if is_large { f32::MAX } else { 1.0 })).unwrap_err();
                    group.barrier().unwrap();
                    error
                });
                let is_told = errors.iter().all(|error| matches!(error, Error::Overflow { tensor: 0 }));
                assert!(is_told, "n = {dim}, {wire:?}, P = {world_size}, from {first}: {errors:?}");
            }
        }
    }
}

/// Four ranks have the whole vector together: what they send in the third round is dense.
#[test]
fn dense_sums_travel_without_indices() {
    let count = 1 << 12;
    let sent = |by| {
        let bytes = on_sim(8, |group| async move {
            let indices = (group.rank() % 4..count).step_by(4).collect::<Vec<_>>();
            let values = vec![1.0; indices.len()];
            let own = SparseVec::from_parts(count as usize, indices, values).unwrap();
            let (group, k) = (group.with_algorithm(Some(by)), count as usize / 4);
            let before = group.statistics().bytes_sent;
            group.start_topk_all_reduce(own, k, Coder::pairs()).await.1.unwrap();
            group.statistics().bytes_sent - before
        });
        bytes.into_iter().max().unwrap() as f64 / f64::from(count)
    };
    let (doubling, bruck) = (sent(Algorithm::Doubling), sent(Algorithm::Bruck));
    assert!((doubling - 10.0).abs() < 0.1, "{doubling} bytes an element");
    assert!((bruck - 14.0).abs() < 0.1, "{bruck} bytes an element");
}

#[test]
fn algorithms_are_those_of_its_rows_and_equal_on_all_ranks() {
    let errors = on_local(3, |group| {
        let own = entries(group.rank(), COUNT, K, 1.0);
        let refused = group.with_algorithm(Some(Algorithm::Ring)).topk_all_reduce(own.view(), K).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("bruck, direct") || text.contains("direct, bruck"), "{text}");
        let by_doubling = group.with_algorithm(Some(Algorithm::Doubling));
        let mut rounding = Coder::new(Wire::Coded(Values::Bf16));
        let refused = by_doubling.topk_all_reduce_by(own.view(), K, &mut rounding).unwrap_err();
        assert!(refused.to_string().contains("bruck, direct"), "{refused}");
        // What has one algorithm alone takes it.
        group.with_algorithm(Some(Algorithm::Ring)).sparse_all_gather(own.view(), K).unwrap();
        let by = ALGORITHMS[usize::from(group.rank() == 1)];
        let result = group.with_algorithm(Some(by)).topk_all_reduce(own.view(), K);
        result.and_then(|_| group.barrier()).unwrap_err()
    });
    let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
    assert!(errors.iter().all(is_told), "{errors:?}");
}
