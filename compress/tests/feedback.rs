//! No part of the input is lost.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::Error;
use brevity_compress::SparseVec;
use brevity_compress::feedback::{
    Compressor, ErrorFeedback, NonZeroBlocks, Quantised, Residual, Rule, SelectBy, TopK,
};
use brevity_compress::quantise::{Encoded, Magnitude, Quantiser, Sign};
use brevity_compress::select::{BLOCK_PLACES, Blocks, TopKScratch};
use proptest::prelude::*;

/// Gradients of small integers: every sum is exact, so mass must be conserved bit for bit.
fn steps() -> impl Strategy<Value = Vec<Vec<i16>>> {
    (0_usize..80).prop_flat_map(|n| prop::collection::vec(prop::collection::vec(-9_i16..10, n), 1..12))
}

/// The same, longer, and zero in whole blocks.
fn block_steps() -> impl Strategy<Value = Vec<Vec<i16>>> {
    let step = |n: usize| {
        (prop::collection::vec(-9_i16..10, n), any::<u16>()).prop_map(|(mut step, present)| {
            step.chunks_mut(BLOCK_PLACES)
                .enumerate()
                .filter(|(b, _)| present >> b & 1 == 0)
                .for_each(|(_, b)| b.fill(0));
            step
        })
    };
    (0_usize..1500).prop_flat_map(move |n| prop::collection::vec(step(n), 1..7))
}

fn floats(step: &[i16]) -> Vec<f32> {
    step.iter().map(|&v| f32::from(v)).collect()
}

fn column_sums(steps: &[Vec<i16>]) -> Vec<f32> {
    let sum = |i: usize| steps.iter().map(|step| i32::from(step[i])).sum::<i32>() as f32;
    (0..steps[0].len()).map(sum).collect()
}

proptest! {
    #[test]
    fn sent_plus_residual_is_the_sum_of_gradients(
        steps in steps(),
        k in 0_usize..20,
        lost_every in 1_usize..5,
    ) {
        let n = steps[0].len();
        let (mut plain, mut scratch, mut sent) = (Residual::new(n), TopKScratch::new(), SparseVec::new(n));
        let mut wrapped = ErrorFeedback::new(n, TopK::new(k));
        let (mut message, mut received) = (SparseVec::new(n), vec![0.0_f32; n]);
        for (number, step) in steps.iter().enumerate() {
            let gradient = floats(step);
            plain.accumulate(&gradient).unwrap();
            plain.select(k, &mut sent, &mut scratch).unwrap();
            wrapped.compress(&gradient[..], &mut message).unwrap();
            prop_assert_eq!(&sent, &message);
            prop_assert!(sent.len() <= k);
            if number % lost_every == 0 {
                plain.put_back(sent.view()).unwrap();
                wrapped.put_back(&message).unwrap();
            } else {
                sent.add_to(&mut received);
            }
        }
        prop_assert_eq!(plain.values(), wrapped.residual().values());
        let total: Vec<f32> = received.iter().zip(plain.values()).map(|(a, b)| a + b).collect();
        prop_assert_eq!(total, column_sums(&steps));
    }

    #[test]
    fn a_step_can_be_taken_out_again(steps in steps()) {
        let mut residual = Residual::new(steps[0].len());
        steps.iter().for_each(|step| residual.accumulate(&floats(step)).unwrap());
        residual.subtract(&floats(&steps[0])).unwrap();
        let rest: Vec<f32> =
            column_sums(&steps).iter().zip(&steps[0]).map(|(s, &g)| s - f32::from(g)).collect();
        prop_assert_eq!(residual.values(), rest);
    }

    #[test]
    fn failure_leaves_every_bit(
        values in prop::collection::vec(any::<f32>().prop_filter("finite", |v| v.is_finite()), 1..50),
        gradient in prop::collection::vec(any::<f32>(), 50),
    ) {
        let mut residual = Residual::new(values.len());
        residual.load(&values).unwrap();
        let gradient = &gradient[..values.len()];
        let sums: Vec<f32> = values.iter().zip(gradient).map(|(r, g)| r + g).collect();
        let accumulated = residual.accumulate(gradient);
        prop_assert_eq!(accumulated.is_ok(), sums.iter().all(|s| s.is_finite()));
        let expected = if accumulated.is_ok() { &sums } else { &values };
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(residual.values()), bits(expected));
    }
}

/// Selects by index and value.
fn pick(values: &[f32], out: &mut SparseVec, mut wanted: impl FnMut(u32, f32) -> bool) -> Result<(), Error> {
    out.reset(values.len());
    (0..)
        .zip(values)
        .filter(|(index, value)| wanted(*index, **value))
        .for_each(|(index, &value)| out.push(index, value));
    Ok(())
}

