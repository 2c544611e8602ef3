//! Sums of sparse vectors. The operator of gTop-k stands beside the plain way: two pointers, a branch on each comparison, and
//! a selection by the standard library. Both run in turns in the last figure that is printed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use brevity_compress::generator::Generator;
use brevity_compress::merge::{MergeScratch, add, sum_all, top_k_sum};
use brevity_compress::{SparseVec, SparseView};
use criterion::{Criterion, criterion_group};

const ELEMENTS: usize = 25_000_000;
const K: usize = 250_000;

/// Random entries, dealt out to so many vectors of `k` each: no two have an index in common.
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

/// What the plain way needs.
#[derive(Default)]
struct Plain {
    keys: Vec<u64>,
    sorted: Vec<u64>,
    sums: SparseVec,
}

impl Plain {
    fn add(&mut self, a: SparseView<'_>, b: SparseView<'_>) {
        let (out, mut i, mut j) = (&mut self.sums, 0, 0);
        out.reset(a.dim());
        while i < a.len() && j < b.len() {
            let (left, right) = (a.indices()[i], b.indices()[j]);
            if left < right {
                out.push(left, a.values()[i]);
                i += 1;
            } else if right < left {
                out.push(right, b.values()[j]);
                j += 1;
            } else {
                out.push(left, a.values()[i] + b.values()[j]);
                i += 1;
                j += 1;
            }
        }
        a.iter().skip(i).chain(b.iter().skip(j)).for_each(|(index, value)| out.push(index, value));
    }

    fn top_k_sum(
        &mut self,
        a: SparseView<'_>,
        b: SparseView<'_>,
        k: usize,
        kept: &mut SparseVec,
        dropped: &mut SparseVec,
    ) {
        self.add(a, b);
        let key = |index: u32, value: f32| u64::from(value.to_bits() & 0x7fff_ffff) << 32 | u64::from(!index);
        kept.reset(a.dim());
        dropped.reset(a.dim());
        self.keys.clear();
        self.keys.extend(self.sums.iter().map(|(index, value)| key(index, value)));
        self.sorted.clone_from(&self.keys);
        let place = self.sorted.len().saturating_sub(k);
        let cut = if place == 0 { 0 } else { *self.sorted.select_nth_unstable(place).1 };
        for ((index, value), &key) in self.sums.iter().zip(&self.keys) {
            if key >= cut { kept.push(index, value) } else { dropped.push(index, value) }
        }
    }
}

fn sums(c: &mut Criterion) {
    let mut group = c.benchmark_group("merge");
    group.sample_size(20);
    let vectors = disjoint(16, K);
    let views: Vec<_> = vectors.iter().map(SparseVec::view).collect();
    let (mut kept, mut dropped) = (SparseVec::new(0), SparseVec::new(0));
    let (mut plain, mut scratch) = (Plain::default(), MergeScratch::new());
    group.bench_function("add, 2 x 250000", |b| b.iter(|| add(black_box(views[0]), views[1], &mut kept)));
    group.bench_function("add, 250000 to itself", |b| b.iter(|| add(black_box(views[0]), views[0], &mut kept)));
    group.bench_function("plain add, 2 x 250000", |b| b.iter(|| plain.add(black_box(views[0]), views[1])));
    group.bench_function("top_k_sum, 2 x 250000", |b| {
        b.iter(|| top_k_sum(black_box(views[0]), views[1], K, &mut kept, &mut dropped, &mut scratch));
    });
    group.bench_function("plain top_k_sum, 2 x 250000", |b| {
        b.iter(|| plain.top_k_sum(black_box(views[0]), views[1], K, &mut kept, &mut dropped));
    });
    group.bench_function("sum_all, 16 x 250000", |b| b.iter(|| sum_all(black_box(&views), &mut kept)));
    let mut dense = vec![0.0; ELEMENTS];
    group.bench_function("add to dense, 250000", |b| b.iter(|| black_box(views[0]).add_to(&mut dense)));
    group.finish();
}

/// The operator and the plain way in turns: their ratio is to be read from here.
fn turns() {
    let vectors = disjoint(2, K);
    let (a, b) = (vectors[0].view(), vectors[1].view());
    let (mut plain, mut scratch) = (Plain::default(), MergeScratch::new());
    let [mut kept, mut dropped, mut plainly_kept, mut plainly_dropped] = [(); 4].map(|()| SparseVec::new(0));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..101 {
        let start = Instant::now();
        let done = top_k_sum(black_box(a), b, K, &mut kept, &mut dropped, &mut scratch);
        ours.push(start.elapsed());
        assert_eq!(done, Ok(()));
        let start = Instant::now();
        plain.top_k_sum(black_box(a), b, K, &mut plainly_kept, &mut plainly_dropped);
        theirs.push(start.elapsed());
        assert!((&kept, &dropped) == (&plainly_kept, &plainly_dropped), "both ways select alike");
    }
    let ns = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        [times[0], times[times.len() / 2]].map(|time| time.as_secs_f64() * 1e9 / (2 * K) as f64)
    };
    let ([least, median], [plain_least, plain_median]) = (ns(&mut ours), ns(&mut theirs));
    println!(
        "top_k_sum in turns with the plain way, ns an entry: least {least:.2} of {plain_least:.2} ({:.2}), median {median:.2} of {plain_median:.2} ({:.2})",
        least / plain_least,
        median / plain_median
    );
}

criterion_group!(benches, sums);

fn main() {
    turns();
    if !std::env::args().any(|argument| argument == "turns") {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
}
