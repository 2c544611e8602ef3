//! Reductions of every type and operation against plain loops.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fmt::Debug;

use brevity_compress::Error;
use brevity_compress::generator::Generator;
use brevity_compress::reduce::{
    Float, Half, Number, Op, combine, combine_from, combine_wide, divide, narrow, widen,
};
use bytemuck::{bytes_of, pod_read_unaligned};
use half::{bf16, f16};

/// Around the sizes of rows, and longer ones.
const LENGTHS: [usize; 8] = [0, 1, 7, 63, 64, 65, 1000, 70_001];
/// Bytes of vectors that are reduced with prefetching.
const LONG_BYTES: usize = (4 << 20) + 1000;

/// A number type with a plain implementation of every operation.
trait Oracle: Number {
    /// Values at limits.
    fn special() -> Vec<Self>;
    /// The result of an operation that is defined.
    fn plain(op: Op, a: Self, b: Self) -> Self;
    /// The value, with all NaNs mapped to one if the operation does not say which NaN it gives.
    fn canonical(self, _: Op) -> Self {
        self
    }
}

macro_rules! integers {
    ($($type:ident),*) => {$(
        impl Oracle for $type {
            fn special() -> Vec<Self> {
                let middle = Self::MAX / 2;
                vec![0, 1, 2, 3, Self::MAX, Self::MAX - 1, Self::MIN, Self::MIN + 1, middle, middle + 1]
            }

            fn plain(op: Op, a: Self, b: Self) -> Self {
                match op {
                    // In 128 bits nothing wraps but the last cast.
                    Op::Sum => (a as i128 + b as i128) as Self,
                    Op::Product => (a as i128).wrapping_mul(b as i128) as Self,
                    Op::Max => a.max(b),
                    Op::Min => a.min(b),
                    Op::And => a & b,
                    Op::Or => a | b,
                    Op::Xor => a ^ b,
                    _ => unreachable!(),
                }
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($type:ident),*) => {$(
        impl Oracle for $type {
            fn special() -> Vec<Self> {
                let tiny = Self::from_bits(1);
                let numbers = [0.0, 1.0, 3.0, tiny, 3.0 * tiny, Self::MIN_POSITIVE, Self::MIN_POSITIVE - tiny,
                    1.0 + Self::EPSILON, Self::MAX, Self::MAX / 3.0, Self::INFINITY, Self::NAN];
                let signaling = Self::from_bits(Self::INFINITY.to_bits() + 1);
                numbers.into_iter().chain([signaling]).flat_map(|v| [v, -v]).collect()
            }

            fn plain(op: Op, a: Self, b: Self) -> Self {
                match op {
                    Op::Sum => a + b,
                    Op::Product => a * b,
                    Op::Max | Op::Min if a.is_nan() || b.is_nan() => Self::NAN,
                    Op::Max => if a.total_cmp(&b).is_ge() { a } else { b },
                    Op::Min => if a.total_cmp(&b).is_le() { a } else { b },
                    _ => unreachable!(),
                }
            }

            fn canonical(self, op: Op) -> Self {
                if self.is_nan() && matches!(op, Op::Sum | Op::Product) { Self::NAN } else { self }
            }
        }
    )*};
}
floats!(f32, f64);

/// `n` values with arbitrary bits, of which every third is special.
fn values<N: Oracle>(n: usize, seed: u64) -> Vec<N> {
    let (mut random, special) = (Generator::new(seed), N::special());
    let mut value = |i: usize| {
        let bits = random.next_u64();
        if i.is_multiple_of(3) {
            special[(bits % special.len() as u64) as usize]
        } else {
            pod_read_unaligned(&bits.to_le_bytes()[..size_of::<N>()])
        }
    };
    (0..n).map(&mut value).collect()
}

#[track_caller]
fn assert_same<N: Oracle>(op: Op, found: &[N], expected: &[N], what: &str) {
    assert_eq!(found.len(), expected.len());
    let same =
        |(found, expected): (&N, &N)| bytes_of(&found.canonical(op)) == bytes_of(&expected.canonical(op));
    let wrong = found.iter().zip(expected).position(|pair| !same(pair));
    let told = wrong.map(|at| (at, found[at], expected[at]));
    assert_eq!(told, None, "{} {op} {what}: place, found, expected", N::NAME);
}

/// One operation at every length, aligned and one element further.
fn check<N: Oracle>(op: Op) {
    let long = LONG_BYTES / size_of::<N>();
    let (a, b) = (values::<N>(long + 1, 1), values::<N>(long + 1, 2));
    let offsets = [(0, 0), (1, 0), (0, 1), (1, 1)];
    let places = LENGTHS.into_iter().flat_map(|n| offsets.map(|(first, b_first)| (n, first, b_first)));
    for (n, first, b_first) in places.chain([(long, 0, 0), (long, 1, 1)]) {
        let (a, b) = (&a[first..][..n], &b[b_first..][..n]);
        let expected: Vec<N> = a.iter().zip(b).map(|(&a, &b)| N::plain(op, a, b)).collect();
        // The element after the last stays as it is.
        let mut into = vec![N::zeroed(); first + n + 1];
        into[first..][..n].copy_from_slice(a);
        combine(op, &mut into[first..][..n], b).unwrap();
        assert_same(op, &into[first..][..n], &expected, "in place");
        assert_eq!(into[first + n], N::zeroed());

        let mut out = vec![N::zeroed(); n + 2];
        combine_from(op, &mut out[1..][..n], a, b).unwrap();
        assert_same(op, &out[1..][..n], &expected, "out of place");
        assert_eq!([out[0], out[n + 1]], [N::zeroed(); 2]);
    }
}

fn check_numbers(op: Op) {
    check::<i8>(op);
    check::<i16>(op);
    check::<i32>(op);
    check::<i64>(op);
    check::<u8>(op);
    check::<u16>(op);
    check::<u32>(op);
    check::<u64>(op);
    if !matches!(op, Op::And | Op::Or | Op::Xor) {
        check::<f32>(op);
        check::<f64>(op);
    }
}

#[test]
fn sums_are_those_of_a_plain_loop() {
    check_numbers(Op::Sum);
}

#[test]
fn products_are_those_of_a_plain_loop() {
    check_numbers(Op::Product);
}

#[test]
fn maxima_and_minima_are_those_of_a_plain_loop() {
    check_numbers(Op::Max);
    check_numbers(Op::Min);
}

#[test]
fn bitwise_operations_are_those_of_a_plain_loop() {
    [Op::And, Op::Or, Op::Xor].into_iter().for_each(check_numbers);
}

/// Every triple of the values at limits: zeros of both signs, subnormal numbers, infinities, and NaN of both
/// signs, quiet and signaling.
fn check_laws<N: Oracle>(op: Op) {
    let special = N::special();
    let count = special.len();
    let column = |step: usize| (0..count.pow(3)).map(|i| special[i / step % count]).collect::<Vec<N>>();
    let (a, b, c) = (column(1), column(count), column(count * count));
    let of = |a: &[N], b: &[N]| {
        let mut into = a.to_vec();
        combine(op, &mut into, b).unwrap();
        into
    };
    assert_same(op, &of(&a, &b), &of(&b, &a), "with the operands swapped");
    assert_same(op, &of(&of(&a, &b), &c), &of(&a, &of(&b, &c)), "in the other order");
    let twice = of(&a, &a);
    let canonical: Vec<N> = a.iter().map(|&a| N::plain(op, a, a)).collect();
    assert_same(op, &twice, &canonical, "of equal operands");
}

#[test]
fn maxima_and_minima_do_not_depend_on_the_order_of_operands() {
    for op in [Op::Max, Op::Min] {
        check_laws::<f32>(op);
        check_laws::<f64>(op);
        check_laws::<i8>(op);
        check_laws::<u64>(op);
    }
}

#[test]
fn limits_have_the_results_that_the_documentation_names() {
    fn of<N: Number>(op: Op, a: N, b: N) -> N {
        let mut into = [a];
        combine(op, &mut into, &[b]).unwrap();
        into[0]
    }
    let bits = |op, a: f32, b: f32| of(op, a, b).to_bits();
    let tiny = f32::from_bits(1);
    assert_eq!(bits(Op::Max, -0.0, 0.0), 0.0_f32.to_bits());
    assert_eq!(bits(Op::Min, 0.0, -0.0), (-0.0_f32).to_bits());
    assert_eq!(bits(Op::Max, f32::INFINITY, -f32::NAN), 0x7fc0_0000);
    assert_eq!(bits(Op::Min, f32::from_bits(0xff80_0001), -1.0), 0x7fc0_0000);
    assert_eq!(bits(Op::Max, -tiny, -0.0), (-0.0_f32).to_bits());
    assert_eq!(bits(Op::Sum, tiny, tiny), 2);
    assert_eq!(bits(Op::Product, f32::MIN_POSITIVE, 0.5), 1 << 22);
    assert_eq!(bits(Op::Sum, f32::MAX, f32::MAX), f32::INFINITY.to_bits());
    assert_eq!((of(Op::Sum, i8::MAX, 1), of(Op::Product, 200_u8, 2)), (i8::MIN, 144));
    assert_eq!((of(Op::Sum, u64::MAX, 2), of(Op::Product, i64::MIN, -1)), (1, i64::MIN));
    assert_eq!((of(Op::Max, -1_i16, 1), of(Op::Max, u16::MAX, 1)), (1, u16::MAX));
}

/// A 16-bit type and its conversions by the `half` crate.
trait HalfOracle: Half {
    fn of_bits(bits: u16) -> Self;
    fn bits(self) -> u16;
    fn exact(self) -> f32;
    fn rounded(value: f32) -> Self;
}

macro_rules! halves {
    ($($type:ident),*) => {$(
        impl HalfOracle for $type {
            fn of_bits(bits: u16) -> Self {
                Self::from_bits(bits)
            }

            fn bits(self) -> u16 {
                self.to_bits()
            }

            fn exact(self) -> f32 {
                self.to_f32_const()
            }

            fn rounded(value: f32) -> Self {
                Self::from_f32_const(value)
            }
        }
    )*};
}
halves!(f16, bf16);

fn check_wide<H: HalfOracle>() {
    let longest = LONG_BYTES / size_of::<f32>() + 2;
    let into = values::<f32>(longest, 3);
    // Every number of the type, several times.
    let from: Vec<H> = (0..longest).map(|i| H::of_bits((i * 40_503) as u16)).collect();
    for op in [Op::Sum, Op::Product, Op::Max, Op::Min] {
        let plain = |(&a, &b): (&f32, &H)| f32::plain(op, a, b.exact());
        let expected: Vec<f32> = into.iter().zip(&from).map(plain).collect();
        for n in LENGTHS.into_iter().chain([longest - 2]) {
            for first in [0, 1] {
                let mut found = into[..first + n + 1].to_vec();
                combine_wide(op, &mut found[first..][..n], &from[first..][..n]).unwrap();
                assert_same(op, &found[first..][..n], &expected[first..][..n], H::NAME);
                assert_eq!(found[first + n].to_bits(), into[first + n].to_bits());
            }
        }
    }
}

#[test]
fn halves_are_reduced_as_f32() {
    check_wide::<f16>();
    check_wide::<bf16>();
}

fn check_conversions<H: HalfOracle>() {
    let all: Vec<H> = (0..=u16::MAX).map(H::of_bits).collect();
    for (first, n) in LENGTHS.into_iter().flat_map(|n| [(0, n), (1, n)]).filter(|(_, n)| *n < all.len()) {
        let mut wide = vec![0.0; n];
        widen(&all[first..][..n], &mut wide).unwrap();
        let same = |(wide, half): (&f32, &H)| wide.to_bits() == half.exact().to_bits();
        assert!(wide.iter().zip(&all[first..]).all(same), "{} widened, {n} from {first}", H::NAME);
    }
    // Ties, their neighbours, subnormal numbers, infinities and NaN are among these.
    let around = |half: &H| {
        let here = half.exact().to_bits();
        [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001]
            .map(|more| f32::from_bits(here.wrapping_add(more)))
    };
    let wide: Vec<f32> = all.iter().flat_map(around).chain(values(1001, 5)).collect();
    for first in [0, 1] {
        let mut narrowed = vec![H::of_bits(0); wide.len() - first];
        narrow(&wide[first..], &mut narrowed).unwrap();
        let same = |(half, wide): (&H, &f32)| half.bits() == H::rounded(*wide).bits();
        let wrong = narrowed.iter().zip(&wide[first..]).position(|pair| !same(pair));
        let told = wrong.map(|at| (wide[first + at], narrowed[at]));
        assert_eq!(told, None, "{} narrowed: value, found", H::NAME);
    }
}

#[test]
fn halves_are_converted_as_ieee_754_says() {
    check_conversions::<f16>();
    check_conversions::<bf16>();
}

/// A sum of many halves is rounded once.
#[test]
fn a_sum_of_halves_is_rounded_once() {
    let addends = [2048.0, 1.0, 1.0, 1.0].map(f16::from_f32);
    let mut sum = [0.0];
    widen(&addends[..1], &mut sum).unwrap();
    addends[1..].iter().for_each(|&addend| combine_wide(Op::Sum, &mut sum, &[addend]).unwrap());
    let mut rounded = [f16::ZERO];
    narrow(&sum, &mut rounded).unwrap();
    // 2048 + 1 is 2048 as an f16, and 2051 is a tie between 2050 and 2052.
    assert_eq!(rounded, [f16::from_f32(2052.0)]);
}

fn check_average<F: Float + Oracle>(by: impl Fn(F, u32) -> F) {
    for n in LENGTHS {
        let sums = values::<F>(n + 1, 6);
        for count in [1, 2, 3, 1024, (1 << 24) + 1, u32::MAX] {
            let mut averages = sums.clone();
            divide(&mut averages[1..], count);
            let expected: Vec<F> = sums[1..].iter().map(|&sum| by(sum, count)).collect();
            assert_same(Op::Sum, &averages[1..], &expected, "divided");
        }
    }
}

#[test]
fn averages_are_quotients() {
    check_average::<f32>(|sum, count| sum / count as f32);
    check_average::<f64>(|sum, count| sum / f64::from(count));
}

fn is_refused<T: Debug>(result: Result<T, Error>, op: Op, element: &'static str) {
    assert_eq!(result.err(), Some(Error::UndefinedReduction { op, element }));
}

#[test]
fn bitwise_operations_are_for_integers_only() {
    for op in Op::ALL {
        let is_bitwise = matches!(op, Op::And | Op::Or | Op::Xor);
        assert!(i8::kernel(op).is_some() && u64::kernel_from(op).is_some());
        assert_eq!((f32::kernel(op).is_some(), f64::kernel_from(op).is_some()), (!is_bitwise, !is_bitwise));
        assert_eq!(
            (f16::wide_kernel(op).is_some(), bf16::wide_kernel(op).is_some()),
            (!is_bitwise, !is_bitwise)
        );
        if is_bitwise {
            let (mut wide, mut double) = ([1.5_f32], [2.5_f64]);
            is_refused(combine(op, &mut wide, &[1.0]), op, "f32");
            is_refused(combine_from(op, &mut double, &[1.0], &[1.0]), op, "f64");
            is_refused(combine_wide(op, &mut wide, &[f16::ONE]), op, "f16");
            is_refused(combine_wide(op, &mut wide, &[bf16::ONE]), op, "bf16");
            assert_eq!((wide, double), ([1.5], [2.5]));
        }
    }
    let told = combine(Op::Xor, &mut [1.5_f32], &[1.0]).unwrap_err().to_string();
    assert_eq!(told, "xor of f32 is not defined: bitwise reductions need integers");
}

#[test]
fn lengths_must_agree() {
    let expected = Err(Error::LengthMismatch { expected: 2, found: 1 });
    let mut two = [7_i32; 2];
    assert_eq!(combine(Op::Sum, &mut two, &[1]), expected);
    assert_eq!(combine_from(Op::Sum, &mut two, &[1], &[1; 2]), expected);
    assert_eq!(combine_from(Op::Sum, &mut two, &[1; 2], &[1]), expected);
    assert_eq!(combine_wide(Op::Sum, &mut [1.0; 2], &[f16::ONE]), expected);
    assert_eq!(widen(&[bf16::ONE; 2], &mut [0.0]), expected);
    assert_eq!(narrow(&[1.0; 2], &mut [f16::ZERO]), expected);
    assert_eq!(two, [7; 2]);
}

/// Also where the longer vector is prefetched.
#[test]
fn kernels_stop_at_the_end_of_the_shortest_slice() {
    for (n, more) in [(0, 1), (2, 1), (100, 30), (2_200_000, 500_000)] {
        let (sum, sum_from) = (i16::kernel(Op::Sum).unwrap(), i16::kernel_from(Op::Sum).unwrap());
        let (short, long) = (vec![2; n], vec![3; n + more]);
        for (mut into, from) in [(short.clone(), &long), (long.clone(), &short)] {
            sum(&mut into, from);
            assert!(into[..n].iter().all(|v| *v == 5) && into[n..].iter().all(|v| *v == 3));
        }
        for (a, b) in [(&short, &long), (&long, &short)] {
            let mut out = vec![1; n + more];
            sum_from(&mut out, a, b);
            assert!(out[..n].iter().all(|v| *v == 5) && out[n..].iter().all(|v| *v == 1));
        }
        let (mut into, from) = (vec![1.0; n + more], vec![f16::ONE; n]);
        f16::wide_kernel(Op::Sum).unwrap()(&mut into, &from);
        assert!(into[..n].iter().all(|v| *v == 2.0) && into[n..].iter().all(|v| *v == 1.0));
        f16::widen(&from, &mut into[..n / 2]);
        assert!(into[..n / 2].iter().all(|v| *v == 1.0) && into[n / 2..n].iter().all(|v| *v == 2.0));
    }
}
