//! A tile in the first-level cache.

use super::super::lanes::{Block, LANES, Simd};
use super::super::{Level, prefetch_line};
use super::for_columns;
use super::tiles::{BLOCKS, GROUP, Panel, TILE, Tile, Totals};
use crate::dense::Element;

/// A tile's rows, aligned to cache lines. Rows are padded with zeros to whole blocks.
pub(super) struct Strip(pub(super) [[Block; BLOCKS]; GROUP]);

impl Strip {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([[Block::ZERO; BLOCKS]; GROUP])
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.0 = [[Block::ZERO; BLOCKS]; GROUP];
    }

    /// Reads a tile of `m`.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, s: S, m: &[f32], cols: usize, tile: Tile) {
        for (r, row) in self.0[..tile.height].iter_mut().enumerate() {
            let (whole, rest) = part(m, cols, tile, r).as_chunks::<LANES>();
            for (from, to) in whole.iter().zip(&mut *row) {
                s.store(s.load(from), &mut to.0);
            }
            if !rest.is_empty() {
                let last = &mut row[whole.len()];
                *last = Block::ZERO;
                last.0[..rest.len()].copy_from_slice(rest);
            }
        }
    }

    /// Adds a tile of `gradient`.
    #[inline(always)]
    pub(super) fn add<S: Simd, G: Element>(
        &mut self,
        s: S,
        level: Level,
        gradient: &[G],
        cols: usize,
        tile: Tile,
    ) {
        let mut converted = [0.0; TILE];
        for (r, row) in self.0[..tile.height].iter_mut().enumerate() {
            let values = part(gradient, cols, tile, r);
            let values = G::as_f32(values).unwrap_or_else(|| {
                G::to_f32(level, values, &mut converted);
                &converted[..values.len()]
            });
            let (whole, rest) = values.as_chunks::<LANES>();
            for (from, to) in whole.iter().zip(&mut *row) {
                s.store(s.add(s.load(&to.0), s.load(from)), &mut to.0);
            }
            if !rest.is_empty() {
                row[whole.len()].0.iter_mut().zip(rest).for_each(|(to, from)| *to += from);
            }
        }
    }

    /// Writes a tile into `m`, and prefetches the next one.
    #[inline(always)]
    pub(super) fn write<S: Simd>(&self, s: S, m: &mut [f32], cols: usize, tile: Tile) {
        let (all, next) = (m.as_ptr(), tile.next_start(cols));
        for (r, row) in self.0[..tile.height].iter().enumerate() {
            let (whole, rest) =
                m[(tile.row + r) * cols + tile.column..][..tile.width].as_chunks_mut::<LANES>();
            let blocks = whole.len();
            for (j, (to, from)) in whole.iter_mut().zip(row).enumerate() {
                prefetch_line(all.wrapping_add(next + r * cols + j * LANES));
                s.store(s.load(&from.0), to);
            }
            if !rest.is_empty() {
                let length = rest.len();
                rest.copy_from_slice(&row[blocks].0[..length]);
            }
        }
    }

    /// Writes a tile into `m` past the caches: without reading `m`, which no later tile needs.
    #[inline(always)]
    pub(super) fn write_past_caches<S: Simd>(&self, s: S, m: &mut [f32], cols: usize, tile: Tile) {
        for (r, row) in self.0[..tile.height].iter().enumerate() {
            let to = &mut m[(tile.row + r) * cols + tile.column..][..tile.width];
            let from: &[f32] = bytemuck::cast_slice(row);
            let (head, lines, tail) = bytemuck::pod_align_to_mut::<f32, Block>(to);
            let (before, from) = from[..tile.width].split_at(head.len());
            let (whole, after) = from.split_at(lines.len() * LANES);
            head.copy_from_slice(before);
            for (line, from) in lines.iter_mut().zip(whole.as_chunks().0) {
                s.store_past_caches(s.load(from), line);
            }
            tail.copy_from_slice(after);
        }
    }

    #[inline(always)]
    pub(super) fn is_finite(&self, tile: Tile) -> bool {
        self.0[..tile.height].iter().all(|row| row[..tile.blocks()].iter().all(|block| block.is_finite()))
    }

    /// Adds the dot products of the rows with the panel's columns to `totals`, and prefetches the next tile
    /// of two matrices.
    #[inline(always)]
    pub(super) fn dots<S: Simd, G: Element>(
        &self,
        s: S,
        panel: &Panel,
        rank: usize,
        totals: &mut Totals,
        tile: Tile,
        ahead: Ahead<'_, G>,
    ) {
        let mut first = 0;
        while first < rank {
            // As many sums as fit the registers, rows times columns. Another shape gives the same bits.
            first += match (rank - first, S::SUMS) {
                (8.., 16) => self.dots_with::<S, G, 2, 8>(s, panel, rank, first, totals, tile, ahead),
                (4.., 16) => self.dots_with::<S, G, 4, 4>(s, panel, rank, first, totals, tile, ahead),
                (2.., 16) => self.dots_with::<S, G, 4, 2>(s, panel, rank, first, totals, tile, ahead),
                (_, 16) => self.dots_with::<S, G, 4, 1>(s, panel, rank, first, totals, tile, ahead),
                (2.., 4) => self.dots_with::<S, G, 2, 2>(s, panel, rank, first, totals, tile, ahead),
                (_, 4) => self.dots_with::<S, G, 4, 1>(s, panel, rank, first, totals, tile, ahead),
                _ => self.dots_with::<S, G, 2, 1>(s, panel, rank, first, totals, tile, ahead),
            };
        }
    }

    /// [`dots`](Self::dots) with `C` columns, `R` rows at a time. Returns `C`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "inlined")]
    fn dots_with<S: Simd, G: Element, const R: usize, const C: usize>(
        &self,
        s: S,
        panel: &Panel,
        rank: usize,
        first: usize,
        totals: &mut Totals,
        tile: Tile,
        ahead: Ahead<'_, G>,
    ) -> usize {
        let columns = panel.columns::<C>(first, tile);
        let next = tile.next_start(ahead.2);
        let mut r = 0;
        while r + R <= tile.height {
            let mut rows = [&self.0[0]; R];
            (0..R).for_each(|i| rows[i] = &self.0[r + i]);
            let totals = &mut totals.0[r * rank + first..];
            dot_block(s, rows, columns, totals, rank, ahead, next + r * ahead.2);
            r += R;
        }
        while r < tile.height {
            let totals = &mut totals.0[r * rank + first..];
            dot_block(s, [&self.0[r]], columns, totals, rank, ahead, next + r * ahead.2);
            r += 1;
        }
        C
    }

    /// Adds `sign * P Q^T`.
    #[inline(always)]
    pub(super) fn add_product<S: Simd>(
        &mut self,
        s: S,
        p: &[f32],
        sign: f32,
        panel: &Panel,
        rank: usize,
        tile: Tile,
    ) {
        for_columns!(rank, first, COLUMNS => {
            let columns = panel.columns::<COLUMNS>(first, tile);
            let p = &p[tile.row * rank + first..];
            match &mut self.0 {
                [a, b, c, d] if tile.height == GROUP => {
                    if COLUMNS == 8 {
                        add_product_block(s, [a, b], p, sign, columns, rank);
                        add_product_block(s, [c, d], &p[2 * rank..], sign, columns, rank);
                    } else {
                        add_product_block(s, [a, b, c, d], p, sign, columns, rank);
                    }
                }
                rows => {
                    for (r, row) in rows[..tile.height].iter_mut().enumerate() {
                        add_product_block(s, [row], &p[r * rank..], sign, columns, rank);
                    }
                }
            }
        });
    }
}

