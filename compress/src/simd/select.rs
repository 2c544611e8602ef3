//! Collects the candidates of a selection in one pass over dense memory.
//!
//! A candidate is a value whose magnitude, as bits, is at least a bound of 1 or more. Values that are not
//! finite are above every bound, so the same comparison finds them.

#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::{Level, per_level};
use crate::bits::{INFINITE, magnitude};

/// Values that are processed between two checks of the room for candidates.
pub(crate) const BLOCK: usize = 64;

/// The progress of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Values processed.
    pub(crate) done: usize,
    /// Candidates written.
    pub(crate) found: usize,
}

/// `r += g`, and moves the candidates among the sums out: their bits and their indices, counted from `first`
/// on, go to the beginning of `bits` and `indices`, in order, and `r` gets a zero in their place. If a sum is
/// not finite, `r` keeps its old value, and the sum is written as a candidate.
///
/// Ends with the shorter of `r` and `g`, or when less than a [`BLOCK`] of room is left. May overwrite what is
/// after the candidates in `bits` and `indices`.
pub(crate) fn add_and_take(
    level: Level,
    r: &mut [f32],
    g: &[f32],
    first: u32,
    bound: u32,
    bits: &mut [u32],
    indices: &mut [u32],
) -> Pass {
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::add_and_take(r, g, first, bound, bits, indices) },
        _ => add_and_take_in_one_body(level, r, g, first, bound, bits, indices),
    }
}

/// Copies the candidates among `values`, like [`add_and_take`].
pub(crate) fn copy_out(
    level: Level,
    values: &[f32],
    first: u32,
    bound: u32,
    bits: &mut [u32],
    indices: &mut [u32],
) -> Pass {
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::copy_out(values, first, bound, bits, indices) },
        _ => copy_out_in_one_body(level, values, first, bound, bits, indices),
    }
}

per_level! {
    fn add_and_take_in_one_body(
        r: &mut [f32], g: &[f32], first: u32, bound: u32, bits: &mut [u32], indices: &mut [u32],
    ) -> Pass {
        let len = r.len().min(g.len());
        let mut pass = Pass { done: 0, found: 0 };
        for (r, g) in r[..len].chunks_mut(BLOCK).zip(g[..len].chunks(BLOCK)) {
            let Some(room) = room(bits, indices, pass.found) else { break };
            let mut sums = [0.0; BLOCK];
            sums.iter_mut().zip(&*r).zip(g).for_each(|((sum, r), g)| *sum = r + g);
            let sums = &sums[..r.len()];
            if any_reaches(sums, bound) {
                pass.found += append(sums, first + pass.done as u32, bound, room);
                for (r, &sum) in r.iter_mut().zip(sums) {
                    let magnitude = magnitude(sum);
                    let instead = if magnitude < INFINITE { 0.0 } else { *r };
                    *r = if magnitude < bound { sum } else { instead };
                }
            } else {
                r.copy_from_slice(sums);
            }
            pass.done += r.len();
        }
        pass
    }
}

per_level! {
    fn copy_out_in_one_body(
        values: &[f32], first: u32, bound: u32, bits: &mut [u32], indices: &mut [u32],
    ) -> Pass {
        let mut pass = Pass { done: 0, found: 0 };
        for block in values.chunks(BLOCK) {
            let Some(room) = room(bits, indices, pass.found) else { break };
            if any_reaches(block, bound) {
                pass.found += append(block, first + pass.done as u32, bound, room);
            }
            pass.done += block.len();
        }
        pass
    }
}

/// Room for a block of candidates after the `found` ones, if there is enough.
#[inline(always)]
fn room<'a>(
    bits: &'a mut [u32],
    indices: &'a mut [u32],
    found: usize,
) -> Option<(&'a mut [u32; BLOCK], &'a mut [u32; BLOCK])> {
    Some((bits.get_mut(found..)?.first_chunk_mut()?, indices.get_mut(found..)?.first_chunk_mut()?))
}

/// Whether a magnitude of the block is at least `bound`. The comparison is signed, because SSE2 has only
/// that.
#[inline(always)]
fn any_reaches(block: &[f32], bound: u32) -> bool {
    block.iter().fold(false, |any, &value| any | (magnitude(value) as i32 >= bound as i32))
}

