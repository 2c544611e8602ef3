//! Kernels beside their floor: reading and writing the same memory once.

use std::hint::black_box;

use brevity_compress::generator::Generator;
use brevity_compress::merge::{MergeScratch, sum_all, top_k_sum};
use brevity_compress::select::{TopKScratch, top_k};
use brevity_compress::{Density, SparseVec, feedback::Residual};
use criterion::{Criterion, criterion_group, criterion_main};

const ELEMENTS: usize = 25_000_000;

fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    Generator::new(seed).fill_normal(&mut values);
    values
}

fn selection(c: &mut Criterion) {
    let mut group = c.benchmark_group("select");
    group.sample_size(10);
    let (mut values, gradient) = (normal(ELEMENTS, 1), normal(ELEMENTS, 2));
    group.bench_function("floor: r += g", |b| {
        b.iter(|| values.iter_mut().zip(&gradient).for_each(|(r, g)| *r += *g));
    });
    let mut residual = Residual::new(ELEMENTS);
    group.bench_function("accumulate", |b| b.iter(|| residual.accumulate(&gradient)));
    let (mut out, mut scratch) = (SparseVec::new(0), TopKScratch::new());
    for share in [0.1, 0.01, 0.001] {
        let Ok(density) = Density::new(share) else { continue };
        let k = density.entries(ELEMENTS);
        group.bench_function(format!("top_k {share}"), |b| {
            b.iter(|| top_k(black_box(&gradient), k, &mut out, &mut scratch));
        });
    }
    let ties = vec![0.5; ELEMENTS];
    group.bench_function("top_k 0.01, all equal", |b| {
        b.iter(|| top_k(black_box(&ties), ELEMENTS / 100, &mut out, &mut scratch));
    });
    group.finish();
}

/// Sparse vectors of `k` random places each.
fn ranks(count: u64, k: usize) -> Vec<SparseVec> {
    let one = |rank| {
        let mut generator = Generator::for_stream(3, rank);
        let mut indices: Vec<u32> = (0..k).map(|_| generator.below(ELEMENTS as u64) as u32).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut sparse = SparseVec::with_capacity(ELEMENTS, k);
        indices.iter().for_each(|&index| sparse.push(index, generator.normal()));
        sparse
    };
    (0..count).map(one).collect()
}

fn merging(c: &mut Criterion) {
    let mut group = c.benchmark_group("merge");
    group.sample_size(20);
    let k = 250_000;
    let sparse = ranks(16, k);
    let views: Vec<_> = sparse.iter().map(SparseVec::view).collect();
    let (mut kept, mut dropped, mut scratch) = (SparseVec::new(0), SparseVec::new(0), MergeScratch::new());
    group.bench_function("top_k_sum, 2 x 250000", |b| {
        b.iter(|| top_k_sum(views[0], views[1], k, &mut kept, &mut dropped, &mut scratch));
    });
    group.bench_function("sum_all, 16 x 250000", |b| b.iter(|| sum_all(black_box(&views), &mut kept)));
    group.finish();
}

criterion_group!(benches, selection, merging);
criterion_main!(benches);
