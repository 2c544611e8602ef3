//! Gradients of other types than `f32`.

use brevity::{GradientElement, Scope, StepReport, Threshold};
use half::{bf16, f16};

use super::*;

/// Policies that other tests of an exchange have files of their own for.
const OTHERS: [(&str, Policy); 9] = [
    ("unbiased low rank", Policy::unbiased_low_rank(2)),
    ("atomo", Policy::atomo(2)),
    ("sampled", Policy::topk(0.05).threshold(Threshold::Sampled)),
    ("adaptive", Policy::gtopk(0.05).threshold(Threshold::Adaptive)),
    ("fixed", Policy::topk(0.05).threshold(Threshold::Fixed(90.0))),
    ("exact oktopk", Policy::oktopk(0.05).threshold(Threshold::Exact)),
    ("one threshold", Policy::topk(0.05).scope(Scope::Model).momentum(0.5)),
    ("sampled, one threshold", Policy::topk(0.05).threshold(Threshold::Sampled).scope(Scope::Bucket)),
    ("dense steps", Policy::topk(0.05).samomentum(0.5).dense_steps(2)),
];

/// How a type is made from `f32`, and `f32` from it.
#[derive(Clone, Copy)]
struct Type<E> {
    from: fn(f32) -> E,
    to: fn(E) -> f32,
}

const F64: Type<f64> = Type { from: f64::from, to: |value| value as f32 };
const F16: Type<f16> = Type { from: f16::from_f32, to: f16::to_f32 };
const BF16: Type<bf16> = Type { from: bf16::from_f32, to: bf16::to_f32 };

impl<E: Copy> Type<E> {
    fn all(self, values: &[Vec<f32>]) -> Vec<Vec<E>> {
        values.iter().map(|vector| vector.iter().map(|&value| (self.from)(value)).collect()).collect()
    }

    fn back(self, values: &[Vec<E>]) -> Vec<Vec<f32>> {
        values.iter().map(|vector| vector.iter().map(|&value| (self.to)(value)).collect()).collect()
    }
}

fn stepped<E: GradientElement>(exchange: &mut GradientExchange, gradients: &mut [Vec<E>]) -> StepReport {
    let mut step = exchange.begin().unwrap();
    step.ready(1, &gradients[1]).unwrap();
    step.finish(gradients).unwrap()
}

/// Averages are those of `f32`, rounded once; residuals are the same bits.
fn follows_f32<E: GradientElement>(of: Type<E>) {
    for (name, policy) in POLICIES.into_iter().chain(OTHERS) {
        for (world_size, between) in
            [1, 2, 3].into_iter().flat_map(|size| BOTH.map(|between| (size, between)))
        {
            let ranks = between.run(world_size, move |group| {
                let (mut plain, mut typed) = (exchange(group, policy), exchange(group, policy));
                let mut last = Vec::new();
                for number in 0..3 {
                    let mut found = of.all(&gradients(group.rank(), number));
                    let mut expected = of.back(&found);
                    if number == 1 {
                        stepped(&mut plain, &mut expected);
                        stepped(&mut typed, &mut found);
                    } else {
                        plain.average(&mut expected).unwrap();
                        typed.average(&mut found).unwrap();
                    }
                    assert_eq!(found, of.all(&expected), "{name}, {between:?}, step {number}");
                    assert_eq!(typed.residual("weight"), plain.residual("weight"), "{name}, step {number}");
                    last = found;
                }
                // Started, and on a rank without data.
                let mut empty = of.all(&[vec![1.0; COUNT], vec![1.0; 7]]);
                plain.step_empty(&mut of.back(&empty)).unwrap();
                typed.step_empty(&mut empty).unwrap();
                let ((typed, found), result) = typed.start(of.all(&gradients(group.rank(), 3))).wait();
                result.unwrap();
                let mut expected = of.back(&of.all(&gradients(group.rank(), 3)));
                plain.average(&mut expected).unwrap();
                assert_eq!(found, of.all(&expected), "{name}, {between:?}, started");
                assert_eq!(typed.residual("weight"), plain.residual("weight"), "{name}, started");
                last
            });
            assert!(ranks.iter().all(|averages| *averages == ranks[0]), "{name}: ranks differ");
        }
    }
}

#[test]
fn f64_gradients_are_averaged_like_f32() {
    follows_f32(F64);
}

#[test]
fn f16_gradients_are_averaged_like_f32() {
    follows_f32(F16);
}

#[test]
fn bf16_gradients_are_averaged_like_f32() {
    follows_f32(BF16);
}

/// A value that is not finite in `f32` leaves the step out, and gradients stay as they were.
fn refuses<E: GradientElement>(of: Type<E>, bad: E) {
    for (name, policy) in POLICIES.into_iter().chain(OTHERS) {
        on_local(3, move |group| {
            let mut exchange = exchange(group, policy);
            exchange.average(&mut of.all(&gradients(group.rank(), 0))).unwrap();
            let before = exchange.residual("weight").unwrap();
            let mut found = of.all(&gradients(group.rank(), 1));
            if group.rank() == 1 {
                found[0][70] = bad;
            }
            let given = of.back(&found);
            let error = exchange.average(&mut found).unwrap_err();
            assert!(matches!(&error, Error::NonFinite { rank: 1, tensor } if tensor == "weight"), "{error}");
            let same = of.back(&found).concat().into_iter().zip(given.concat());
            assert!(same.into_iter().all(|(a, b)| a == b || a.is_nan() == b.is_nan()), "{name}");
            let after = exchange.residual("weight").unwrap();
            let far = after.iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far <= 1e-3, "{name}: {far}");
        });
    }
}

#[test]
fn what_is_not_finite_as_f32_is_refused() {
    refuses(F64, 1e39);
    refuses(F64, f64::NAN);
    refuses(F16, f16::INFINITY);
    refuses(BF16, bf16::NEG_INFINITY);
}

/// Each rank may have its own type, and each tensor of a step.
#[test]
fn types_may_be_mixed() {
    let ranks = on_local(2, |group| {
        let mut exchange = exchange(group, Policy::gtopk(0.05));
        let whole = gradients(group.rank(), 0);
        let mut step = exchange.begin().unwrap();
        step.ready(0, &whole[0]).unwrap();
        step.ready(1, &F64.all(&whole)[1]).unwrap();
        if group.rank() == 0 {
            let mut wide = F64.all(&whole);
            step.finish(&mut wide).unwrap();
            F64.back(&wide)
        } else {
            let mut narrow = BF16.all(&whole);
            step.finish(&mut narrow).unwrap();
            BF16.back(&narrow)
        }
    });
    assert_eq!(BF16.all(&ranks[0]), BF16.all(&ranks[1]));
}
