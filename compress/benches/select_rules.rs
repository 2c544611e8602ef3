//! Selection rules other than top k, compared with one read of the same values.

use std::hint::black_box;

use brevity_compress::SparseVec;
use brevity_compress::generator::Generator;
use brevity_compress::select::{
    Blocks, BySignScratch, SampledScratch, bin_maxima, fixed_threshold, non_zero_blocks, random_block,
    random_k, resampled_top_k, sampled_top_k, top_k_by_sign,
};
use criterion::{Criterion, criterion_group, criterion_main};

const ELEMENTS: usize = 25_000_000;
const K: usize = ELEMENTS / 1000;

fn normal(seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; ELEMENTS];
    Generator::new(seed).fill_normal(&mut values);
    values
}

fn rules(c: &mut Criterion) {
    let mut group = c.benchmark_group("select rules, 0.1 %");
    group.sample_size(10);
    let (values, gradient) = (normal(1), normal(2));
    let (mut out, mut generator) = (SparseVec::new(0), Generator::new(3));
    group.bench_function("floor: sum of the bits", |b| {
        b.iter(|| black_box(&values).iter().fold(0_u32, |sum, v| sum.wrapping_add(v.to_bits())));
    });
    let mut sampled = SampledScratch::new();
    group.bench_function("sampled_top_k", |b| {
        b.iter(|| sampled_top_k(black_box(&values), K, 2 * K, &mut generator, &mut out, &mut sampled));
    });
    group.bench_function("resampled_top_k", |b| {
        b.iter(|| resampled_top_k(black_box(&values), K, &mut generator, &mut out, &mut sampled));
    });
    // One in a thousand normal deviates is larger.
    group.bench_function("fixed_threshold", |b| {
        b.iter(|| fixed_threshold(black_box(&values), 3.29, &mut out))
    });
    let mut by_sign = BySignScratch::new();
    group.bench_function("top_k_by_sign", |b| {
        b.iter(|| top_k_by_sign(black_box(&values), K / 2, K / 2, &mut out, &mut by_sign));
    });
    let mut drawn = Vec::new();
    group.bench_function("random_k", |b| {
        b.iter(|| random_k(black_box(&values), K, &mut generator, &mut out, &mut drawn));
    });
    group.bench_function("random_block", |b| {
        b.iter(|| random_block(black_box(&values), K, &mut generator, &mut out))
    });
    group.bench_function("bin_maxima of 500", |b| {
        b.iter(|| bin_maxima(black_box(&values), &gradient, 500, &mut out))
    });
    let mut blocks = Blocks::new();
    let sparse: Vec<f32> = values
        .chunks(256)
        .enumerate()
        .flat_map(|(b, block)| block.iter().map(move |v| if b % 20 == 0 { *v } else { 0.0 }))
        .collect();
    group.bench_function("non_zero_blocks, 5 %", |b| {
        b.iter(|| non_zero_blocks(black_box(&sparse), &mut blocks))
    });
    group.finish();
}

criterion_group!(benches, rules);
criterion_main!(benches);