/// Feeds all steps; every third message is lost. What arrived plus the residual is the sum of the gradients.
fn check_mass(steps: &[Vec<i16>], compressor: impl Compressor<Message = SparseVec>, rule: Rule) {
    let n = steps[0].len();
    let mut feedback = ErrorFeedback::with_rule(n, compressor, rule);
    let (mut message, mut received) = (SparseVec::new(n), vec![0.0_f32; n]);
    for (number, step) in steps.iter().enumerate() {
        feedback.compress(&floats(step)[..], &mut message).unwrap();
        if number % 3 == 2 {
            feedback.put_back(&message).unwrap();
            continue;
        }
        // A single rank gets back what it sent.
        message.add_to(&mut received);
        if number % 2 == 0 {
            feedback.settle_sparse(message.view()).unwrap();
        } else {
            feedback.settle(&message.to_dense()).unwrap();
        }
    }
    let total: Vec<f32> = received.iter().zip(feedback.residual().values()).map(|(a, b)| a + b).collect();
    assert_eq!(total, column_sums(steps), "{rule:?}");
}

proptest! {
    #[test]
    fn every_selection_conserves_mass_by_either_rule(
        steps in steps(),
        k in 0_usize..20,
        bound in 1.0_f32..9.0,
    ) {
        for rule in [Rule::Own, Rule::Global] {
            check_mass(&steps, TopK::new(k), rule);
            check_mass(
                &steps,
                SelectBy(|v: &[f32], out: &mut SparseVec| pick(v, out, |_, v| v.abs() > bound)),
                rule,
            );
            let mut turn = 0;
            check_mass(
                &steps,
                SelectBy(move |v: &[f32], out: &mut SparseVec| {
                    turn += 1;
                    pick(v, out, |i, _| (i + turn) % 3 == 0)
                }),
                rule,
            );
        }
    }

    /// Zero blocks are not sent, and only lost messages stay.
    #[test]
    fn blocks_conserve_mass_by_either_rule(steps in block_steps()) {
        for rule in [Rule::Own, Rule::Global] {
            let n = steps[0].len();
            let mut feedback = ErrorFeedback::with_rule(n, NonZeroBlocks, rule);
            let (mut message, mut received, mut said) = (Blocks::new(), vec![0.0; n], vec![0.0; n]);
            for (number, step) in steps.iter().enumerate() {
                feedback.compress(&floats(step)[..], &mut message).unwrap();
                if number % 3 == 1 {
                    feedback.put_back(&message).unwrap();
                    continue;
                }
                message.add_scaled_to(1.0, &mut received).unwrap();
                said.fill(0.0);
                message.add_scaled_to(1.0, &mut said).unwrap();
                feedback.settle(&said).unwrap();
                prop_assert!(feedback.residual().values().iter().all(|v| *v == 0.0), "{:?}", rule);
            }
            let total: Vec<f32> =
                received.iter().zip(feedback.residual().values()).map(|(a, b)| a + b).collect();
            prop_assert_eq!(total, column_sums(&steps), "{:?}", rule);
        }
    }

    /// Four ranks and a linear compressor: all keep the same places, a different share in each step. With
    /// small integers everything is exact.
    #[test]
    fn rules_have_the_same_mean_update(
        gradients in
            prop::collection::vec(prop::collection::vec(prop::array::uniform4(-9_i16..10), 10), 1..7),
    ) {
        let n = 10;
        let rank = |rule| {
            let mut turn = 0;
            ErrorFeedback::with_rule(
                n,
                SelectBy(move |v: &[f32], out: &mut SparseVec| {
                    turn += 1;
                    pick(v, out, |i, _| (i * 7 + turn) % 4 < 2)
                }),
                rule,
            )
        };
        let mut own: Vec<_> = (0..4).map(|_| rank(Rule::Own)).collect();
        let mut global: Vec<_> = (0..4).map(|_| rank(Rule::Global)).collect();
        let mut message = SparseVec::new(n);
        for (step, gradients) in gradients.iter().enumerate() {
            let mut updates = Vec::new();
            for ranks in [&mut own, &mut global] {
                let mut mean = vec![0.0_f32; n];
                for (rank, feedback) in ranks.iter_mut().enumerate() {
                    let g: Vec<f32> = gradients.iter().map(|g| f32::from(g[rank])).collect();
                    feedback.compress(&g[..], &mut message).unwrap();
                    message.add_to(&mut mean);
                }
                mean.iter_mut().for_each(|mean| *mean /= 4.0);
                ranks.iter_mut().for_each(|feedback| feedback.settle(&mean).unwrap());
                updates.push(mean);
            }
            prop_assert_eq!(&updates[0], &updates[1], "step {}", step);
            let mean_error = |ranks: &[ErrorFeedback<_>], i: usize| {
                ranks.iter().map(|r| r.residual().values()[i]).sum::<f32>()
            };
            for i in 0..n {
                prop_assert_eq!(mean_error(&own, i), mean_error(&global, i), "step {}", step);
            }
        }
    }

    /// With a quantiser inside: exact up to rounding.
    #[test]
    fn quantisers_lose_nothing(n in 1_usize..2000, seed: u64, lost_every in 2_usize..5) {
        for rule in [Rule::Own, Rule::Global] {
            let mut generator = brevity_compress::generator::Generator::new(seed);
            let quantised = Quantised::new(n, Sign::new(Magnitude::Mean)).unwrap();
            let mut feedback = ErrorFeedback::with_rule(n, quantised, rule);
            let (mut message, mut total, mut largest) = (Vec::new(), vec![0.0_f64; n], 0.0_f64);
            for step in 0..12 {
                let mut g = vec![0.0; n];
                generator.fill_normal(&mut g);
                total.iter_mut().zip(&g).for_each(|(total, &g)| *total += f64::from(g));
                feedback.compress(&g[..], &mut message).unwrap();
                let mut said = vec![0.0; n];
                Encoded::new(feedback.compressor().quantiser().format(), n, &message)
                    .unwrap()
                    .decode_into(&mut said)
                    .unwrap();
                largest = said
                    .iter()
                    .chain(feedback.residual().values())
                    .fold(largest, |l, &v| l.max(f64::from(v.abs())));
                if step % lost_every == 0 {
                    feedback.put_back(&message).unwrap();
                } else {
                    feedback.settle(&said).unwrap();
                    total.iter_mut().zip(&said).for_each(|(total, &said)| *total -= f64::from(said));
                }
            }
            for (i, (&left, &total)) in feedback.residual().values().iter().zip(&total).enumerate() {
                let error = 50.0 * f64::from(f32::EPSILON) * (largest + 10.0);
                prop_assert!(
                    (f64::from(left) - total).abs() <= error,
                    "{:?}, element {}: {}, expected {}",
                    rule,
                    i,
                    left,
                    total
                );
            }
        }
    }

    #[test]
    fn gradient_that_is_not_finite_is_taken_out_again(
        n in 1_usize..20_000,
        place in 0.0..1.0_f64,
        k in 0_usize..10,
    ) {
        let place = (place * n as f64) as usize;
        let before: Vec<f32> = (0..n).map(|i| (i % 17) as f32).collect();
        let mut g: Vec<f32> = (0..n).map(|i| (i % 13) as f32 - 6.0).collect();
        g[place] = f32::NEG_INFINITY;
        for rule in [Rule::Own, Rule::Global] {
            let mut message = SparseVec::new(n);
            let mut top_k = ErrorFeedback::with_rule(n, TopK::new(k), rule);
            top_k.residual_mut().load(&before).unwrap();
            let expected = Err(Error::NonFinite { index: place, value: f32::NEG_INFINITY });
            prop_assert_eq!(top_k.compress(&g[..], &mut message), expected.clone());
            prop_assert_eq!(top_k.residual().values(), &before[..]);
            let mut other = ErrorFeedback::with_rule(
                n,
                SelectBy(|v: &[f32], out: &mut SparseVec| pick(v, out, |_, _| true)),
                rule,
            );
            other.residual_mut().load(&before).unwrap();
            prop_assert_eq!(other.compress(&g[..], &mut message), expected);
            prop_assert_eq!(other.residual().values(), &before[..]);
        }
    }
}

