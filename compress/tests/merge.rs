//! Sparse sums against dense ones.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use brevity_compress::merge::{MergeScratch, add, split_by, sum_all, top_k_sum};
use brevity_compress::{SparseVec, SparseView};
use proptest::prelude::*;
use shapes::{shaped, total_order};

/// The entries of `dense` at random places, including explicit zeros.
fn thinned(dim: usize) -> impl Strategy<Value = SparseVec> {
    (shaped(dim..=dim), prop::collection::vec(any::<bool>(), dim)).prop_map(move |(dense, mask)| {
        let chosen = (0..).zip(dense).zip(mask).filter(|(_, chosen)| *chosen);
        let (indices, values) = chosen.map(|(entry, _)| entry).unzip();
        SparseVec::from_parts(dim, indices, values).unwrap()
    })
}

fn several() -> impl Strategy<Value = Vec<SparseVec>> {
    (1_usize..200).prop_flat_map(|dim| prop::collection::vec(thinned(dim), 1..9))
}

/// The non-zero elements of a dense sum in the order of `parts`.
fn dense_sum(parts: &[SparseVec]) -> Vec<(u32, f32)> {
    let mut sum = vec![0.0; parts[0].dim()];
    for part in parts {
        part.iter().for_each(|(index, value)| sum[index as usize] += value);
    }
    (0..).zip(sum).filter(|entry| entry.1 != 0.0).collect()
}

fn entries(sparse: &SparseVec) -> Vec<(u32, f32)> {
    // Validated again: `push` checks the order in debug builds only.
    SparseView::new(sparse.dim(), sparse.indices(), sparse.values()).unwrap().iter().collect()
}

proptest! {
    #[test]
    fn sums_are_dense_sums(parts in several()) {
        let views: Vec<_> = parts.iter().map(SparseVec::view).collect();
        let mut out = SparseVec::new(0);
        sum_all(&views, &mut out).unwrap();
        prop_assert_eq!(entries(&out), dense_sum(&parts));
        let pair = [&parts[0], &parts[parts.len() - 1]].map(SparseVec::clone);
        add(pair[0].view(), pair[1].view(), &mut out).unwrap();
        prop_assert_eq!(entries(&out), dense_sum(&pair));
    }

    #[test]
    fn gtop_k_operator_is_a_sort_of_the_sum(parts in several(), k in 0_usize..220) {
        let pair = [&parts[0], &parts[parts.len() - 1]].map(SparseVec::clone);
        let (mut kept, mut dropped) = (SparseVec::new(0), SparseVec::new(0));
        top_k_sum(pair[0].view(), pair[1].view(), k, &mut kept, &mut dropped, &mut MergeScratch::new())
            .unwrap();
        let mut first = dense_sum(&pair);
        first.sort_by(total_order);
        let mut last = first.split_off(k.min(first.len()));
        first.sort_by_key(|entry| entry.0);
        last.sort_by_key(|entry| entry.0);
        prop_assert_eq!(entries(&kept), first);
        prop_assert_eq!(entries(&dropped), last);
    }

    /// Windows of the dense sum follow the data: far apart, and across their edges.
    #[test]
    fn sums_do_not_depend_on_where_the_entries_lie(
        parts in several(),
        stride in 1_u32..20_000_000,
        start in 0_u32..90_000_000,
    ) {
        let spread = |part: &SparseVec| {
            let indices = part.indices().iter().map(|&index| start + index * stride).collect();
            SparseVec::from_parts(1 << 32, indices, part.values().to_vec()).unwrap()
        };
        prop_assume!(u64::from(stride) * 200 + u64::from(start) < 1 << 32);
        let moved: Vec<_> = parts.iter().map(spread).collect();
        let views: Vec<_> = moved.iter().map(SparseVec::view).collect();
        let mut out = SparseVec::new(0);
        sum_all(&views, &mut out).unwrap();
        let expected: Vec<_> = dense_sum(&parts).into_iter().map(|(i, v)| (start + i * stride, v)).collect();
        prop_assert_eq!(entries(&out), expected);
    }

    #[test]
    fn split_partitions(parts in several()) {
        let (a, keys) = (&parts[0], &parts[parts.len() - 1]);
        let (mut among, mut others) = (SparseVec::new(0), SparseVec::new(0));
        split_by(a.view(), keys.indices(), &mut among, &mut others);
        let (yes, no): (Vec<_>, Vec<_>) = a.iter().partition(|entry| keys.indices().contains(&entry.0));
        prop_assert_eq!(entries(&among), yes);
        prop_assert_eq!(entries(&others), no);
    }
}