/// Two matrices whose next tiles will be read, and their row length.
pub(super) type Ahead<'a, G> = (&'a [f32], &'a [G], usize);

/// The part of a row that belongs to a tile.
#[inline(always)]
pub(super) fn part<T>(m: &[T], cols: usize, tile: Tile, r: usize) -> &[T] {
    &m[(tile.row + r) * cols + tile.column..][..tile.width]
}

/// Adds the dot products of `R` rows with `C` columns to `totals`, whose rows have `rank` elements.
#[inline(always)]
fn dot_block<S: Simd, G, const R: usize, const C: usize>(
    s: S,
    rows: [&[Block; BLOCKS]; R],
    columns: [&[Block]; C],
    totals: &mut [Block],
    rank: usize,
    (m, gradient, cols): Ahead<'_, G>,
    next: usize,
) {
    let (columns, blocks) = of_one_length(columns);
    let mut sums = [[s.splat(0.0); C]; R];
    for j in 0..blocks {
        let mut row = [s.splat(0.0); R];
        for r in 0..R {
            row[r] = s.load(&rows[r][j].0);
            let place = next + r * cols + j * LANES;
            prefetch_line(m.as_ptr().wrapping_add(place));
            for line in 0..size_of::<[G; LANES]>().div_ceil(64) {
                prefetch_line(gradient.as_ptr().wrapping_add(place).cast::<u8>().wrapping_add(64 * line));
            }
        }
        for c in 0..C {
            let column = s.load(&columns[c][j].0);
            for r in 0..R {
                sums[r][c] = s.add(sums[r][c], s.multiply(row[r], column));
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            let total = &mut totals[r * rank + c].0;
            s.store(s.add(s.load(total), sums[r][c]), total);
        }
    }
}

/// Adds `sign` times `R` rows of `p`, of `rank` elements, times `C` columns.
#[inline(always)]
fn add_product_block<S: Simd, const R: usize, const C: usize>(
    s: S,
    rows: [&mut [Block; BLOCKS]; R],
    p: &[f32],
    sign: f32,
    columns: [&[Block]; C],
    rank: usize,
) {
    let (columns, blocks) = of_one_length(columns);
    let mut factors = [[s.splat(0.0); C]; R];
    for r in 0..R {
        for c in 0..C {
            factors[r][c] = s.splat(sign * p[r * rank + c]);
        }
    }
    for j in 0..blocks {
        // The whole dot product is computed first, because its target may be much larger than the difference.
        let mut sums = [s.splat(0.0); R];
        let column = s.load(&columns[0][j].0);
        for r in 0..R {
            sums[r] = s.multiply(factors[r][0], column);
        }
        for c in 1..C {
            let column = s.load(&columns[c][j].0);
            for r in 0..R {
                sums[r] = s.add(sums[r], s.multiply(factors[r][c], column));
            }
        }
        for r in 0..R {
            let row = &mut rows[r][j].0;
            s.store(s.add(s.load(row), sums[r]), row);
        }
    }
}

/// The same columns, shown to have one length, which is at most that of a tile's rows.
#[inline(always)]
fn of_one_length<const C: usize>(mut columns: [&[Block]; C]) -> ([&[Block]; C], usize) {
    let blocks = columns[0].len().min(BLOCKS);
    for column in &mut columns {
        *column = &column[..blocks];
    }
    (columns, blocks)
}
