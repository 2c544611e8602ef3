//! Selection compared with a full sort by the total order.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use brevity_compress::select::{TopKScratch, top_k};
use brevity_compress::{Error, SparseVec};
use proptest::prelude::*;
use shapes::{shaped, total_order};

fn full_sort(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut entries: Vec<(u32, f32)> = (0..).zip(values.iter().copied()).filter(|e| e.1 != 0.0).collect();
    entries.sort_by(total_order);
    entries.truncate(k);
    entries.sort_by_key(|entry| entry.0);
    entries
}

fn check(values: &[f32], k: usize, out: &mut SparseVec, scratch: &mut TopKScratch) {
    top_k(values, k, out, scratch).unwrap();
    assert_eq!(out.dim(), values.len());
    let found: Vec<_> = out.iter().map(|(index, value)| (index, value.to_bits())).collect();
    let expected: Vec<_> = full_sort(values, k).into_iter().map(|(i, v)| (i, v.to_bits())).collect();
    assert!(
        found == expected,
        "n {}, k {k}: {} entries, expected {}",
        values.len(),
        found.len(),
        expected.len()
    );
}

proptest! {
    #[test]
    fn small_vectors(values in shaped(0..=70), share in 0.0..=1.0_f64) {
        let k = (share * values.len() as f64).round() as usize;
        check(&values, k, &mut SparseVec::new(0), &mut TopKScratch::new());
    }

    #[test]
    fn arbitrary_bits(
        values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..200),
        k in 0_usize..220,
    ) {
        let mut out = SparseVec::new(0);
        match values.iter().position(|v| !v.is_finite()) {
            None => check(&values, k, &mut out, &mut TopKScratch::new()),
            Some(first) => {
                let found = top_k(&values, k, &mut out, &mut TopKScratch::new());
                let reported = matches!(found, Err(Error::NonFinite { index, .. }) if index == first);
                prop_assert!(reported, "found {:?}", found);
                prop_assert!(out.is_empty());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Large enough to be sampled; the scratch is reused from case to case.
    #[test]
    fn sampled_vectors(values in shaped(4000..=30_000), share in 0.0..1.0_f64) {
        let (mut out, mut scratch) = (SparseVec::new(0), TopKScratch::new());
        let n = values.len();
        for k in [1, (share.powi(6) * n as f64) as usize, (share * n as f64) as usize, n] {
            check(&values, k, &mut out, &mut scratch);
        }
    }
}

#[test]
fn indices_above_two_to_the_24_are_exact() {
    let n = (1 << 24) + 5;
    let mut values = vec![0.0_f32; n];
    for (place, value) in [(0, 1.0), (1 << 24, -3.0), ((1 << 24) + 1, 2.0), (n - 1, -3.0)] {
        values[place] = value;
    }
    let mut out = SparseVec::new(0);
    top_k(&values, 3, &mut out, &mut TopKScratch::new()).unwrap();
    assert_eq!(out.indices(), [1 << 24, (1 << 24) + 1, (1 << 24) + 4]);
    assert_eq!(out.values(), [-3.0, 2.0, -3.0]);
    values.fill(-1.0);
    top_k(&values, 2, &mut out, &mut TopKScratch::new()).unwrap();
    assert_eq!(out.indices(), [0, 1]);
}