/// A step whose message is in transit when the state is saved counts as not delivered.
#[test]
fn loaded_feedback_goes_on_as_it_would_have() {
    use brevity_compress::state::{from_bytes, to_bytes};
    for rule in [Rule::Own, Rule::Global] {
        let fresh = || ErrorFeedback::with_rule(3, TopK::new(1), rule);
        let (mut feedback, mut loaded, mut message) = (fresh(), fresh(), SparseVec::new(3));
        feedback.compress(&[1.0, -4.0, 2.0][..], &mut message).unwrap();
        from_bytes(&mut loaded, &to_bytes(&feedback)).unwrap();
        assert_eq!(loaded.residual().values(), feedback.residual().values());
        feedback.put_back(&message).unwrap();
        loaded.settle(&[9.0; 3]).unwrap();
        if rule == Rule::Own {
            loaded.put_back(&message).unwrap();
        }
        assert_eq!(loaded.residual().values(), [1.0, -4.0, 2.0]);
        assert_eq!(feedback.residual().values(), loaded.residual().values());
    }
}

/// A sum that would be infinite changes nothing.
#[test]
fn blocks_that_overflow_are_not_added() {
    let mut message = Blocks::new();
    NonZeroBlocks.compress(&[f32::MAX, 1.0], &mut message).unwrap();
    let mut dense = [f32::MAX, 2.0];
    let found = NonZeroBlocks.add_decoded(&message, 1.0, &mut dense);
    assert_eq!(found, Err(Error::NonFinite { index: 0, value: f32::INFINITY }));
    assert_eq!(dense, [f32::MAX, 2.0]);
    assert!(NonZeroBlocks.add_decoded(&message, 1.0, &mut [0.0]).is_err());
}
