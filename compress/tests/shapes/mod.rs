//! Data distributions for the tests of selection and merging.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use brevity_compress::generator::Generator;
use proptest::prelude::*;

/// Dense vectors of one of the shapes, of a length within `lengths`.
pub fn shaped(lengths: RangeInclusive<usize>) -> impl Strategy<Value = Vec<f32>> {
    (lengths, 0..SHAPES, any::<u64>()).prop_map(|(n, kind, seed)| shape(kind, n, seed))
}

/// `n` values of one of the shapes.
pub fn shape(kind: usize, n: usize, seed: u64) -> Vec<f32> {
    let mut generator = Generator::new(seed);
    (0..n).map(|i| element(kind, i, n, &mut generator)).collect()
}

/// Larger magnitude first, then smaller index.
pub fn total_order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0))
}

const SHAPES: usize = 10;

fn element(shape: usize, i: usize, n: usize, generator: &mut Generator) -> f32 {
    let normal = generator.normal();
    let sign = if generator.next_u64() & 1 == 0 { 1.0 } else { -1.0 };
    match shape {
        0 => normal,
        1 => normal / (generator.uniform() as f32 + 1e-6), // heavy tails
        2 if generator.below(20) > 0 => 0.0 * sign,        // 95 % zeros, of both signs
        2 => normal,
        3 => sign * 0.25,           // all of one magnitude
        4 => i as f32,              // ascending
        5 => (n - i) as f32 * sign, // descending
        6 if i + 1 == n => 1e30,    // the largest at the end
        6 => normal,
        7 => generator.below(4) as f32 * sign, // many duplicates
        8 => f32::from_bits(generator.below(1 << 23) as u32) * sign, // subnormals
        _ => ((i % 64) as f32) * sign,         // periodic
    }
}
