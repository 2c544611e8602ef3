//! Loops over long vectors that fetch several pages of memory in parallel.
//!
//! Most CPUs prefetch by themselves, but only to the end of a 4 KiB page, so a loop that reads page after
//! page waits at each. A loop that takes turns in stretches far apart fetches a page of each in parallel.
//! Where [pages are fetched ahead](pages::are_fetched_ahead), turns only cost.

use super::{pages, prefetch};

/// Bytes of a stretch: 65 KiB and not 64, since places in all stretches that are a power of two apart would
/// share sets of the nearest cache.
const STRETCH: usize = 65 << 10;
/// Stretches that are processed in turns.
const STRETCHES: usize = 6;
/// The prefetch distance of each stretch.
const AHEAD_BYTES: usize = 512;
/// The prefetch distance with a single stretch.
const ALONE_AHEAD_BYTES: usize = 2048;

/// The operation on a row of two vectors. A trait instead of a closure, because the method must be
/// `#[inline(always)]`: a function that is not inlined is compiled for the baseline.
pub(super) trait Each<T, const N: usize, U = T>: Copy {
    fn each(self, a: &mut [T; N], b: &[U; N]);
}

/// Applies the operation to every row of `a` and the matching row of `b`, up to the shorter length, in no
/// particular order.
#[inline(always)]
pub(super) fn side_by_side<T, const N: usize, U>(what: impl Each<T, N, U>, a: &mut [[T; N]], b: &[[U; N]]) {
    let rows = const { STRETCH / size_of::<[T; N]>() };
    let turn = STRETCHES * rows;
    let length = a.len().min(b.len());
    // One loop for what is left over and for all: this is inlined for every type and operation.
    let (turns, alone_ahead_bytes) =
        if pages::are_fetched_ahead() { (0, 0) } else { (length / turn, ALONE_AHEAD_BYTES) };
    let (a, a_rest) = a[..length].split_at_mut(turns * turn);
    let (b, b_rest) = b[..length].split_at(turns * turn);
    for (a, b) in a.chunks_exact_mut(turn).zip(b.chunks_exact(turn)) {
        for row in 0..rows {
            for stretch in 0..STRETCHES {
                let place = stretch * rows + row;
                prefetch(&a[place], AHEAD_BYTES);
                prefetch(&b[place], AHEAD_BYTES);
                what.each(&mut a[place], &b[place]);
            }
        }
    }
    for (a, b) in a_rest.iter_mut().zip(b_rest) {
        prefetch(a, alone_ahead_bytes);
        prefetch(b, alone_ahead_bytes);
        what.each(a, b);
    }
}
