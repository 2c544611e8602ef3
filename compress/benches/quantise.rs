//! Quantisers compared with their floor, `r += g`.

use std::hint::black_box;

use brevity_compress::dense::add_assign_plain;
use brevity_compress::generator::Generator;
use brevity_compress::quantise::{
    BucketFeedback, ColumnSign, DeferredFeedback, Encoded, HalfPrecision, MinMax, Norm, Qsgd, Quantiser,
    Sign, Signs, Ternary, TwoBit, Votes, encode_signs,
};
use criterion::{Criterion, criterion_group, criterion_main};

const ELEMENTS: usize = 25_000_000;

fn feedback(c: &mut Criterion) {
    let mut group = c.benchmark_group("feedback");
    group.sample_size(20);
    let (mut sum, mut g, mut bytes) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS], Vec::new());
    Generator::new(1).fill_normal(&mut g);
    group
        .bench_function("floor: r += g", |b| b.iter(|| add_assign_plain(black_box(&mut sum), black_box(&g))));
    if let Ok(mut one) = DeferredFeedback::new(ELEMENTS, Sign::default()) {
        group.bench_function("1 bit", |b| b.iter(|| one.compress(black_box(&g)).is_ok()));
    }
    if let Ok(mut two) = DeferredFeedback::new(ELEMENTS, TwoBit::default()) {
        group.bench_function("2 bits", |b| b.iter(|| two.compress(black_box(&g)).is_ok()));
    }
    for levels in [12, 127] {
        let quantiser = Qsgd::new(levels, 512, Norm::Euclidean, 1);
        if let Ok(mut qsgd) = BucketFeedback::new(ELEMENTS, quantiser) {
            group.bench_function(format!("QSGD, {levels}"), |b| {
                b.iter(|| qsgd.compress(black_box(&g), &mut bytes))
            });
        }
    }
    if let Ok(mut min_max) = BucketFeedback::new(ELEMENTS, MinMax::default()) {
        group.bench_function("8 bits", |b| b.iter(|| min_max.compress(black_box(&g), &mut bytes)));
    }
    if let Ok(mut brain) = BucketFeedback::new(ELEMENTS, HalfPrecision::bf16()) {
        group.bench_function("bf16", |b| b.iter(|| brain.compress(black_box(&g), &mut bytes)));
    }
    group.finish();
}

fn coding(c: &mut Criterion) {
    let mut group = c.benchmark_group("coding");
    group.sample_size(20);
    let (mut sum, mut g, mut bytes) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS], Vec::new());
    Generator::new(1).fill_normal(&mut g);
    let mut both = |name: &str, quantiser: &mut dyn Quantiser| {
        group.bench_function(format!("encode, {name}"), |b| {
            b.iter(|| quantiser.encode(black_box(&g), &mut bytes))
        });
        if let Ok(message) = Encoded::new(quantiser.format(), ELEMENTS, &bytes) {
            group.bench_function(format!("add, {name}"), |b| {
                b.iter(|| message.add_to(0.5, black_box(&mut sum)))
            });
        }
    };
    both("1 bit", &mut Sign::default());
    both("1 bit, columns", &mut ColumnSign::means(5000));
    both("2 bits", &mut TwoBit::default());
    both("TernGrad", &mut Ternary::new(1));
    both("QSGD, 7", &mut Qsgd::new(7, 512, Norm::Euclidean, 1));
    both("8 bits", &mut MinMax::default());
    both("f16", &mut HalfPrecision::f16());
    let mut votes = Votes::new(ELEMENTS);
    if encode_signs(&g, &mut bytes).is_ok()
        && let Ok(message) = Signs::new(ELEMENTS, &bytes)
    {
        group.bench_function("a vote of 8 ranks", |b| {
            b.iter(|| {
                votes.clear();
                (0..8).try_for_each(|_| votes.add(message)).and_then(|()| votes.majority(&mut sum))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, feedback, coding);
criterion_main!(benches);
