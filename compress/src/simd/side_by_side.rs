//! Loops over long vectors that have several pages of memory on their way at a time.
//!
//! The CPU fetches ahead by itself, but only up to the end of a page of 4 KiB: a loop that goes through one page after the other
//! waits at each. One that takes turns in stretches far apart has a page of each under way. (Measured with 25 million elements:
//! `a += b` of `f32` takes 0.86 of the time of a plain loop; of 16 bits 0.94 of that of one which asks for memory ahead.)

use super::prefetch;

/// Bytes of a stretch.
const STRETCH: usize = 64 << 10;
/// Stretches that are worked on in turns.
const STRETCHES: usize = 6;
/// How far ahead of its use each asks for memory.
const AHEAD_BYTES: usize = 512;
/// The same where there is but one.
const ALONE_AHEAD_BYTES: usize = 2048;

/// Calls `each` for every row of `a` and the same of `b`, as far as the shorter of the two reaches, in no order.
#[inline(always)]
pub(super) fn side_by_side<T, const N: usize>(a: &mut [[T; N]], b: &[[T; N]], each: impl Fn(&mut [T; N], &[T; N])) {
    let each = |a: &mut [T; N], b: &[T; N], ahead_bytes| {
        prefetch(a, ahead_bytes);
        prefetch(b, ahead_bytes);
        each(a, b);
    };
    let rows = const { STRETCH / size_of::<[T; N]>() };
    let length = a.len().min(b.len());
    let (mut turns, mut b_turns) =
        (a[..length].chunks_exact_mut(STRETCHES * rows), b[..length].chunks_exact(STRETCHES * rows));
    for (a, b) in turns.by_ref().zip(b_turns.by_ref()) {
        for row in 0..rows {
            for stretch in 0..STRETCHES {
                let place = stretch * rows + row;
                each(&mut a[place], &b[place], AHEAD_BYTES);
            }
        }
    }
    let rest = turns.into_remainder().iter_mut().zip(b_turns.remainder());
    rest.for_each(|(a, b)| each(a, b, ALONE_AHEAD_BYTES));
}
