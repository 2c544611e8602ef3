//! Sums and conversions of every element type against plain arithmetic.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fmt::Debug;

use brevity_compress::Error;
use brevity_compress::dense::{
    Element, accumulate, add_assign, from_f32, from_f32_saturating, scale, to_f32,
};
use half::{bf16, f16};
use proptest::prelude::*;

/// A type, and its conversions one at a time.
struct Oracle<E> {
    from: fn(f32) -> E,
    to: fn(E) -> f32,
    add: fn(E, E) -> E,
    halve: fn(E) -> E,
}

const F32: Oracle<f32> = Oracle { from: |v| v, to: |v| v, add: |a, b| a + b, halve: |a| a * 0.5 };
const F64: Oracle<f64> = Oracle { from: f64::from, to: |v| v as f32, add: |a, b| a + b, halve: |a| a * 0.5 };
const F16: Oracle<f16> = Oracle {
    from: f16::from_f32,
    to: f16::to_f32,
    add: |a, b| f16::from_f32(a.to_f32() + b.to_f32()),
    halve: |a| f16::from_f32(a.to_f32() * 0.5),
};
const BF16: Oracle<bf16> = Oracle {
    from: bf16::from_f32,
    to: bf16::to_f32,
    add: |a, b| bf16::from_f32(a.to_f32() + b.to_f32()),
    halve: |a| bf16::from_f32(a.to_f32() * 0.5),
};

fn check<E: Element>(oracle: &Oracle<E>, a: &[f32], b: &[f32]) {
    let (from, to) = (oracle.from, oracle.to);
    let mut found = vec![E::default(); a.len()];
    let expected: Vec<E> = a.iter().map(|&v| from(v)).collect();
    let bad = expected.iter().position(|&v| !to(v).is_finite());
    assert_eq!(reported(from_f32(a, &mut found)), bad, "{} from f32", E::NAME);
    assert_same(&found, &expected, to);
    check_saturated(oracle, a);

    let mut back = vec![0.0; a.len()];
    assert_eq!(reported(to_f32(&found, &mut back)), bad, "{} to f32", E::NAME);
    assert_same(&back, &expected.iter().map(|&v| to(v)).collect::<Vec<_>>(), |v| v);

    let addends: Vec<E> = b.iter().map(|&v| from(v)).collect();
    let sums: Vec<E> = expected.iter().zip(&addends).map(|(&a, &b)| (oracle.add)(a, b)).collect();
    add_assign(&mut found, &addends).unwrap();
    assert_same(&found, &sums, to);
    scale(&mut found, 0.5);
    assert_same(&found, &sums.into_iter().map(oracle.halve).collect::<Vec<_>>(), to);
    check_accumulation(oracle, a, &addends);
}

fn check_saturated<E: Element>(oracle: &Oracle<E>, a: &[f32]) {
    let mut found = vec![E::default(); a.len()];
    let result = from_f32_saturating(a, &mut found);
    if let Some(index) = a.iter().position(|v| !v.is_finite()) {
        assert!(matches!(result, Err(Error::NonFinite { index: i, .. }) if i == index), "{result:?}");
    } else {
        let clamped: Vec<f32> = a.iter().map(|v| v.clamp(-E::LARGEST, E::LARGEST)).collect();
        assert_eq!(result, Ok(clamped.iter().zip(a).filter(|(c, a)| c != a).count()), "{}", E::NAME);
        assert_same(&found, &clamped.iter().map(|&v| (oracle.from)(v)).collect::<Vec<_>>(), oracle.to);
        assert!(found.iter().all(|&v| (oracle.to)(v).is_finite()));
    }
}

fn check_accumulation<E: Element>(oracle: &Oracle<E>, a: &[f32], addends: &[E]) {
    let finite: Vec<f32> = a.iter().map(|v| if v.is_finite() { *v } else { 1.0 }).collect();
    let sums: Vec<f32> = finite.iter().zip(addends).map(|(r, &g)| r + (oracle.to)(g)).collect();
    let mut r = finite.clone();
    let bad = sums.iter().position(|v| !v.is_finite());
    assert_eq!(reported(accumulate(&mut r, addends)), bad, "{} accumulated", E::NAME);
    if bad.is_none() {
        assert_same(&r, &sums, |v| v);
    }
    // Otherwise r is unchanged up to two roundings.
    for (i, (after, before)) in r.iter().zip(&finite).enumerate().filter(|_| bad.is_some()) {
        let sum = f64::from(sums[i].abs().min(f32::MAX)) + f64::from(before.abs());
        let off = (f64::from(*after) - f64::from(*before)).abs();
        assert!(off <= sum * f64::from(f32::EPSILON), "{i}: {before}, afterwards {after}");
    }
}

