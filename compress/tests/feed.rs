//! Gradient dropping in one pass against a full sort of the sums.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use brevity_compress::feedback::{Gradient, Residual};
use brevity_compress::generator::Generator;
use brevity_compress::select::{Hint, TopKScratch, feed_top_k, feed_top_k_of_all, top_k, top_k_of_all};
use brevity_compress::{Error, SparseVec};
use half::{bf16, f16};
use proptest::prelude::*;
use shapes::{shape, shaped, total_order};

/// The expected residual and selection of `r + g`, and the sums that are not finite.
fn expected(r: &[f32], g: &[f32], k: usize) -> (Vec<f32>, Vec<(u32, f32)>, Vec<usize>) {
    let mut rest: Vec<f32> = r.iter().zip(g).map(|(r, g)| r + g).collect();
    let left_out: Vec<usize> = (0..r.len()).filter(|&i| !rest[i].is_finite()).collect();
    left_out.iter().for_each(|&i| rest[i] = r[i]);
    let mut entries: Vec<(u32, f32)> =
        (0..).zip(rest.iter().copied()).filter(|entry| entry.1 != 0.0).collect();
    entries.retain(|entry| left_out.binary_search(&(entry.0 as usize)).is_err());
    entries.sort_by(total_order);
    entries.truncate(k);
    entries.sort_by_key(|entry| entry.0);
    entries.iter().for_each(|entry| rest[entry.0 as usize] = 0.0);
    (rest, entries, left_out)
}

fn bits(values: &[f32]) -> Vec<u32> {
    // Minus zero counts as zero here: what a tie of zeros leaves does not matter.
    values.iter().map(|v| (v + 0.0).to_bits()).collect()
}

fn entries(sparse: &SparseVec) -> Vec<(u32, u32)> {
    sparse.iter().map(|(index, value)| (index, value.to_bits())).collect()
}

/// Feeds `g` to a copy of `r` and compares everything with the oracle.
fn check(
    r: &[f32],
    g: &[f32],
    k: usize,
    hint: &mut Hint,
    out: &mut SparseVec,
    scratch: &mut TopKScratch,
) -> Vec<f32> {
    let mut left = r.to_vec();
    let found = feed_top_k(&mut left, g.into(), k, hint, out, scratch).unwrap();
    let (rest, selected, left_out) = expected(r, g, k);
    let selected: Vec<_> = selected.into_iter().map(|(index, value)| (index, value.to_bits())).collect();
    let what = format!("n {}, k {k}, {} selected, expected {}", r.len(), out.len(), selected.len());
    assert!(entries(out) == selected, "{what}");
    assert!(bits(&left) == bits(&rest), "{what}: another residual");
    assert_eq!(
        found.map(|found| (found.count, found.index)),
        left_out.first().map(|&i| (left_out.len(), i)),
        "{what}"
    );
    left
}

