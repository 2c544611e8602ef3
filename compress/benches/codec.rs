//! Index codecs at random places. `brevity perf compress --only codec` compares their bytes with the entropy
//! bound.

use std::hint::black_box;

use brevity_compress::SparseVec;
use brevity_compress::codec::{Choice, Encoder, IndexCodec, decode};
use brevity_compress::generator::Generator;
use brevity_compress::quantise::{Magnitude, Sign};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ELEMENTS: usize = 25_000_000;

/// About `ELEMENTS * density` random places; the values are zeros.
fn random(density: f64) -> SparseVec {
    let mut generator = Generator::new(3);
    let wanted = (ELEMENTS as f64 * density) as usize;
    let mut indices: Vec<u32> = (0..wanted).map(|_| generator.below(ELEMENTS as u64) as u32).collect();
    indices.sort_unstable();
    indices.dedup();
    let mut sparse = SparseVec::with_capacity(ELEMENTS, wanted);
    indices.iter().for_each(|&index| sparse.push(index, 0.0));
    sparse
}

fn codecs(c: &mut Criterion) {
    for density in [0.001, 0.01] {
        let entries = random(density);
        let mut group = c.benchmark_group(format!("codec {density}"));
        group.throughput(Throughput::Elements(entries.len() as u64)).sample_size(50);
        // One bit a value: the rest is the indices.
        let (mut encoder, mut sign, mut message) = (Encoder::new(), Sign::new(Magnitude::Mean), Vec::new());
        let mut out = SparseVec::new(0);
        for codec in [IndexCodec::Raw, IndexCodec::Packed, IndexCodec::Rice] {
            let choice = Choice::Only(codec);
            group.bench_function(format!("{codec:?}, encode, 1 bit a value"), |b| {
                b.iter(|| encoder.encode(black_box(entries.view()), choice, &mut sign, &mut message));
            });
            group.bench_function(format!("{codec:?}, decode, 1 bit a value"), |b| {
                b.iter(|| decode(black_box(&message), ELEMENTS, entries.len(), &mut out));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
