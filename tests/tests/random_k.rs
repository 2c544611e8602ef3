//! Random-K and random-block all-reduce.

use brevity::collectives::Error;
use brevity::collectives::sparse::{Draw, RandomPlaces};
use brevity::compress::SparseVec;
use brevity::compress::feedback::Residual;
use brevity::compress::generator::Generator;
use brevity::compress::select::{random_block, random_k};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};
use brevity_tests::dense::{in_order, vector};
use brevity_tests::{on_host, on_local, oracle};

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];
const DRAWS: [Draw; 2] = [Draw::Scattered, Draw::Block];
const COUNT: usize = 500;

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn places(draw: Draw, k: usize, step: u64) -> RandomPlaces {
    RandomPlaces { draw, k, seed: 0xb5ad, step }
}

/// The indices that all ranks must draw.
fn indices(count: usize, places: RandomPlaces) -> Vec<u32> {
    let mut generator = Generator::for_stream(places.seed, places.step);
    let (zeros, mut drawn) = (vec![0.0; count], SparseVec::new(0));
    match places.draw {
        Draw::Scattered => random_k(&zeros, places.k, &mut generator, &mut drawn, &mut Vec::new()).unwrap(),
        Draw::Block => random_block(&zeros, places.k, &mut generator, &mut drawn).unwrap(),
    }
    drawn.indices().to_vec()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_at_the_places_have_the_bits_of_dense_ones() {
    for (world_size, draw) in WORLD_SIZES.into_iter().flat_map(|size| DRAWS.map(|draw| (size, draw))) {
        for (count, k) in [(0, 0), (0, 3), (1, 1), (COUNT, 0), (COUNT, 40), (COUNT, 400), (COUNT, COUNT + 1)]
        {
            let places = places(draw, k, 3);
            let indices = indices(count, places);
            assert_eq!(indices.len(), k.min(count));
            let all = in_order((0..world_size).map(|rank| vector(rank, count)).collect());
            let expected: Vec<f32> = indices.iter().map(|index| all[*index as usize]).collect();
            let found = on_sim(world_size, |group| async move {
                let own = vector(group.rank(), count);
                let (given, sum) = group.start_random_k_all_reduce(own.clone(), places).await;
                assert_eq!(bits(&given.vector), bits(&own), "the vector has changed");
                sum.unwrap()
            });
            for sum in found {
                let about = format!("{draw:?}, P = {world_size}, n = {count}, k = {k}");
                assert_eq!((sum.dim(), sum.indices()), (count, &indices[..]), "{about}");
                assert_eq!(bits(sum.values()), bits(&expected), "{about}");
            }
        }
    }
}

/// With integers, what is delivered and what is left are together exactly what was given. Steps have other
/// places.
#[test]
fn what_is_left_stays_with_the_caller() {
    const STEPS: u32 = 5;
    let given = |rank: u32, step: u32| oracle::vector(rank + 1000 * step, COUNT);
    for (world_size, draw) in [1, 2, 3, 5, 8].into_iter().flat_map(|size| DRAWS.map(|draw| (size, draw))) {
        let parts = on_local(world_size, move |group| {
            let (mut residual, mut delivered) = (Residual::new(COUNT), vec![0.0; COUNT]);
            let mut all_indices = Vec::new();
            for step in 0..STEPS {
                residual.accumulate(&given(group.rank(), step)).unwrap();
                let sum =
                    group.random_k_all_reduce(residual.values(), places(draw, 60, step.into())).unwrap();
                residual.clear_at(sum.indices()).unwrap();
                sum.add_to(&mut delivered);
                all_indices.push(sum.indices().to_vec());
            }
            assert!(all_indices.windows(2).all(|pair| pair[0] != pair[1]), "{draw:?}: steps draw the same");
            (residual.values().to_vec(), delivered)
        });
        assert!(parts.iter().all(|(_, delivered)| *delivered == parts[0].1));
        let delivered = parts[0].1.clone();
        let kept = parts.into_iter().map(|(kept, _)| kept).chain([delivered]).collect::<Vec<_>>();
        let put_in: Vec<_> =
            (0..world_size).flat_map(|rank| (0..STEPS).map(move |step| given(rank, step))).collect();
        assert_eq!(oracle::sum(&kept), oracle::sum(&put_in), "{draw:?}, P = {world_size}");
    }
}

/// Also where the value is not drawn, or nothing is.
#[test]
fn a_value_that_is_not_finite_is_an_error_everywhere() {
    for (world_size, k) in [1, 2, 5].into_iter().flat_map(|size| [0, 1, 40].map(|k| (size, k))) {
        let body = move |group: &Group| {
            let is_bad = group.rank() + 1 == group.world_size();
            let value = if is_bad { f32::NAN } else { 1.0 };
            let call = |value| group.random_k_all_reduce(&[value; COUNT], places(Draw::Scattered, k, 0));
            let error = call(value).unwrap_err();
            call(1.0).unwrap();
            error
        };
        for errors in [on_local(world_size, body), on_host(world_size, Settings::default(), body)] {
            let is_named =
                |error: &Error| matches!(error, Error::NonFinite { rank, .. } if rank.0 + 1 == world_size);
            assert!(errors.iter().all(is_named), "P = {world_size}, k = {k}: {errors:?}");
        }
    }
    let errors = on_local(3, |group| {
        let error = group.random_k_all_reduce(&[f32::MAX; COUNT], places(Draw::Block, 9, 0)).unwrap_err();
        group.barrier().unwrap();
        error
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Overflow { tensor: 0 })), "{errors:?}");
}

#[test]
fn other_places_are_a_mismatch() {
    let these = places(Draw::Scattered, 40, 1);
    let others = [
        (RandomPlaces { draw: Draw::Block, ..these }, "random-k all-reduce of 500 f32, at most 40 entries"),
        (RandomPlaces { k: 41, ..these }, "at most 41 entries a rank (random k)"),
        (RandomPlaces { seed: 1, ..these }, "settings"),
        (RandomPlaces { step: 2, ..these }, "settings"),
    ];
    for (other, named) in others {
        let errors = on_local(3, move |group| {
            let places = if group.rank() == 1 { other } else { these };
            let result = group.random_k_all_reduce(&[1.0; COUNT], places);
            result.and_then(|_| group.barrier()).unwrap_err()
        });
        let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().all(is_told), "{errors:?}");
        assert!(errors.iter().any(|error| error.to_string().contains(named)), "{named}: {errors:?}");
    }
}
