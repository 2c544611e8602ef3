//! Dense sums and conversions compared with their floors: `r += g`, and a copy.

use std::hint::black_box;

use brevity_compress::dense::{Element, accumulate, add_assign, from_f32, to_f32};
use brevity_compress::generator::Generator;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use half::{bf16, f16};

const ELEMENTS: usize = 25_000_000;

fn dense(c: &mut Criterion) {
    let mut group = c.benchmark_group("dense");
    group.sample_size(20);
    let mut values = vec![0.0; ELEMENTS];
    Generator::new(1).fill_normal(&mut values);
    let mut copy = values.clone();
    group.bench_function("floor: copy", |b| {
        b.iter(|| black_box(&mut copy[..]).copy_from_slice(black_box(&values)))
    });
    kernels::<f32>(&mut group, &values, &mut copy);
    kernels::<f64>(&mut group, &values, &mut copy);
    kernels::<f16>(&mut group, &values, &mut copy);
    kernels::<bf16>(&mut group, &values, &mut copy);
    group.finish();
}

fn kernels<E: Element>(group: &mut BenchmarkGroup<'_, WallTime>, values: &[f32], r: &mut [f32]) {
    let (mut a, mut b) = (vec![E::default(); values.len()], vec![E::default(); values.len()]);
    if from_f32(values, &mut a).is_err() || from_f32(values, &mut b).is_err() {
        return;
    }
    let name = E::NAME;
    group.bench_function(format!("{name}: a += b"), |bench| {
        bench.iter(|| add_assign(black_box(&mut a), black_box(&b)))
    });
    group.bench_function(format!("{name}: r += a"), |bench| {
        bench.iter(|| accumulate(black_box(r), black_box(&b)))
    });
    group.bench_function(format!("{name} from f32"), |bench| {
        bench.iter(|| from_f32(black_box(values), &mut a))
    });
    group.bench_function(format!("{name} to f32"), |bench| bench.iter(|| to_f32(black_box(&b), r)));
}

criterion_group!(benches, dense);
criterion_main!(benches);
