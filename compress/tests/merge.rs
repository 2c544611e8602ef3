//! Sparse sums against dense ones.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use std::collections::{BTreeMap, BTreeSet};

use brevity_compress::generator::Generator;
use brevity_compress::merge::{MergeScratch, OrderedScratch, add, split_by, sum_in_order, top_k_sum};
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

/// Up to 33 vectors.
fn many() -> impl Strategy<Value = Vec<SparseVec>> {
    (1_usize..100).prop_flat_map(|dim| prop::collection::vec(thinned(dim), 1..34))
}

/// The sum in the fixed order, by its definition in docs/algorithms.md.
fn in_order(x: &[f32]) -> f32 {
    let members = 1 << x.len().ilog2();
    let mut y: Vec<f32> =
        (0..members).map(|i| x.get(members + i).map_or(x[i], |guest| x[i] + guest)).collect();
    while y.len() > 1 {
        y = y.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    y[0]
}

/// The non-zero elements of the dense sum of `parts`, in the fixed order.
fn dense_sum(parts: &[SparseVec]) -> Vec<(u32, f32)> {
    let dense: Vec<_> = parts.iter().map(SparseVec::to_dense).collect();
    let sums = (0..parts[0].dim()).map(|i| in_order(&dense.iter().map(|x| x[i]).collect::<Vec<_>>()));
    (0..).zip(sums).filter(|entry| entry.1 != 0.0).collect()
}

/// The same, where the dense vectors are too long.
fn mapped_sum(parts: &[SparseVec]) -> Vec<(u32, f32)> {
    let maps: Vec<BTreeMap<_, _>> = parts.iter().map(|part| part.iter().collect()).collect();
    let indices: BTreeSet<u32> = maps.iter().flat_map(|map| map.keys().copied()).collect();
    let sum = |index| {
        (index, in_order(&maps.iter().map(|map| map.get(&index).copied().unwrap_or(0.0)).collect::<Vec<_>>()))
    };
    indices.into_iter().map(sum).filter(|entry| entry.1 != 0.0).collect()
}

fn sum(parts: &[SparseVec], out: &mut SparseVec, scratch: &mut OrderedScratch) {
    let views: Vec<_> = parts.iter().map(SparseVec::view).collect();
    sum_in_order(&views, out, scratch).unwrap();
}

/// Entries with their bits.
fn bits(entries: Vec<(u32, f32)>) -> Vec<(u32, u32)> {
    entries.into_iter().map(|(index, value)| (index, value.to_bits())).collect()
}

/// Values of such sizes that each order of a sum gives other bits; some cancel.
fn rough(generator: &mut Generator) -> f32 {
    let size = [1e8, 1.0, -1e8, 3e-8][generator.below(4) as usize];
    size * (1.0 + generator.below(4) as f32 / 4.0)
}

fn entries(sparse: &SparseVec) -> Vec<(u32, f32)> {
    // Validated again: `push` checks the order in debug builds only.
    SparseView::new(sparse.dim(), sparse.indices(), sparse.values()).unwrap().iter().collect()
}

proptest! {
    #[test]
    fn sums_are_dense_sums(parts in many()) {
        let (mut out, mut scratch) = (SparseVec::new(0), OrderedScratch::new());
        sum(&parts, &mut out, &mut scratch);
        prop_assert_eq!(bits(entries(&out)), bits(dense_sum(&parts)));
        // Fewer, in memory that has been used.
        let fewer = &parts[parts.len() / 2..];
        sum(fewer, &mut out, &mut scratch);
        prop_assert_eq!(bits(entries(&out)), bits(dense_sum(fewer)));
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

    #[test]
    fn sums_do_not_depend_on_where_the_entries_lie(
        parts in many(),
        stride in 1_u32..40_000_000,
        start in 0_u32..90_000_000,
    ) {
        let spread = |part: &SparseVec| {
            let indices = part.indices().iter().map(|&index| start + index * stride).collect();
            SparseVec::from_parts(1 << 32, indices, part.values().to_vec()).unwrap()
        };
        let moved: Vec<_> = parts.iter().map(spread).collect();
        let mut out = SparseVec::new(0);
        sum(&moved, &mut out, &mut OrderedScratch::new());
        prop_assert_eq!(bits(entries(&out)), bits(mapped_sum(&moved)));
        let expected = dense_sum(&parts).into_iter().map(|(i, v)| (start + i * stride, v)).collect();
        prop_assert_eq!(bits(entries(&out)), bits(expected));
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

/// Lists that are long enough for all ways of merging, and sums whose bits show their order.
#[test]
fn every_number_of_vectors_is_summed_in_the_fixed_order() {
    let mut generator = Generator::new(11);
    let (mut out, mut scratch) = (SparseVec::new(0), OrderedScratch::new());
    let mut others = 0;
    for count in 1..=33 {
        for density in [1, 3, 40] {
            let vector = |_| {
                let mut vector = SparseVec::new(4000);
                for index in 0..4000 {
                    if generator.below(density) == 0 {
                        vector.push(index, rough(&mut generator));
                    }
                }
                vector
            };
            let parts: Vec<_> = (0..count).map(vector).collect();
            sum(&parts, &mut out, &mut scratch);
            let expected = bits(dense_sum(&parts));
            assert_eq!(bits(entries(&out)), expected, "{count} vectors, one of {density}");
            let mut one_by_one = vec![0.0; 4000];
            parts.iter().for_each(|part| part.add_to(&mut one_by_one));
            let one_by_one = (0..).zip(one_by_one).filter(|entry| entry.1 != 0.0).collect();
            others += usize::from(bits(one_by_one) != expected);
        }
    }
    assert!(others > 80, "only {others} of 99 sums have other bits in the order of the vectors");
}
