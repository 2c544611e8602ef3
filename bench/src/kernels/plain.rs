//! Plain implementations that kernels are checked against before they are timed: one value at a time, with no
//! code of the kernels.

use brevity::compress::SparseVec;
use brevity::compress::dense::Element;
use half::{bf16, f16};

/// Numbers that are added and rounded one by one.
pub(super) trait Plain: Element {
    fn plain_sum(a: Self, b: Self) -> Self;
    fn plain_from(value: f32) -> Self;
    fn plain_f32(self) -> f32;
}

impl Plain for f32 {
    fn plain_sum(a: Self, b: Self) -> Self {
        a + b
    }

    fn plain_from(value: f32) -> Self {
        value
    }

    fn plain_f32(self) -> f32 {
        self
    }
}

impl Plain for f64 {
    fn plain_sum(a: Self, b: Self) -> Self {
        a + b
    }

    fn plain_from(value: f32) -> Self {
        value.into()
    }

    fn plain_f32(self) -> f32 {
        self as f32
    }
}

macro_rules! plain_half {
    ($type:ty) => {
        impl Plain for $type {
            fn plain_sum(a: Self, b: Self) -> Self {
                Self::from_f32_const(a.to_f32_const() + b.to_f32_const())
            }

            fn plain_from(value: f32) -> Self {
                Self::from_f32_const(value)
            }

            fn plain_f32(self) -> f32 {
                self.to_f32_const()
            }
        }
    };
}

plain_half!(bf16);
plain_half!(f16);

/// The indices of the `k` entries of largest magnitude, rising; of equal magnitudes the first ones.
pub(super) fn top_k(values: impl Iterator<Item = f32>, k: usize) -> Vec<u32> {
    let mut order: Vec<(u32, u32)> = (0..).zip(values).map(|(i, v)| (!v.abs().to_bits(), i)).collect();
    let k = k.min(order.len());
    if k < order.len() {
        order.select_nth_unstable(k);
    }
    let mut indices: Vec<u32> = order[..k].iter().map(|&(_, index)| index).collect();
    indices.sort_unstable();
    indices
}

/// Whether these are unchanged entries of `values`.
pub(super) fn are_of(entries: &SparseVec, values: &[f32]) -> bool {
    entries.iter().all(|(index, value)| values.get(index as usize) == Some(&value))
}

/// Whether these are the `k` largest entries of `values`.
pub(super) fn are_top_k(entries: &SparseVec, values: &[f32], k: usize) -> bool {
    are_of(entries, values) && entries.indices() == top_k(values.iter().copied(), k)
}

/// Whether these are all entries of `values` that are at least as large as the smallest of them, and nothing
/// else.
pub(super) fn are_those_above(entries: &SparseVec, values: &[f32]) -> bool {
    let least = entries.values().iter().fold(f32::INFINITY, |least, value| least.min(value.abs()));
    are_of(entries, values) && values.iter().filter(|value| value.abs() >= least).count() == entries.len()
}