/// Writes bits and index of the candidates of a block that begins with index `first`, and returns their
/// number.
#[inline(always)]
fn append(block: &[f32], first: u32, bound: u32, room: (&mut [u32; BLOCK], &mut [u32; BLOCK])) -> usize {
    let mut count = 0;
    for (lane, &value) in block.iter().enumerate() {
        // Always written, but counted only if it is a candidate: no branch to mispredict.
        room.0[count] = value.to_bits();
        room.1[count] = first + lane as u32;
        count += usize::from(magnitude(value) >= bound);
    }
    count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generator::Generator;
    use crate::simd::pages;

    /// Values that often reach a bound, and some that are not finite.
    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -4.0_f32..4.0,
            1 => any::<u32>().prop_map(f32::from_bits),
            1 => prop::sample::select(
                vec![0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45],
            ),
        ]
    }

    fn bound() -> impl Strategy<Value = u32> {
        prop_oneof![(0.0_f32..5.0).prop_map(|v| v.to_bits().max(1)), Just(1), Just(INFINITE), 1..=INFINITE]
    }

    /// The definition, element by element.
    fn expected(r: &mut [f32], g: &[f32], first: u32, bound: u32) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        for (i, (r, g)) in r.iter_mut().zip(g).enumerate() {
            let sum = *r + g;
            if sum.abs().to_bits() < bound {
                *r = sum;
            } else {
                found.push((first + i as u32, canonical(sum)));
                *r = if sum.is_finite() { 0.0 } else { *r };
            }
        }
        found
    }

    /// The bits, with all NaNs mapped to one.
    fn canonical(value: f32) -> u32 {
        if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
    }

    fn entries(bits: &[u32], indices: &[u32], count: usize) -> Vec<(u32, u32)> {
        indices.iter().zip(bits).take(count).map(|(&i, &b)| (i, canonical(f32::from_bits(b)))).collect()
    }

    proptest! {
        #[test]
        fn every_level_takes_alike(
            pairs in prop::collection::vec((value(), value()), 0..400),
            bound in bound(),
        ) {
            let (r, g): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let mut rest = r.clone();
            let found = expected(&mut rest, &g, 7, bound);
            for level in Level::available() {
                let mut left = r.clone();
                let room = r.len() + BLOCK;
                let (mut bits, mut indices) = (vec![0; room], vec![0; room]);
                let pass = add_and_take(level, &mut left, &g, 7, bound, &mut bits, &mut indices);
                prop_assert_eq!(pass, Pass { done: r.len(), found: found.len() }, "{}", level.name());
                prop_assert_eq!(entries(&bits, &indices, pass.found), found.clone(), "{}", level.name());
                let bits_of = |values: &[f32]| values.iter().map(|&v| canonical(v)).collect::<Vec<_>>();
                prop_assert_eq!(bits_of(&left), bits_of(&rest), "{}", level.name());
            }
        }

        #[test]
        fn every_level_copies_alike(values in prop::collection::vec(value(), 0..400), bound in bound()) {
            let found = expected(&mut vec![0.0; values.len()], &values, 7, bound);
            for level in Level::available() {
                let room = values.len() + BLOCK;
                let (mut bits, mut indices) = (vec![0; room], vec![0; room]);
                let pass = copy_out(level, &values, 7, bound, &mut bits, &mut indices);
                prop_assert_eq!(pass, Pass { done: values.len(), found: found.len() }, "{}", level.name());
                prop_assert_eq!(entries(&bits, &indices, pass.found), found.clone(), "{}", level.name());
            }
        }

        /// A pass that ends for lack of room continues where it ended.
        #[test]
        fn passes_in_pieces_are_one_pass(
            pairs in prop::collection::vec((value(), value()), 0..700),
            bound in bound(),
            room in 64_usize..300,
        ) {
            let (r, g): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let mut rest = r.clone();
            let expected = expected(&mut rest, &g, 0, bound);
            for level in Level::available() {
                let (mut left, mut found, mut from) = (r.clone(), Vec::new(), 0);
                while from < r.len() {
                    let (mut bits, mut indices) = (vec![0; room], vec![0; room]);
                    let pass = add_and_take(
                        level,
                        &mut left[from..],
                        &g[from..],
                        from as u32,
                        bound,
                        &mut bits,
                        &mut indices,
                    );
                    prop_assert!(pass.done > 0 && pass.found <= room, "{}", level.name());
                    found.extend(entries(&bits, &indices, pass.found));
                    from += pass.done;
                }
                prop_assert_eq!(&found, &expected, "{}", level.name());
            }
        }
    }

    fn take_from_many_pages(n: usize, seed: u64, bound: u32, room: usize) {
        let mut generator = Generator::new(seed);
        let (mut r, mut g) = (vec![0.0; n], vec![0.0; n]);
        generator.fill_normal(&mut r);
        generator.fill_normal(&mut g);
        g[n / 2] = f32::INFINITY;
        let mut rest = r.clone();
        let expected = expected(&mut rest, &g, 7, bound);
        for level in Level::available() {
            let (mut left, mut found, mut from) = (r.clone(), Vec::new(), 0);
            while from < n {
                let (mut bits, mut indices) = (vec![0; room], vec![0; room]);
                let (r, g, first) = (&mut left[from..], &g[from..], 7 + from as u32);
                let pass = add_and_take(level, r, g, first, bound, &mut bits, &mut indices);
                assert!(pass.done > 0 && pass.found <= room, "{}", level.name());
                found.extend(entries(&bits, &indices, pass.found));
                from += pass.done;
            }
            assert_eq!(found, expected, "{}", level.name());
            assert_eq!(left, rest, "{}", level.name());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        /// Covers lengths for which several pages are processed in parallel, with room for all candidates or
        /// less.
        #[test]
        fn every_level_takes_alike_from_many_pages(
            n in 65_000_usize..75_000,
            seed: u64,
            bound in prop_oneof![0.1_f32..4.0, Just(4.5)],
            room in 4100_usize..75_000,
        ) {
            pages::tests::on_both(|| take_from_many_pages(n, seed, bound.to_bits(), room));
        }
    }
}
