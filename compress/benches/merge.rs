//! Sums of sparse vectors. `brevity perf compress --only sparse` compares them with a plain implementation.

use std::hint::black_box;

use brevity_compress::SparseVec;
use brevity_compress::generator::Generator;
use brevity_compress::merge::{MergeScratch, OrderedScratch, add, sum_in_order, top_k_sum};
use criterion::{Criterion, criterion_group, criterion_main};

const ELEMENTS: usize = 25_000_000;
const K: usize = 250_000;

/// Random entries, divided into `count` vectors of `k` each: no two have an index in common.
fn disjoint(count: usize, k: usize) -> Vec<SparseVec> {
    let mut generator = Generator::new(3);
    let mut indices: Vec<u32> = (0..2 * count * k).map(|_| generator.below(ELEMENTS as u64) as u32).collect();
    indices.sort_unstable();
    indices.dedup();
    for place in 0..count * k {
        let other = place + generator.below((indices.len() - place) as u64) as usize;
        indices.swap(place, other);
    }
    let deal = |hand: &mut [u32]| {
        hand.sort_unstable();
        let mut sparse = SparseVec::with_capacity(ELEMENTS, k);
        hand.iter().for_each(|&index| sparse.push(index, generator.normal()));
        sparse
    };
    indices[..count * k].chunks_mut(k).map(deal).collect()
}

fn sums(c: &mut Criterion) {
    let mut group = c.benchmark_group("merge");
    group.sample_size(20);
    let vectors = disjoint(16, K);
    let views: Vec<_> = vectors.iter().map(SparseVec::view).collect();
    let (mut kept, mut dropped) = (SparseVec::new(0), SparseVec::new(0));
    let mut scratch = MergeScratch::new();
    group.bench_function("add, 2 x 250000", |b| b.iter(|| add(black_box(views[0]), views[1], &mut kept)));
    group.bench_function("add, 250000 to itself", |b| {
        b.iter(|| add(black_box(views[0]), views[0], &mut kept))
    });
    group.bench_function("top_k_sum, 2 x 250000", |b| {
        b.iter(|| top_k_sum(black_box(views[0]), views[1], K, &mut kept, &mut dropped, &mut scratch));
    });
    let mut ordered = OrderedScratch::new();
    group.bench_function("sum_in_order, 16 x 250000", |b| {
        b.iter(|| sum_in_order(black_box(&views), &mut kept, &mut ordered))
    });
    let mut dense = vec![0.0; ELEMENTS];
    group.bench_function("add to dense, 250000", |b| b.iter(|| black_box(views[0]).add_to(&mut dense)));
    group.finish();
}

criterion_group!(benches, sums);
criterion_main!(benches);