fn reported<T: Debug>(result: Result<T, Error>) -> Option<usize> {
    match result {
        Ok(_) => None,
        Err(Error::NonFinite { index, value }) => {
            assert!(!value.is_finite(), "{value} reported");
            Some(index)
        }
        Err(other) => panic!("{other}"),
    }
}

fn assert_same<E: Element>(found: &[E], expected: &[E], to: fn(E) -> f32) {
    assert_eq!(found.len(), expected.len());
    let same = |(f, e): (&E, &E)| f == e || to(*f).is_nan() && to(*e).is_nan();
    let wrong = found.iter().zip(expected).position(|pair| !same(pair));
    assert_eq!(wrong.map(|at| (at, found[at], expected[at])), None, "{}: place, found, expected", E::NAME);
}

fn check_all(a: &[f32], b: &[f32]) {
    check(&F32, a, b);
    check(&F64, a, b);
    check(&F16, a, b);
    check(&BF16, a, b);
}

/// Mostly moderate values, and some with arbitrary bits.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![20 => -10.0_f32..10.0, 1 => any::<f32>()]
}

proptest! {
    #[test]
    fn all_types_agree_with_single_operations(pairs in prop::collection::vec((value(), value()), 0..40)) {
        let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        check_all(&a, &b);
    }

    #[test]
    fn long_vectors_too(n in 1000_usize..3000, at in 0_usize..3000, a in any::<u32>(), b in any::<u32>()) {
        let ramp = |i: usize, bits: u32| if i == at { f32::from_bits(bits) } else { i as f32 * 0.37 - 500.0 };
        let make = |bits| (0..n).map(|i| ramp(i, bits)).collect::<Vec<f32>>();
        check_all(&make(a), &make(b));
    }
}

#[test]
fn limits_of_the_half_formats() {
    for (value, fits) in
        [(65504.0, true), (65519.996, true), (65520.0, false), (-65520.0, false), (70_000.0, false)]
    {
        let found = from_f32(&[1.0, value], &mut [f16::ZERO; 2]);
        assert_eq!(found.is_ok(), fits, "{value} as f16: {found:?}");
    }
    for (bits, fits) in [(0x7f7f_0000, true), (0x7f7f_7fff, true), (0x7f7f_8000, false), (0xff7f_8000, false)]
    {
        let found = from_f32(&[f32::from_bits(bits)], &mut [bf16::ZERO]);
        assert_eq!(found.is_ok(), fits, "{bits:x} as bf16: {found:?}");
    }
    let mut cut = [f16::ZERO; 3];
    assert_eq!(from_f32_saturating(&[1e30, -65519.0, 2.5], &mut cut), Ok(2));
    assert_eq!(cut, [f16::MAX, f16::MIN, f16::from_f32(2.5)]);
}

#[test]
fn lengths_must_agree() {
    let expected = Error::LengthMismatch { expected: 2, found: 1 };
    assert_eq!(add_assign(&mut [1.0_f32; 2], &[1.0]), Err(expected.clone()));
    assert_eq!(accumulate(&mut [1.0; 2], &[f16::ONE]), Err(expected.clone()));
    assert_eq!(to_f32(&[bf16::ONE; 2], &mut [0.0]), Err(expected.clone()));
    assert_eq!(from_f32(&[1.0; 2], &mut [0.0_f64]), Err(expected));
}

/// The sum rounds down by half a unit, so the exact difference would exceed the largest number by half a
/// unit.
#[test]
fn what_is_taken_out_again_leaves_finite_numbers() {
    let mut g = [0.0; 5000];
    (g[0], g[4999]) = (-1.5 * 2.0_f32.powi(104), f32::NAN);
    for wide in [false, true] {
        let mut r = [f32::MAX; 5000];
        let found = if wide { accumulate(&mut r, &g.map(f64::from)) } else { accumulate(&mut r, &g) };
        assert!(matches!(found, Err(Error::NonFinite { index: 4999, .. })), "{found:?}");
        assert_eq!(r.iter().find(|r| **r != f32::MAX), None);
    }
}