proptest! {
    #[test]
    fn small_residuals(r in shaped(0..=70), seed in any::<u64>(), share in 0.0..=1.0_f64) {
        let mut generator = Generator::new(seed);
        let g: Vec<f32> = r.iter().map(|_| generator.normal()).collect();
        let k = (share * r.len() as f64).round() as usize;
        check(&r, &g, k, &mut Hint::new(), &mut SparseVec::new(0), &mut TopKScratch::new());
    }

    #[test]
    fn arbitrary_bits(
        pairs in prop::collection::vec((any::<f32>(), any::<u32>()), 0..200),
        k in 0_usize..220,
    ) {
        let r: Vec<f32> = pairs.iter().map(|pair| if pair.0.is_finite() { pair.0 } else { 1.0 }).collect();
        let g: Vec<f32> = pairs.iter().map(|pair| f32::from_bits(pair.1)).collect();
        check(&r, &g, k, &mut Hint::new(), &mut SparseVec::new(0), &mut TopKScratch::new());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Several steps of one residual, large enough to be sampled, with all hints that result: gradients
    /// change their shape and scale between steps. One scratch is used for other lengths and other `k` in
    /// between.
    #[test]
    fn steps_with_hints(
        shapes in prop::collection::vec((0_usize..10, -3_i32..3), 2..5),
        n in 4000_usize..40_000,
        seed in any::<u64>(),
        share in 0.0..1.0_f64,
    ) {
        let k = (share.powi(5) * n as f64) as usize;
        let (mut hint, mut out, mut scratch) = (Hint::new(), SparseVec::new(0), TopKScratch::new());
        let mut r = vec![0.0; n];
        for (step, &(kind, scale)) in shapes.iter().enumerate() {
            let g: Vec<f32> =
                shape(kind, n, seed + step as u64).iter().map(|v| v * 10_f32.powi(scale)).collect();
            r = check(&r, &g, k, &mut hint, &mut out, &mut scratch);
            check(&g[..n / 3], &g[..n / 3], k / 2 + 1, &mut Hint::new(), &mut out, &mut scratch);
        }
    }

    /// One threshold for a list of tensors gives the selection of one long tensor.
    #[test]
    fn of_all_is_of_their_concatenation(
        r in shaped(0..=20_000),
        cuts in prop::collection::vec(0.0..=1.0_f64, 0..6),
        share in 0.0..=1.0_f64,
    ) {
        let mut ends: Vec<usize> =
            cuts.iter().map(|cut| (cut * r.len() as f64) as usize).chain([r.len()]).collect();
        ends.sort_unstable();
        let starts: Vec<usize> = std::iter::once(0).chain(ends.iter().copied()).take(ends.len()).collect();
        let k = (share.powi(3) * r.len() as f64) as usize;
        let g: Vec<f32> = r.iter().rev().copied().collect();
        let (rest, selected, _) = expected(&r, &g, k);
        let mut scratch = TopKScratch::new();
        let mut outs = vec![SparseVec::new(0); ends.len()];
        let join = |outs: &[SparseVec]| -> Vec<(u32, u32)> {
            let shifted = |(out, &start): (&SparseVec, &usize)| {
                entries(out).into_iter().map(move |(i, b)| (i + start as u32, b)).collect::<Vec<_>>()
            };
            outs.iter().zip(&starts).flat_map(shifted).collect()
        };
        let mut left = r.clone();
        let mut pieces: Vec<&mut [f32]> = Vec::new();
        let mut behind = &mut left[..];
        for (start, end) in starts.iter().zip(&ends) {
            let (piece, others) = behind.split_at_mut(end - start);
            pieces.push(piece);
            behind = others;
        }
        let gradients: Vec<Gradient<'_>> =
            starts.iter().zip(&ends).map(|(&start, &end)| g[start..end].into()).collect();
        let found =
            feed_top_k_of_all(pieces.into_iter(), &gradients, k, &mut Hint::new(), &mut outs, &mut scratch)
                .unwrap();
        prop_assert_eq!(found, None);
        let selected: Vec<(u32, u32)> =
            selected.into_iter().map(|(index, value)| (index, value.to_bits())).collect();
        prop_assert!(join(&outs) == selected, "k {}", k);
        prop_assert!(bits(&left) == bits(&rest), "k {}", k);

        let sums: Vec<f32> = r.iter().zip(&g).map(|(r, g)| r + g).collect();
        let tensors: Vec<&[f32]> = starts.iter().zip(&ends).map(|(&start, &end)| &sums[start..end]).collect();
        top_k_of_all(&tensors, k, &mut outs, &mut scratch).unwrap();
        prop_assert!(join(&outs) == selected, "k {}", k);
    }
}

/// Gradients of other types are converted element by element.
#[test]
fn other_types_are_their_conversions() {
    let n = 10_007;
    let wide = shape(0, n, 3);
    let r = shape(1, n, 4);
    let f16s: Vec<f16> = wide.iter().map(|&v| f16::from_f32(v)).collect();
    let bf16s: Vec<bf16> = wide.iter().map(|&v| bf16::from_f32(v)).collect();
    let mut f64s: Vec<f64> = wide.iter().map(|&v| f64::from(v) * 1.000_000_001).collect();
    f64s[5000] = 1e200;
    let cases: [(Gradient<'_>, Vec<f32>); 3] = [
        (f16s[..].into(), f16s.iter().map(|v| v.to_f32()).collect()),
        (bf16s[..].into(), bf16s.iter().map(|v| v.to_f32()).collect()),
        (f64s[..].into(), f64s.iter().map(|&v| v as f32).collect()),
    ];
    for (gradient, converted) in cases {
        for k in [0, 10, 3000, n] {
            let (mut left, mut out) = (r.clone(), SparseVec::new(0));
            let found =
                feed_top_k(&mut left, gradient, k, &mut Hint::new(), &mut out, &mut TopKScratch::new())
                    .unwrap();
            let (rest, selected, left_out) = expected(&r, &converted, k);
            assert_eq!(out.iter().collect::<Vec<_>>(), selected, "{k}");
            assert_eq!(left, rest, "{k}");
            assert_eq!(found.map(|found| found.index), left_out.first().copied(), "{k}");
        }
    }
}

/// Several shapes at a size that is shared among threads: the same result for 1, 2 and 4 of them, and for a
/// hint that is right, too low and too high.
#[test]
fn threads_and_hints_change_nothing() {
    let n = (1 << 21) + 5;
    for kind in [0, 2, 3, 4] {
        let mut g = shape(kind, n, 9);
        g[n / 2] = f32::NAN;
        g[n - 3] = f32::INFINITY;
        let r = shape(7, n, 10);
        for k in [0, 1, n / 1000, n / 3] {
            let mut seen: Option<(Vec<u32>, SparseVec)> = None;
            let (mut low, mut high) = (Hint::new(), Hint::new());
            for (hint, scale) in [(&mut low, 1e-3), (&mut high, 1e3)] {
                let scaled: Vec<f32> = g.iter().map(|v| v * scale).collect();
                let mut r: Vec<f32> = r.iter().map(|v| v * scale).collect();
                let (mut out, mut scratch) = (SparseVec::new(0), TopKScratch::new());
                feed_top_k(&mut r, scaled[..].into(), k, hint, &mut out, &mut scratch).unwrap();
            }
            for threads in [1, 2, 4] {
                let mut scratch = TopKScratch::with_threads(threads);
                for mut hint in [Hint::new(), low, high] {
                    let (mut left, mut out) = (r.clone(), SparseVec::new(0));
                    let found =
                        feed_top_k(&mut left, g[..].into(), k, &mut hint, &mut out, &mut scratch).unwrap();
                    assert_eq!(found.map(|found| (found.count, found.index)), Some((2, n / 2)));
                    let found = (bits(&left), out);
                    match &seen {
                        None => seen = Some(found),
                        Some(seen) => assert!(*seen == found, "shape {kind}, k {k}, {threads} threads"),
                    }
                }
            }
            let (rest, selected, _) = expected(&r, &g, k);
            let (left, out) = seen.unwrap();
            assert!(out.iter().eq(selected), "shape {kind}, k {k}");
            assert!(left == bits(&rest), "shape {kind}, k {k}");
        }
    }
}

/// Above 2^24 and up to the last index.
#[test]
fn large_vectors_are_exact() {
    let n = (1 << 24) + 5;
    let g: Vec<f32> = (0..n as u64).map(|i| ((i * 7919) % 16_777_259) as f32).collect();
    let (mut hint, mut out, mut scratch) = (Hint::new(), SparseVec::new(0), TopKScratch::with_threads(2));
    let zeros = vec![0.0; n];
    for k in [1, n / 1000, n - 1, n] {
        check(&zeros, &g, k, &mut hint, &mut out, &mut scratch);
        let mut fixed = SparseVec::new(0);
        top_k(&g, k, &mut fixed, &mut scratch).unwrap();
        assert!(fixed == out, "k {k}");
    }
}

/// Tensors that two threads share, with the boundary inside one of them.
#[test]
fn threads_share_lists_of_tensors() {
    let lengths = [0, 400_000, 3, 0, 500_001, 200_000, 0];
    let gradients: Vec<Vec<f32>> = (0..).zip(lengths).map(|(seed, n)| shape(7, n, seed)).collect();
    let feed = |threads: usize, k: usize| {
        let mut residuals: Vec<Residual> = lengths.iter().map(|&n| Residual::new(n)).collect();
        let slices: Vec<Gradient<'_>> = gradients.iter().map(|g| g[..].into()).collect();
        let (mut hint, mut scratch) = (Hint::new(), TopKScratch::with_threads(threads));
        let mut outs = vec![SparseVec::new(0); lengths.len()];
        for _ in 0..2 {
            let fed =
                Residual::feed_top_k_of_all(&mut residuals, &slices, k, &mut hint, &mut outs, &mut scratch);
            assert_eq!(fed, Ok(None));
        }
        let left: Vec<Vec<u32>> = residuals.iter().map(|residual| bits(residual.values())).collect();
        (outs, left)
    };
    for k in [1, 5000, 600_000] {
        let (one, two) = (feed(1, k), feed(2, k));
        assert_eq!(one.0.iter().map(SparseVec::len).sum::<usize>(), k);
        assert!(one == two, "k {k}");
    }
}

/// Small integers: every sum is exact, so what was sent plus what stays is the input, bit for bit.
#[test]
fn mass_is_conserved_over_many_steps() {
    let (n, steps) = (30_000, 50);
    let mut generator = Generator::new(12);
    let (mut residual, mut sent, mut total) = (Residual::new(n), vec![0.0_f32; n], vec![0.0_f32; n]);
    let (mut out, mut scratch) = (SparseVec::new(0), TopKScratch::new());
    for step in 0..steps {
        let g: Vec<f32> = (0..n).map(|_| generator.below(19) as f32 - 9.0).collect();
        total.iter_mut().zip(&g).for_each(|(total, g)| *total += g);
        let k = [300, 300, 300, 0, 7000, 1, n][step % 7];
        residual.feed_top_k(&g[..], k, &mut out, &mut scratch).unwrap();
        assert!(out.len() <= k);
        out.add_to(&mut sent);
        let sum: Vec<f32> = sent.iter().zip(residual.values()).map(|(sent, left)| sent + left).collect();
        assert!(sum == total, "step {step}");
    }
}

#[test]
fn misuse_changes_nothing() {
    let (mut hint, mut scratch) = (Hint::new(), TopKScratch::new());
    let mut out = SparseVec::from_parts(9, vec![1], vec![1.0]).unwrap();
    let mut r = [1.0, 2.0];
    let found = feed_top_k(&mut r, [1.0_f32][..].into(), 1, &mut hint, &mut out, &mut scratch);
    assert_eq!(found, Err(Error::LengthMismatch { expected: 2, found: 1 }));
    assert_eq!((r, out.is_empty()), ([1.0, 2.0], true));
    let g: Gradient<'_> = [1.0_f32, 1.0][..].into();
    let mut outs = vec![SparseVec::new(0); 2];
    let found = feed_top_k_of_all([&mut r[..]].into_iter(), &[g, g], 1, &mut hint, &mut outs, &mut scratch);
    assert_eq!(found, Err(Error::LengthMismatch { expected: 1, found: 2 }));
    let found = top_k_of_all(&[&r, &[f32::NAN]], 1, &mut outs, &mut scratch);
    assert!(matches!(found, Err(Error::NonFinite { index: 0, .. })), "{found:?}");
    assert!(outs.iter().all(SparseVec::is_empty));
}
