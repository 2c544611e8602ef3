//! One pass that collects what passes a threshold, up to a limit.

use crate::bits::INFINITE;
use crate::error::check_addressable;
use crate::generator::Generator;
use crate::simd::{BLOCK, Level, copy_out};
use crate::{Error, SparseVec};

/// Candidates that are copied at a time.
const AT_A_TIME: usize = 1024;

/// The outcome of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passing {
    /// All values were read, and all that pass are in `out`.
    All,
    /// More than `limit` values pass. `out` is not a selection.
    TooMany,
}

/// Replaces `out` by the values whose magnitude, as bits, is at least `bound` (1 or more).
///
/// # Errors
/// [`Error::NonFinite`] for the first such value that the pass reaches, [`Error::TooLong`]. `out` is empty
/// then.
pub(super) fn collect_passing(
    values: &[f32],
    bound: u32,
    limit: usize,
    out: &mut SparseVec,
) -> Result<Passing, Error> {
    out.reset(values.len());
    check_addressable(values.len())?;
    let (level, mut done) = (Level::best(), 0);
    let (mut bits, mut indices) = ([0; AT_A_TIME + BLOCK], [0; AT_A_TIME + BLOCK]);
    while done < values.len() {
        let pass = copy_out(level, &values[done..], done as u32, bound.max(1), &mut bits, &mut indices);
        let (bits, indices) = (&bits[..pass.found], &indices[..pass.found]);
        if let Some(place) = bits.iter().position(|bits| bits & 0x7fff_ffff >= INFINITE) {
            out.clear();
            return Err(Error::NonFinite {
                index: indices[place] as usize,
                value: f32::from_bits(bits[place]),
            });
        }
        if out.len() + pass.found > limit {
            return Ok(Passing::TooMany);
        }
        out.extend_from_bits(indices, bits);
        done += pass.done;
    }
    Ok(Passing::All)
}

/// The magnitude, as bits, that `k` of `values` reach on average, from a sample of a thousandth of the
/// values, at least 1,024; or one in as many values as the sample has and one more, if that is more than `k`.
/// `drawn` is work space.
///
/// Of `s` drawn values, the one with rank `j` is reached by a share of `j / (s + 1)` of all on average. So
/// `j` is `k (s + 1) / n`, rounded at random in proportion to its fraction.
pub(super) fn sampled_threshold(
    values: &[f32],
    k: usize,
    generator: &mut Generator,
    drawn: &mut Vec<u32>,
) -> u32 {
    let n = values.len();
    let k = k.min(n);
    let count = (n / 1000).max(1024).min(n);
    drawn.clear();
    drawn.extend((0..count).map(|_| crate::bits::magnitude(values[generator.below(n as u64) as usize])));
    let all = n.max(1) as u128;
    let product = k as u128 * (count as u128 + 1);
    let rounded_up = u128::from(generator.below(n as u64)) < product % all;
    match (product / all) as usize + usize::from(rounded_up) {
        _ if k == 0 => INFINITE,
        // More than the sample: every value that is not 0.
        rank if rank > count => 1,
        rank => (*drawn.select_nth_unstable(count - rank.max(1)).1).clamp(1, INFINITE),
    }
}
