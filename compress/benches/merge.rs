//! Sums of sparse vectors.

use std::hint::black_box;

use brevity_compress::SparseVec;
use brevity_compress::generator::Generator;
use brevity_compress::merge::{MergeScratch, sum_all, top_k_sum};
use criterion::{Criterion, criterion_group, criterion_main};

const ELEMENTS: usize = 25_000_000;

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

criterion_group!(benches, merging);
criterion_main!(benches);
