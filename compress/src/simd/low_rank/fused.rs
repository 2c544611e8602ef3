//! A whole tile of [`accumulate`](super::accumulate) in one loop, for small ranks: each value is loaded,
//! changed and multiplied while it is in a register. The order of additions is that of the single steps.

use super::super::lanes::{Block, LANES, Simd};
use super::super::prefetch_line;
use super::strip::{Ahead, Strip, part};
use super::tiles::{BLOCKS, GROUP, Panel, Tile, Totals};

/// The product to subtract, and the factor to multiply with.
pub(super) struct Factors<'a> {
    /// `P'`.
    pub(super) p: &'a [f32],
    pub(super) pending_q: &'a Panel,
    pub(super) q: &'a Panel,
    pub(super) rank: usize,
}

impl Strip {
    /// [`read`](Self::read), [`add_product`](Self::add_product), [`add`](Self::add) and [`dots`](Self::dots),
    /// if tile and rank allow it. Returns whether they did.
    #[inline(always)]
    pub(super) fn accumulate<S: Simd>(
        &mut self,
        s: S,
        matrices: Ahead<'_, f32>,
        factors: &Factors<'_>,
        totals: &mut Totals,
        tile: Tile,
    ) -> bool {
        if S::SUMS < 16 || tile.height < GROUP || !tile.width.is_multiple_of(LANES) {
            return false;
        }
        match factors.rank {
            1 => self.accumulate_with::<S, 1>(s, matrices, factors, totals, tile),
            2 => self.accumulate_with::<S, 2>(s, matrices, factors, totals, tile),
            4 => self.accumulate_with::<S, 4>(s, matrices, factors, totals, tile),
            8 => self.accumulate_with::<S, 8>(s, matrices, factors, totals, tile),
            _ => return false,
        }
        true
    }

    #[inline(always)]
    fn accumulate_with<S: Simd, const C: usize>(
        &mut self,
        s: S,
        (m, gradient, cols): Ahead<'_, f32>,
        &Factors { p, pending_q, q, .. }: &Factors<'_>,
        totals: &mut Totals,
        tile: Tile,
    ) {
        let (pending, columns) = (pending_q.columns::<C>(0, tile), q.columns::<C>(0, tile));
        let next = tile.next_start(cols);
        // As many rows and columns as share the registers.
        let rows = if C > 2 { 2 } else { GROUP };
        for r in (0..GROUP).step_by(rows) {
            let p = &p[(tile.row + r) * C..];
            let totals = &mut totals.0[r * C..];
            let at = |r| (part(m, cols, tile, r), part(gradient, cols, tile, r));
            let ahead = (m, gradient, next + r * cols, cols);
            match &mut self.0[r..] {
                [a, b, c, d] if C <= 2 => {
                    let from = [at(0), at(1), at(2), at(3)];
                    rows_with(s, [a, b, c, d], from, p, pending, columns, totals, ahead);
                }
                [a, b, ..] => rows_with(s, [a, b], [at(r), at(r + 1)], p, pending, columns, totals, ahead),
                _ => {}
            }
        }
    }
}

/// `R` rows of a tile, `C` columns of both factors.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined")]
fn rows_with<S: Simd, const R: usize, const C: usize>(
    s: S,
    to: [&mut [Block; BLOCKS]; R],
    from: [(&[f32], &[f32]); R],
    p: &[f32],
    pending: [&[Block]; C],
    columns: [&[Block]; C],
    totals: &mut [Block],
    (m, gradient, next, cols): (&[f32], &[f32], usize, usize),
) {
    let blocks = columns[0].len().min(BLOCKS);
    let (pending, columns) =
        (pending.map(|column| &column[..blocks]), columns.map(|column| &column[..blocks]));
    let from = from.map(|(m, g)| (&m.as_chunks::<LANES>().0[..blocks], &g.as_chunks::<LANES>().0[..blocks]));
    let mut factors = [[s.splat(0.0); C]; R];
    let mut sums = [[s.splat(0.0); C]; R];
    for r in 0..R {
        for c in 0..C {
            factors[r][c] = s.splat(-p[r * C + c]);
        }
    }
    for j in 0..blocks {
        for r in 0..R {
            let ahead = next + r * cols + j * LANES;
            prefetch_line(m.as_ptr().wrapping_add(ahead));
            prefetch_line(gradient.as_ptr().wrapping_add(ahead));
            let mut product = s.multiply(factors[r][0], s.load(&pending[0][j].0));
            for c in 1..C {
                product = s.add(product, s.multiply(factors[r][c], s.load(&pending[c][j].0)));
            }
            let value = s.add(s.add(s.load(&from[r].0[j]), product), s.load(&from[r].1[j]));
            s.store(value, &mut to[r][j].0);
            for c in 0..C {
                sums[r][c] = s.add(sums[r][c], s.multiply(value, s.load(&columns[c][j].0)));
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            let total = &mut totals[r * C + c].0;
            s.store(s.add(s.load(total), sums[r][c]), total);
        }
    }
}
