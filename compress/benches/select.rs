//! Selection compared with its floors: `r += g` over the same vectors for gradient dropping, a read for a
//! fixed vector.

use std::hint::black_box;

use brevity_compress::dense::add_assign;
use brevity_compress::generator::Generator;
use brevity_compress::select::{Hint, TopKScratch, feed_top_k, top_k};
use brevity_compress::{Density, SparseVec};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

const ELEMENTS: usize = 25_000_000;

fn normal(seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; ELEMENTS];
    Generator::new(seed).fill_normal(&mut values);
    values
}

/// Consecutive gradient drops: every second one subtracts the gradient again, so that the residual keeps its
/// size.
fn gradient_dropping(c: &mut Criterion) {
    let mut group = c.benchmark_group("gradient drop");
    group.sample_size(20);
    let (mut r, gradient) = (normal(1), normal(2));
    let opposite: Vec<f32> = gradient.iter().map(|g| -g).collect();
    group.bench_function("floor: r += g", |b| b.iter(|| add_assign(black_box(&mut r), black_box(&gradient))));
    for (share, threads) in [(0.001, 1), (0.01, 1), (0.1, 1), (0.001, 2), (0.01, 2)] {
        let Ok(density) = Density::new(share) else { continue };
        let (k, mut out, mut hints) = (density.entries(ELEMENTS), SparseVec::new(0), [Hint::new(); 2]);
        let (mut scratch, mut turn) = (TopKScratch::with_threads(threads), 0);
        let start = normal(1);
        r.copy_from_slice(&start);
        group.bench_function(format!("{share}, {threads} threads"), |b| {
            let next = || {
                turn += 1;
                turn % 2
            };
            b.iter_batched(
                next,
                |turn| {
                    let g = if turn == 0 { &gradient } else { &opposite };
                    feed_top_k(&mut r, g[..].into(), k, &mut hints[turn], &mut out, &mut scratch)
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn fixed_vectors(c: &mut Criterion) {
    let mut group = c.benchmark_group("top_k");
    group.sample_size(20);
    let values = normal(1);
    group.bench_function("floor: sum of the bits", |b| {
        b.iter(|| black_box(&values).iter().fold(0_u32, |sum, v| sum.wrapping_add(v.to_bits())));
    });
    let (mut out, mut scratch) = (SparseVec::new(0), TopKScratch::new());
    for share in [0.1, 0.01, 0.001] {
        let Ok(density) = Density::new(share) else { continue };
        let k = density.entries(ELEMENTS);
        group.bench_function(format!("{share}"), |b| {
            b.iter(|| top_k(black_box(&values), k, &mut out, &mut scratch))
        });
    }
    let ties = vec![0.5; ELEMENTS];
    group.bench_function("0.01, all equal", |b| {
        b.iter(|| top_k(black_box(&ties), ELEMENTS / 100, &mut out, &mut scratch));
    });
    group.finish();
}

criterion_group!(benches, gradient_dropping, fixed_vectors);
criterion_main!(benches);
