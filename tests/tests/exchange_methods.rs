//! Sparse tensors by other methods than top k, against references of all ranks.

use brevity::collectives::Error as Collective;
use brevity::collectives::sparse::{Coder, Draw, OkTopk, OkTopkAllReduce, RandomPlaces, Wire};
use brevity::compress::feedback::Residual;
use brevity::compress::quantise::Values;
use brevity::compress::{Density, SparseVec};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Error, GradientExchange, Group, Policy, Settings};
use brevity_tests::{on_local, oracle};

const WORLD_SIZES: [u32; 7] = [1, 2, 3, 4, 5, 8, 16];
const SEED: u64 = 77;

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn built(group: &Group, count: usize, policy: Policy) -> GradientExchange {
    GradientExchange::builder(group).seed(SEED).tensor("weight", [count], policy).build().unwrap()
}

/// The average of one step, from an exchange that is given back.
async fn step(exchange: GradientExchange, gradient: Vec<f32>) -> (GradientExchange, Vec<f32>) {
    let ((exchange, mut averages), outcome) = exchange.start(vec![gradient]).await;
    outcome.unwrap();
    (exchange, averages.remove(0))
}

/// A walk, so that thresholds stay for some steps and are estimated anew in others.
fn gradient(rank: u32, step: u32, count: usize) -> Vec<f32> {
    let scale = 1.0 + (step % 7) as f32;
    oracle::vector(rank + 1000 * step, count).into_iter().map(|value| scale * value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The same as a residual, a selection by the collective's own rule, and the collective. Thresholds are
/// estimated anew at step 32 and the partition at step 64.
#[test]
fn ok_topk_is_a_residual_around_the_collective() {
    const COUNT: usize = 300;
    for (world_size, values) in
        WORLD_SIZES.into_iter().flat_map(|size| [Values::F32, Values::Bf16].map(|values| (size, values)))
    {
        let outcomes = on_sim(world_size, move |group| async move {
            let k = Density::new(0.04).unwrap().entries(COUNT);
            let mut exchange = built(&group, COUNT, Policy::oktopk(0.04).values(values));
            let wire = if values.is_exact() { Wire::Pairs } else { Wire::Coded(values) };
            let (mut residual, mut state) = (Residual::new(COUNT), OkTopk::new(COUNT, k, world_size));
            let mut counts = Vec::new();
            for number in 0..70 {
                let given = gradient(group.rank(), number, COUNT);
                residual.accumulate(&given).unwrap();
                let mut local = SparseVec::new(0);
                state.select(residual.values(), &mut local).unwrap();
                residual.clear_at(local.indices()).unwrap();
                let call = OkTopkAllReduce { local, state, coder: Coder::new(wire) };
                let (call, outcome) = group.start_compressed(call).await;
                state = call.state;
                let outcome = outcome.unwrap();
                residual.put_back(outcome.put_back.view()).unwrap();
                let mut expected = outcome.result.to_dense();
                expected.iter_mut().for_each(|sum| *sum /= world_size as f32);
                counts.push(outcome.result.len());
                let (after, found) = step(exchange, given).await;
                exchange = after;
                assert_eq!(bits(&found), bits(&expected), "P = {world_size}, step {number}");
                let kept = exchange.residual("weight").unwrap();
                assert_eq!(bits(&kept), bits(residual.values()), "P = {world_size}, step {number}");
            }
            (counts, k)
        });
        for (counts, k) in &outcomes {
            assert!(counts.iter().all(|count| (k.div_ceil(2)..=2 * k).contains(count)), "{counts:?}");
            assert!(counts.iter().any(|count| count != k), "a threshold was never reused");
        }
    }
}

/// Values at the places that all ranks draw are summed, and leave the residuals.
#[test]
fn random_places_deliver_what_has_gathered_there() {
    const COUNT: usize = 90;
    for (world_size, draw) in
        WORLD_SIZES.into_iter().flat_map(|size| [Draw::Scattered, Draw::Block].map(|draw| (size, draw)))
    {
        let policy = if draw == Draw::Block { Policy::random_block(0.2) } else { Policy::random_k(0.2) };
        let found = on_sim(world_size, move |group| async move {
            let (mut exchange, mut averages) = (built(&group, COUNT, policy), Vec::new());
            for number in 0..12 {
                let (after, average) = step(exchange, gradient(group.rank(), number, COUNT)).await;
                exchange = after;
                averages.push(average);
            }
            (averages, exchange.residual("weight").unwrap())
        });
        let mut residuals = vec![vec![0.0; COUNT]; world_size as usize];
        for number in 0..12 {
            let places = RandomPlaces { draw, k: 18, seed: SEED, step: number };
            let places = places.select(&[0.0; COUNT]).unwrap();
            let mut expected = vec![0.0; COUNT];
            for (rank, residual) in (0..).zip(&mut residuals) {
                *residual = oracle::sum(&[residual.clone(), gradient(rank, number as u32, COUNT)]);
                for place in places.indices() {
                    expected[*place as usize] += std::mem::take(&mut residual[*place as usize]);
                }
            }
            expected.iter_mut().for_each(|sum| *sum /= world_size as f32);
            for (averages, _) in &found {
                assert_eq!(averages[number as usize], expected, "P = {world_size}, step {number}");
            }
        }
        let left: Vec<_> = found.into_iter().map(|(_, residual)| residual).collect();
        assert_eq!(left, residuals, "{draw:?}, P = {world_size}");
    }
}

/// Each rank delivers its blocks of largest norm, found by a full sort.
#[test]
fn the_largest_blocks_of_all_ranks_are_summed() {
    const COUNT: usize = 2000;
    for world_size in WORLD_SIZES {
        let found = on_sim(world_size, move |group| async move {
            let (mut exchange, mut averages) = (built(&group, COUNT, Policy::block(0.3)), Vec::new());
            for number in 0..6 {
                let (after, average) = step(exchange, gradient(group.rank(), number, COUNT)).await;
                exchange = after;
                averages.push(average);
            }
            (averages, exchange.residual("weight").unwrap())
        });
        let mut residuals = vec![vec![0.0; COUNT]; world_size as usize];
        for number in 0..6 {
            let mut expected = vec![0.0_f32; COUNT];
            for (rank, residual) in (0..).zip(&mut residuals) {
                *residual = oracle::sum(&[residual.clone(), gradient(rank, number, COUNT)]);
                let norm = |block: &usize| -> f64 {
                    let values = residual.chunks(256).nth(*block).unwrap();
                    values.iter().map(|value| f64::from(*value).powi(2)).sum()
                };
                let mut order: Vec<usize> = (0..8).collect();
                order.sort_by(|a, b| norm(b).total_cmp(&norm(a)).then(a.cmp(b)));
                for index in order[..3].iter().flat_map(|block| 256 * block..COUNT.min(256 * block + 256)) {
                    expected[index] += std::mem::take(&mut residual[index]);
                }
            }
            expected.iter_mut().for_each(|sum| *sum /= world_size as f32);
            for (averages, _) in &found {
                assert_eq!(averages[number as usize], expected, "P = {world_size}, step {number}");
            }
        }
        let left: Vec<_> = found.into_iter().map(|(_, residual)| residual).collect();
        assert_eq!(left, residuals, "P = {world_size}");
    }
}

/// Of independent gradients and a drift that never ends, residuals keep a bounded number of steps.
#[test]
fn residuals_are_bounded_over_a_thousand_steps() {
    const COUNT: usize = 600;
    // A place is delivered once in 20 steps on average; random ones may wait many times as long.
    let policies = [
        (Policy::oktopk(0.05), 80.0),
        (Policy::oktopk(0.05).values(Values::Bf16), 80.0),
        (Policy::random_k(0.05), 400.0),
        (Policy::random_block(0.05), 400.0),
        (Policy::block(0.4), 80.0),
    ];
    for (policy, steps) in policies {
        let largest = on_sim(2, move |group| async move {
            let mut exchange = built(&group, COUNT, policy);
            let mut largest = [0.0_f32; 2];
            for number in 0..1000 {
                let drift = (0..COUNT).map(|index| 20.0 + index as f32 / 30.0).collect();
                let given = oracle::sum(&[drift, oracle::vector(group.rank() + 2 * number, COUNT)]);
                exchange = step(exchange, given).await.0;
                let left = exchange.residual("weight").unwrap();
                let most = left.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let half = &mut largest[number as usize / 500];
                *half = half.max(most);
            }
            largest
        });
        for [first, second] in largest {
            assert!(second < 2.0 * first && second < 40.0 * steps, "{policy}: {first}, then {second}");
        }
    }
}

/// All ranks begin anew, and nothing is lost.
#[test]
fn another_density_begins_anew_on_all_ranks() {
    const COUNT: usize = 400;
    for policy in
        [Policy::oktopk(0.05), Policy::random_k(0.05), Policy::random_block(0.05), Policy::block(0.5)]
    {
        let ranks = on_local(4, move |group| {
            let mut exchange = built(group, COUNT, policy);
            let mut delivered = vec![0.0; COUNT];
            for (number, density) in (0..12).zip([0.25, 0.05, 1.0].into_iter().cycle()) {
                exchange.set_density("weight", density).unwrap();
                let mut gradients = [gradient(group.rank(), number, COUNT)];
                exchange.average(&mut gradients).unwrap();
                delivered.iter_mut().zip(&gradients[0]).for_each(|(all, average)| *all += 4.0 * average);
                if density == 1.0 {
                    assert!(exchange.residual("weight").unwrap().iter().all(|&value| value == 0.0));
                }
            }
            delivered
        });
        let given: Vec<_> =
            (0..4).flat_map(|rank| (0..12).map(move |number| gradient(rank, number, COUNT))).collect();
        assert!(ranks.iter().all(|delivered| *delivered == oracle::sum(&given)), "{policy}");
    }
}

/// What ranks draw, and thresholds of sums, must be of the same step.
#[test]
fn ranks_that_load_different_steps_are_told() {
    for policy in [Policy::oktopk(0.1), Policy::random_k(0.1), Policy::random_block(0.1)] {
        let errors = on_local(3, move |group| {
            let mut exchange = built(group, 100, policy);
            let mut states = Vec::new();
            for number in 0..3 {
                exchange.average(&mut [gradient(group.rank(), number, 100)]).unwrap();
                let mut state = Vec::new();
                exchange.save(&mut state).unwrap();
                states.push(state);
            }
            let state = &states[if group.rank() == 1 { 1 } else { 2 }];
            exchange.load(&mut &state[..]).unwrap();
            exchange.average(&mut [gradient(group.rank(), 3, 100)]).unwrap_err()
        });
        let is_told = |error: &Error| {
            matches!(error, Error::Collective(Collective::Mismatch { .. } | Collective::Differs { .. }))
        };
        assert!(errors.iter().all(is_told), "{policy}: {errors:?}");
    }
}

/// Two ranks have the states of three, one of them two: nothing is lost.
#[test]
fn states_are_loaded_by_another_number_of_ranks() {
    const COUNT: usize = 200;
    for policy in [Policy::oktopk(0.1), Policy::random_k(0.1), Policy::random_block(0.1), Policy::block(1.0)]
    {
        let saved = on_local(3, move |group| {
            let mut exchange = built(group, COUNT, policy);
            (0..5).for_each(|number| exchange.average(&mut [gradient(group.rank(), number, COUNT)]).unwrap());
            let mut state = Vec::new();
            exchange.save(&mut state).unwrap();
            (state, exchange.residual("weight").unwrap())
        });
        let waiting: Vec<_> = saved.iter().map(|(_, left)| left.clone()).collect();
        let waiting = oracle::sum(&waiting);
        let ranks = on_local(2, move |group| {
            let mut exchange = built(group, COUNT, policy);
            let from = 2 * group.rank();
            exchange.load_of(from, &mut &saved[from as usize].0[..]).unwrap();
            if group.rank() == 0 {
                exchange.take_over(1, &mut &saved[1].0[..]).unwrap();
            }
            exchange.set_density("weight", 1.0).unwrap();
            let mut averages = [vec![0.0; COUNT]];
            exchange.average(&mut averages).unwrap();
            averages[0].iter().map(|average| 2.0 * average).collect::<Vec<f32>>()
        });
        assert!(ranks.iter().all(|delivered| *delivered == waiting), "{policy}");
    }
}

#[test]
fn settings_that_a_method_does_not_take_are_refused() {
    for policy in [Policy::random_k(0.1), Policy::random_block(0.1), Policy::block(0.1)] {
        let refused = GradientExchange::builder(&Group::solo());
        let refused = refused.tensor("t", [8], policy.values(Values::Bf16)).build().err().unwrap();
        let text = refused.to_string();
        assert!(matches!(refused, Error::PolicySetting { .. }), "{text}");
        assert!(text.starts_with("tensor \"t\": ") && text.contains("a format of values"), "{text}");
    }
}
