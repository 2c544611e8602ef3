//! Products with the transposed matrix: sums of scaled rows.

use super::super::lanes::{Kernel, LANES, Simd};
use super::tiles::{Panel, Tiles};
use super::{Shape, for_columns};

/// Rows that are processed together, and summed before `Q` is loaded.
const ROWS: usize = 8;

pub(super) struct MultiplyTransposed<'a> {
    pub(super) m: &'a [f32],
    pub(super) p: &'a [f32],
    pub(super) shape: Shape,
    pub(super) q: &'a mut [f32],
    pub(super) panel: &'a mut Panel,
}

impl Kernel for MultiplyTransposed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { m, p, shape: Shape { cols, rank }, q, panel } = self;
        if rank == 0 {
            return;
        }
        for (start, width) in Tiles::panels(cols) {
            panel.clear(rank, width);
            let (m_groups, p_groups) = (m.chunks(ROWS * cols), p.chunks(ROWS * rank));
            for (m, p) in m_groups.zip(p_groups) {
                if p.len() == ROWS * rank {
                    let mut rows: [&[f32]; ROWS] = [&[]; ROWS];
                    (0..ROWS).for_each(|r| rows[r] = &m[r * cols + start..][..width]);
                    add_rows(s, rows, p, rank, panel);
                } else {
                    for (m, p) in m.chunks_exact(cols).zip(p.chunks_exact(rank)) {
                        add_rows(s, [&m[start..][..width]], p, rank, panel);
                    }
                }
            }
            panel.store(&mut q[start * rank..][..width * rank], rank);
        }
    }
}

/// Adds `R` rows, each times its row of `p`, to the transposed `Q`.
#[inline(always)]
fn add_rows<S: Simd, const R: usize>(s: S, rows: [&[f32]; R], p: &[f32], rank: usize, panel: &mut Panel) {
    let mut whole: [&[[f32; LANES]]; R] = [&[]; R];
    let mut padded = [[[0.0; LANES]]; R];
    for r in 0..R {
        let (blocks, rest) = rows[r].as_chunks::<LANES>();
        whole[r] = blocks;
        padded[r][0][..rest.len()].copy_from_slice(rest);
    }
    let blocks = whole[0].len();
    for_columns!(rank, first, COLUMNS => {
        let mut factors = [[0.0; COLUMNS]; R];
        (0..R).for_each(|r| factors[r].copy_from_slice(&p[r * rank + first..][..COLUMNS]));
        add_blocks(s, whole, &factors, panel, first, 0);
        if blocks < panel.length {
            add_blocks(s, padded.each_ref().map(|block| &block[..]), &factors, panel, first, blocks);
        }
    });
}

/// Adds blocks of `R` rows, times `factors`, to columns `first..first + C` of `Q`, from block `start` of the
/// panel on.
#[inline(always)]
fn add_blocks<S: Simd, const R: usize, const C: usize>(
    s: S,
    mut rows: [&[[f32; LANES]]; R],
    factors: &[[f32; C]; R],
    panel: &mut Panel,
    first: usize,
    start: usize,
) {
    let blocks = rows[0].len();
    for row in &mut rows {
        *row = &row[..blocks];
    }
    let stride = panel.stride;
    let columns = &mut panel.blocks[first * stride..][..C * stride];
    for j in 0..blocks {
        let mut sums = [s.splat(0.0); C];
        let row = s.load(&rows[0][j]);
        for c in 0..C {
            sums[c] = s.multiply(row, s.splat(factors[0][c]));
        }
        for r in 1..R {
            let row = s.load(&rows[r][j]);
            for c in 0..C {
                sums[c] = s.add(sums[c], s.multiply(row, s.splat(factors[r][c])));
            }
        }
        for c in 0..C {
            let column = &mut columns[c * stride + start + j].0;
            s.store(s.add(s.load(column), sums[c]), column);
        }
    }
}
