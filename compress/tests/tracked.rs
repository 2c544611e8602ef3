//! A residual with bounds of its blocks against one that reads all elements.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use brevity_compress::feedback::{Residual, Tracked, TrackedScratch};
use brevity_compress::generator::Generator;
use brevity_compress::select::TopKScratch;
use brevity_compress::{Error, SparseVec};
use proptest::prelude::*;
use shapes::shape;

/// Entries at random places of a vector of `n` elements.
fn entries(n: usize, count: usize, kind: usize, generator: &mut Generator) -> SparseVec {
    let mut indices: Vec<u32> = (0..count).map(|_| generator.below(n as u64) as u32).collect();
    indices.sort_unstable();
    indices.dedup();
    let values = shape(kind, indices.len(), generator.next_u64());
    SparseVec::from_parts(n, indices, values).unwrap()
}

proptest! {
    #[test]
    fn selections_are_those_of_a_scan(
        // Bounds are looked at 1024 at a time: those of 65,536 elements.
        n in prop_oneof![4 => 1usize..20_000, 1 => 65_000usize..140_000],
        kind in 0usize..10,
        per_step in 1usize..300,
        k in 0usize..400,
        seed in any::<u64>(),
    ) {
        let mut generator = Generator::new(seed);
        let (mut tracked, mut plain) = (Tracked::try_new(n).unwrap(), Residual::new(n));
        let (mut found, mut expected) = (SparseVec::new(0), SparseVec::new(0));
        let (mut scratch, mut shared) = (TopKScratch::new(), TrackedScratch::new());
        // One of another length, by the same scratch in turns.
        let mut other = Tracked::try_new(n / 2 + 1).unwrap();
        for step in 0..12 {
            for _ in 0..3 {
                let added = entries(n, per_step, kind, &mut generator);
                // One that lowers what was there makes bounds too high.
                let added = if step % 3 == 2 { negative(&plain, &added) } else { added };
                tracked.add(added.view()).unwrap();
                plain.put_back(added.view()).unwrap();
            }
            let added = entries(n / 2 + 1, per_step, kind, &mut generator);
            other.add(added.view()).unwrap();
            other.select(per_step, &mut found, &mut shared).unwrap();
            tracked.select(k, &mut found, &mut shared).unwrap();
            plain.select(k, &mut expected, &mut scratch).unwrap();
            prop_assert_eq!(&found, &expected, "step {}", step);
            prop_assert_eq!(tracked.values(), plain.values());
        }
        tracked.take_all(&mut found);
        plain.select(n, &mut expected, &mut scratch).unwrap();
        prop_assert_eq!(&found, &expected);
        prop_assert!(tracked.values().iter().all(|value| *value == 0.0));
    }
}

/// Entries that take most of what is at their places away.
fn negative(residual: &Residual, at: &SparseVec) -> SparseVec {
    let values = at.indices().iter().map(|index| residual.values()[*index as usize] * -0.75).collect();
    SparseVec::from_parts(at.dim(), at.indices().to_vec(), values).unwrap()
}

#[test]
fn bounds_that_are_all_too_high_are_found_so() {
    let n = 64 * 1000;
    let mut tracked = Tracked::try_new(n).unwrap();
    let every = |step: usize, value: f32| {
        let indices: Vec<u32> = (0..n as u32).step_by(step).collect();
        let values = vec![value; indices.len()];
        SparseVec::from_parts(n, indices, values).unwrap()
    };
    tracked.add(every(64, 100.0).view()).unwrap();
    tracked.add(every(64, -99.0).view()).unwrap();
    tracked.add(every(6400, 1.0).view()).unwrap();
    let mut found = SparseVec::new(0);
    let mut scratch = TrackedScratch::new();
    tracked.select(10, &mut found, &mut scratch).unwrap();
    assert_eq!(found, every(6400, 2.0));
    tracked.select(1, &mut found, &mut scratch).unwrap();
    assert_eq!((found.indices(), found.values()), (&[64][..], &[1.0][..]));
}

#[test]
fn a_sum_that_is_not_finite_leaves_the_residual_as_it_was() {
    let mut tracked = Tracked::try_new(100).unwrap();
    let add = |values: [f32; 3]| SparseVec::from_parts(100, vec![0, 70, 99], values.into()).unwrap();
    tracked.add(add([1.0, 3e38, -2.0]).view()).unwrap();
    let before = tracked.values().to_vec();
    let found = tracked.add(add([4.0, 3e38, 8.0]).view());
    assert_eq!(found, Err(Error::NonFinite { index: 70, value: f32::INFINITY }));
    assert_eq!(tracked.values(), before);
    assert!(tracked.add(add([f32::NAN, 0.0, 0.0]).view()).is_err());
    let other = SparseVec::new(99);
    assert_eq!(tracked.add(other.view()), Err(Error::LengthMismatch { expected: 100, found: 99 }));
    assert_eq!(tracked.values(), before);
}
