//! Random places from a generator that all ranks share, so that indices need not be sent.

use crate::bits::check_finite;
use crate::error::check_addressable;
use crate::generator::Generator;
use crate::{Error, SparseVec};

/// Selects `k` random places; each set of `k` is equally likely (random K of Vogels et al., NeurIPS 2019,
/// appendix).
///
/// Ranks whose generators are in the same state select the same places, so only the values travel: `4 * k`
/// bytes, which an all-reduce can sum. Zeros are sent as well. Nothing is scaled: error feedback compensates
/// for the places not drawn. Cost: one read of `values`, and slightly more than `k` draws, or `n - k` draws
/// for `k` above `n / 2`.
///
/// # Errors
/// [`Error::NonFinite`] for the first value that is not finite, selected or not; [`Error::TooLong`]. `out` is
/// empty and `generator` unchanged then. `drawn` is work space, for reuse.
pub fn random_k(
    values: &[f32],
    k: usize,
    generator: &mut Generator,
    out: &mut SparseVec,
    drawn: &mut Vec<u32>,
) -> Result<(), Error> {
    let n = values.len();
    out.reset(n);
    check_addressable(n)?;
    check_finite(values)?;
    let k = k.min(n);
    if k <= n / 2 {
        draw(n, k, generator, drawn);
        drawn.iter().for_each(|&index| out.push(index, values[index as usize]));
        return Ok(());
    }
    out.reserve(k);
    draw(n, n - k, generator, drawn);
    let mut left_out = drawn.iter().copied().peekable();
    for (index, &value) in values.iter().enumerate() {
        if left_out.next_if_eq(&(index as u32)).is_none() {
            out.push(index as u32, value);
        }
    }
    Ok(())
}

/// Selects `k` consecutive places from a random one on, wrapping around at the end: each start is equally
/// likely (random block of Vogels et al., NeurIPS 2019, appendix). Only values travel, as with [`random_k`].
/// Cost: one read of `values`, one draw.
///
/// # Errors
/// The same as for [`random_k`].
pub fn random_block(
    values: &[f32],
    k: usize,
    generator: &mut Generator,
    out: &mut SparseVec,
) -> Result<(), Error> {
    let n = values.len();
    out.reset(n);
    check_addressable(n)?;
    check_finite(values)?;
    let k = k.min(n);
    let start = generator.below(n as u64) as usize;
    let (behind, wrapped) = ((start + k).min(n), (start + k).saturating_sub(n));
    out.reserve(k);
    for index in (0..wrapped).chain(start..behind) {
        out.push(index as u32, values[index]);
    }
    Ok(())
}

/// Draws `count` different indices below `n` and sorts them; `count` is at most half of `n`. By symmetry,
/// each set is equally likely.
fn draw(n: usize, count: usize, generator: &mut Generator, drawn: &mut Vec<u32>) {
    drawn.clear();
    while drawn.len() < count {
        let missing = count - drawn.len();
        drawn.extend((0..missing).map(|_| generator.below(n as u64) as u32));
        drawn.sort_unstable();
        drawn.dedup();
    }
}
