//! Nothing handed in is lost.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::SparseVec;
use brevity_compress::feedback::{ErrorFeedback, Residual, TopK};
use brevity_compress::select::TopKScratch;
use proptest::prelude::*;

/// Gradients of small integers: every sum is exact, so mass must be conserved bit for bit.
fn steps() -> impl Strategy<Value = Vec<Vec<i16>>> {
    (0_usize..80).prop_flat_map(|n| prop::collection::vec(prop::collection::vec(-9_i16..10, n), 1..12))
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
    fn sent_plus_residual_is_the_sum_of_gradients(steps in steps(), k in 0_usize..20, lost_every in 1_usize..5) {
        let n = steps[0].len();
        let (mut plain, mut scratch, mut sent) = (Residual::new(n), TopKScratch::new(), SparseVec::new(n));
        let mut wrapped = ErrorFeedback::new(n, TopK::new(k));
        let (mut message, mut received) = (SparseVec::new(n), vec![0.0_f32; n]);
        for (number, step) in steps.iter().enumerate() {
            let gradient = floats(step);
            plain.accumulate(&gradient).unwrap();
            plain.select(k, &mut sent, &mut scratch).unwrap();
            wrapped.compress(&gradient, &mut message).unwrap();
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
        let rest: Vec<f32> = column_sums(&steps).iter().zip(&steps[0]).map(|(s, &g)| s - f32::from(g)).collect();
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
