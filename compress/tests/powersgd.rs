//! Error feedback of PowerSGD: the deferred subtraction, failed steps, many matrices, many ranks.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::Error;
use brevity_compress::generator::Generator;
use brevity_compress::low_rank::{
    Batch, ErrorMemory, ErrorRule, Factors, LowRank, PowerSgd, Workspace, largest_product, product,
};
use half::{bf16, f16};
use proptest::prelude::*;

fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Generator::new(seed).fill_normal(&mut values);
    values
}

/// Small whole numbers, so that sums of products of them are exact.
fn whole(count: usize, seed: u64) -> Vec<f32> {
    let mut generator = Generator::new(seed);
    (0..count).map(|_| generator.below(7) as f32 - 3.0).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn shapes() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![(0_usize..12, 0_usize..40), (1_usize..10, 505_usize..530), (1_usize..6, 4090_usize..4110)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Two steps whose errors are subtracted at once, or with the next gradient: the same bits everywhere.
    #[test]
    fn putting_the_subtraction_off_changes_no_bit((rows, cols) in shapes(), rank in 0_usize..20, seed: u64) {
        let state = LowRank::new(rows, cols, rank, seed).unwrap();
        let (mut workspace, n) = (Workspace::default(), rows * cols);
        let mut deferred = ErrorMemory::new(&state);
        let mut at_once = vec![0.0_f32; n];
        for step in 0..3 {
            let gradient = normal(n, seed ^ (10 + step));
            let (mut p, mut expected_p) = (vec![f32::NAN; state.p_len()], vec![f32::NAN; state.p_len()]);
            deferred.accumulate(&state, &gradient, &mut p, &mut workspace).unwrap();
            at_once.iter_mut().zip(&gradient).for_each(|(m, g)| *m += g);
            state.left_factor(&at_once, &mut expected_p, &mut workspace).unwrap();
            prop_assert_eq!(bits(&p), bits(&expected_p));
            prop_assert_eq!(bits(deferred.matrix()), bits(&at_once));
            let q = normal(state.q_len(), seed ^ (20 + step));
            deferred.commit(&state, &p, &q, &mut workspace).unwrap();
            state.subtract_reconstruction(&p, &q, &mut at_once, &mut workspace).unwrap();
        }
        prop_assert_eq!(bits(deferred.materialise(&state, &mut workspace)), bits(&at_once));
    }

    /// With whole numbers nothing is rounded: the input is what was delivered plus what stays.
    #[test]
    fn mass_is_conserved((rows, cols) in shapes(), rank in 0_usize..20, seed: u64) {
        let state = LowRank::new(rows, cols, rank, seed).unwrap();
        let (mut workspace, n) = (Workspace::default(), rows * cols);
        let mut memory = ErrorMemory::new(&state);
        let (mut came_in, mut delivered, mut update) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        for step in 0..3 {
            let gradient = whole(n, seed ^ (10 + step));
            memory.accumulate(&state, &gradient, &mut vec![0.0; state.p_len()], &mut workspace).unwrap();
            let (p, q) = (whole(state.p_len(), seed ^ (20 + step)), whole(state.q_len(), seed ^ (30 + step)));
            memory.commit(&state, &p, &q, &mut workspace).unwrap();
            state.reconstruct(&p, &q, &mut update, &mut workspace).unwrap();
            for i in 0..n {
                came_in[i] += gradient[i];
                delivered[i] += update[i];
            }
        }
        for (i, stays) in memory.materialise(&state, &mut workspace).iter().enumerate() {
            prop_assert_eq!(came_in[i], delivered[i] + stays, "element {}", i);
        }
    }

    /// Steps that are given up before or after a bad value: the residual is unchanged.
    #[test]
    fn a_step_that_is_given_up_leaves_the_residual(
        (rows, cols) in shapes(),
        rank in 0_usize..10,
        seed: u64,
        bad in prop::option::of((
            any::<prop::sample::Index>(),
            prop::sample::select(vec![f32::NAN, f32::INFINITY, -f32::INFINITY]),
        )),
    ) {
        let state = LowRank::new(rows, cols, rank, seed).unwrap();
        let (mut workspace, n) = (Workspace::default(), rows * cols);
        let (mut memory, mut p) = (ErrorMemory::new(&state), vec![0.0; state.p_len()]);
        memory.accumulate(&state, &whole(n, seed), &mut p, &mut workspace).unwrap();
        let (p_sent, q_sent) = (whole(state.p_len(), seed ^ 1), whole(state.q_len(), seed ^ 2));
        memory.commit(&state, &p_sent, &q_sent, &mut workspace).unwrap();
        let residual = memory.residual();
        let mut twin = memory.clone();
        prop_assert_eq!(twin.materialise(&state, &mut workspace), &residual);

        let mut gradient = whole(n, seed ^ 3);
        match bad {
            Some((place, value)) if n > 0 => {
                gradient[place.index(n)] = value;
                let outcome = memory.accumulate(&state, &gradient, &mut p, &mut workspace);
                let found = matches!(outcome, Err(Error::NonFinite { index, .. }) if index == place.index(n));
                prop_assert!(found, "{:?}, the bad element is {}", outcome, place.index(n));
            }
            _ => {
                memory.accumulate(&state, &gradient, &mut p, &mut workspace).unwrap();
                memory.withdraw(&gradient);
            }
        }
        prop_assert_eq!(memory.materialise(&state, &mut workspace), residual);
    }
}

#[test]
fn sums_that_overflow_are_refused_and_leave_the_residual() {
    let state = LowRank::new(2, 3, 1, 1).unwrap();
    let (mut memory, mut workspace) = (ErrorMemory::new(&state), Workspace::default());
    let mut p = [0.0; 2];
    let large = [1.0, 2e38, 1.0, 1.0, 1.0, 1.0];
    memory.restore(&large).unwrap();
    let outcome = memory.accumulate(&state, &large, &mut p, &mut workspace);
    assert_eq!(outcome, Err(Error::NonFinite { index: 1, value: f32::INFINITY }));
    assert_eq!(memory.materialise(&state, &mut workspace), large);
    // Every element is finite, and so are sums of them, but not their product with Q.
    let all_large = [3e38_f32; 6];
    memory.restore(&[0.0; 6]).unwrap();
    let mut state = state;
    state.restore(&[1.0; 3], Generator::new(0)).unwrap();
    assert!(matches!(
        memory.accumulate(&state, &all_large, &mut p, &mut workspace),
        Err(Error::NonFinite { .. })
    ));
    assert_eq!(memory.materialise(&state, &mut workspace), [0.0; 6]);
}

#[test]
fn keeping_a_step_sends_it_later() {
    let state = LowRank::new(5, 7, 2, 3).unwrap();
    let (mut memory, mut workspace, mut p) =
        (ErrorMemory::new(&state), Workspace::default(), vec![0.0; state.p_len()]);
    let (first, second) = (whole(35, 1), whole(35, 2));
    memory.accumulate(&state, &first, &mut p, &mut workspace).unwrap();
    memory.accumulate(&state, &second, &mut p, &mut workspace).unwrap();
    let sum: Vec<f32> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
    assert_eq!(memory.matrix(), sum);
    let mut expected = vec![0.0; state.p_len()];
    state.left_factor(&sum, &mut expected, &mut workspace).unwrap();
    assert_eq!(p, expected);
}

#[test]
fn gradients_of_every_type_count_alike() {
    let state = LowRank::new(9, 600, 3, 3).unwrap();
    let gradient = whole(5400, 1);
    let mut workspace = Workspace::default();
    let mut run = |accumulate: &dyn Fn(&mut ErrorMemory, &mut [f32], &mut Workspace)| {
        let (mut memory, mut p) = (ErrorMemory::new(&state), vec![0.0; state.p_len()]);
        accumulate(&mut memory, &mut p, &mut workspace);
        (memory.matrix().to_vec(), p)
    };
    let expected = run(&|memory, p, w| memory.accumulate(&state, &gradient, p, w).unwrap());
    let double: Vec<f64> = gradient.iter().map(|&g| f64::from(g)).collect();
    let half: Vec<f16> = gradient.iter().map(|&g| f16::from_f32(g)).collect();
    let brain: Vec<bf16> = gradient.iter().map(|&g| bf16::from_f32(g)).collect();
    assert_eq!(run(&|memory, p, w| memory.accumulate(&state, &double, p, w).unwrap()), expected);
    assert_eq!(run(&|memory, p, w| memory.accumulate(&state, &half, p, w).unwrap()), expected);
    assert_eq!(run(&|memory, p, w| memory.accumulate(&state, &brain, p, w).unwrap()), expected);
    let mut too_large = double;
    too_large[77] = -1e300;
    let outcome = ErrorMemory::new(&state).accumulate(&state, &too_large, &mut [0.0; 27], &mut workspace);
    assert_eq!(outcome, Err(Error::NonFinite { index: 77, value: f32::NEG_INFINITY }));
}

const SHAPES: [(usize, usize); 5] = [(20, 30), (0, 4), (1, 9), (7, 1), (33, 600)];

/// Ranks that take steps together, with factors averaged in a fixed order.
fn world(ranks: usize, rule: ErrorRule) -> Vec<PowerSgd> {
    let batch =
        || Batch::new(SHAPES.iter().map(|&(rows, cols)| LowRank::new(rows, cols, 2, 5).unwrap()).collect());
    (0..ranks).map(|_| PowerSgd::new(batch(), rule)).collect()
}

fn mean(of: &[Vec<f32>]) -> Vec<f32> {
    let sum = |i: usize| of.iter().fold(0.0, |sum, values| sum + values[i]);
    (0..of[0].len()).map(|i| sum(i) / of.len() as f32).collect()
}

/// One step of all ranks; returns each rank's updates.
fn step(world: &mut [PowerSgd], gradients: &[Vec<Vec<f32>>]) -> Vec<Vec<Vec<f32>>> {
    let mut p = vec![vec![0.0; world[0].batch().p_len()]; world.len()];
    for ((powersgd, gradients), p) in world.iter_mut().zip(gradients).zip(&mut p) {
        for (position, gradient) in gradients.iter().enumerate() {
            powersgd.accumulate(position, gradient, p).unwrap();
        }
    }
    let p = mean(&p);
    let mut factors: Vec<Factors> =
        world.iter().map(|_| Factors { p: p.clone(), ..Factors::default() }).collect();
    for (powersgd, factors) in world.iter_mut().zip(&mut factors) {
        powersgd.batch_mut().orthonormalise(&mut factors.p).unwrap();
        factors.own_q.resize(powersgd.batch().q_len(), f32::NAN);
        powersgd.right_factors(&factors.p, &mut factors.own_q).unwrap();
    }
    let q = mean(&factors.iter().map(|factors| factors.own_q.clone()).collect::<Vec<_>>());
    factors.iter_mut().for_each(|factors| factors.q.clone_from(&q));
    let updates = |(powersgd, factors): (&mut PowerSgd, &Factors)| {
        let update = |(position, &(rows, cols)): (usize, &(usize, usize))| {
            let mut update = vec![f32::NAN; rows * cols];
            powersgd.reconstruct(position, factors, &mut update).unwrap();
            update
        };
        let updates = SHAPES.iter().enumerate().map(update).collect();
        powersgd.commit(factors).unwrap();
        updates
    };
    world.iter_mut().zip(&factors).map(updates).collect()
}

#[test]
fn ranks_stay_together_and_nothing_is_lost() {
    for rule in [ErrorRule::Own, ErrorRule::Global] {
        let mut world = world(3, rule);
        let sizes = SHAPES.map(|(rows, cols)| rows * cols);
        let (mut came_in, mut delivered) = (sizes.map(|n| vec![0.0_f64; n]), sizes.map(|n| vec![0.0_f64; n]));
        for time in 0..10 {
            let gradients: Vec<Vec<Vec<f32>>> = (0..3_u64)
                .map(|rank| sizes.iter().map(|&n| normal(n, 100 * rank + 10 * time + n as u64)).collect())
                .collect();
            let updates = step(&mut world, &gradients);
            for rank in 1..3 {
                assert_eq!(updates[rank], updates[0], "step {time}");
                for (one, other) in world[rank].batch().states().iter().zip(world[0].batch().states()) {
                    assert_eq!(
                        (bits(one.q()), one.generator()),
                        (bits(other.q()), other.generator()),
                        "step {time}"
                    );
                }
            }
            for (position, &n) in sizes.iter().enumerate() {
                for i in 0..n {
                    came_in[position][i] +=
                        gradients.iter().map(|of| f64::from(of[position][i])).sum::<f64>() / 3.0;
                    delivered[position][i] += f64::from(updates[0][position][i]);
                }
            }
        }
        for (position, &n) in sizes.iter().enumerate() {
            let residuals: Vec<Vec<f32>> = world.iter().map(|rank| rank.residual(position)).collect();
            for i in 0..n {
                let stays = residuals.iter().map(|of| f64::from(of[i])).sum::<f64>() / 3.0;
                let gap = came_in[position][i] - delivered[position][i] - stays;
                // Ten steps of a few roundings of numbers that stay below thirty: half an ulp of these is
                // 1e-6.
                assert!(gap.abs() < 1e-4, "{rule:?}, matrix {position}, element {i}: {gap}");
            }
        }
    }
}

#[test]
fn a_batch_gives_what_its_matrices_give_alone() {
    let matrices: Vec<Vec<f32>> =
        SHAPES.iter().map(|&(rows, cols)| normal(rows * cols, cols as u64)).collect();
    let slices: Vec<&[f32]> = matrices.iter().map(Vec::as_slice).collect();
    let mut batch =
        Batch::new(SHAPES.iter().map(|&(rows, cols)| LowRank::new(rows, cols, 2, 5).unwrap()).collect());
    let (mut p, mut q) = (vec![f32::NAN; batch.p_len()], vec![f32::NAN; batch.q_len()]);
    batch.left_factors(&slices, &mut p).unwrap();
    let products = p.clone();
    batch.orthonormalise(&mut p).unwrap();
    batch.right_factors(&slices, &p, &mut q).unwrap();
    batch.set_q(&q).unwrap();
    let mut workspace = Workspace::default();
    for (position, &(rows, cols)) in SHAPES.iter().enumerate() {
        let mut state = LowRank::new(rows, cols, 2, 5).unwrap();
        let (mut alone_p, mut alone_q) = (vec![0.0; state.p_len()], vec![0.0; state.q_len()]);
        state.left_factor(slices[position], &mut alone_p, &mut workspace).unwrap();
        assert_eq!(products[batch.p_range(position)], alone_p);
        state.orthonormalise(&mut alone_p, &mut workspace).unwrap();
        assert_eq!(p[batch.p_range(position)], alone_p);
        state.right_factor(slices[position], &alone_p, &mut alone_q, &mut workspace).unwrap();
        assert_eq!(q[batch.q_range(position)], alone_q);
        state.set_q(&alone_q).unwrap();
        assert_eq!(batch.states()[position].q(), state.q());
    }
    assert!(batch.left_factors(&slices[1..], &mut p).is_err());
    assert!(batch.left_factors(&slices, &mut p[1..]).is_err());
}

/// The second of two matrices has equal rows, which its factors give exactly.
#[test]
fn products_that_overflow_are_found_before_they_are_made() {
    let outcome = |value: f32, other: f32| {
        let states = [(2, 3, 1), (2, 2, 2)].map(|(rows, cols, rank)| LowRank::new(rows, cols, rank, 1));
        let mut powersgd = PowerSgd::new(Batch::new(states.map(Result::unwrap).to_vec()), ErrorRule::Own);
        powersgd.memories_mut()[0].restore(&[1.0; 6]).unwrap();
        powersgd.memories_mut()[1].restore(&[value, other, value, other]).unwrap();
        let half = 0.5_f32.sqrt();
        let p = [half, half, half, half, half, -half];
        let mut q = vec![0.0; powersgd.batch().q_len()];
        let right = powersgd.right_factors(&p, &mut q).map_err(|error| (error.position, error.source));
        (right, powersgd.batch().first_overflow(&p, &q))
    };
    assert_eq!(outcome(1e30, 1.0), (Ok(()), None));
    assert_eq!(outcome(0.2 * f32::MAX, -1.0), (Ok(()), None));
    // The product may have twice the value, and the rest three times.
    let infinite = Error::NonFinite { index: 0, value: f32::INFINITY };
    assert_eq!(outcome(0.4 * f32::MAX, 0.0), (Err((1, infinite.clone())), None));
    assert_eq!(outcome(0.6 * f32::MAX, 0.0), (Err((1, infinite)), Some(1)));
}

/// Sums of the largest products in every order of rounding.
#[test]
fn the_bound_of_a_product_holds() {
    let mut generator = Generator::new(5);
    let mut workspace = Workspace::default();
    for rank in 1..40 {
        let mut factor = || 1.0 + generator.below(1 << 23) as f32 / (1 << 23) as f32;
        let (p, q) = (vec![factor(); 3 * rank], vec![factor(); 9 * rank]);
        let mut out = [0.0; 27];
        product(&p, &q, rank, &mut out, &mut workspace).unwrap();
        let most = largest_product(&p, &q, rank);
        let exact = f64::from(p[0]) * f64::from(q[0]) * rank as f64;
        assert!(out.iter().all(|value| f64::from(*value) <= most), "rank {rank}: {out:?}, {most}");
        assert!(most <= exact * (1.0 + rank as f64 * 3e-7), "rank {rank}");
    }
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(!largest_product(&[1.0, bad], &[0.0, 2.0], 1).is_finite());
    }
    assert_eq!(largest_product(&[], &[], 0), 0.0);
}

#[test]
fn restarting_and_restoring() {
    let mut state = LowRank::new(6, 5, 2, 1).unwrap();
    let fresh = state.clone();
    let (q, generator) = (whole(10, 4), Generator::new(9));
    state.restore(&q, generator.clone()).unwrap();
    assert_eq!((state.q(), state.generator()), (&q[..], &generator));
    assert!(state.restore(&q[1..], Generator::new(0)).is_err());
    assert!(state.restore(&[f32::NAN; 10], Generator::new(0)).is_err());
    assert_eq!((state.q(), state.generator()), (&q[..], &generator));
    state.restart();
    assert_eq!((bits(state.q()), state.generator()), (bits(fresh.q()), fresh.generator()));
}
