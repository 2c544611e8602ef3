//! The three products of PowerSGD, each in one pass over a row-major matrix.
//!
//! Columns are cut into tiles. The part of `Q` that belongs to a tile is kept transposed in the
//! first-level cache, where each of its at most eight rows lies beside the row of `M`: the inner
//! loops run along both. Ranks above eight take a pass for every eight columns of the factors.
//! Additions have one order, whatever the CPU.

/// Row lengths: `cols` of `M`, `rank` of `P` and `Q`. The number of rows follows from the slices.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) cols: usize,
    pub(super) rank: usize,
}

/// `P = M Q`.
pub(super) fn multiply(m: &[f32], q: &[f32], shape: Shape, p: &mut [f32]) {
    p.fill(0.0);
    for_each_pass(shape.rank, Multiply { m, q, shape, p });
}

/// `Q = M^T P`.
pub(super) fn multiply_transposed(m: &[f32], p: &[f32], shape: Shape, q: &mut [f32]) {
    for_each_pass(shape.rank, MultiplyTransposed { m, p, shape, q });
}

/// `M += sign * P Q^T`.
pub(super) fn add_outer(p: &[f32], q: &[f32], sign: f32, shape: Shape, m: &mut [f32]) {
    for_each_pass(shape.rank, AddOuter { p, q, sign, shape, m });
}

/// Columns in a tile: eight rows of a transposed tile take 16 KiB.
const TILE: usize = 512;
/// Partial sums of a dot product.
const LANES: usize = 16;

/// `C` columns of a factor's tile, each contiguous.
type Tile<const C: usize> = [[f32; TILE]; C];

/// Work on columns `first..first + C` of the factors.
trait Pass {
    fn run<const C: usize>(&mut self, first: usize);
}

/// Covers all columns of the factors, eight at a time.
fn for_each_pass(rank: usize, mut pass: impl Pass) {
    for first in (0..rank).step_by(8) {
        match rank - first {
            1 => pass.run::<1>(first),
            2 => pass.run::<2>(first),
            3 => pass.run::<3>(first),
            4 => pass.run::<4>(first),
            5 => pass.run::<5>(first),
            6 => pass.run::<6>(first),
            7 => pass.run::<7>(first),
            _ => pass.run::<8>(first),
        }
    }
}

struct Multiply<'a> {
    m: &'a [f32],
    q: &'a [f32],
    shape: Shape,
    p: &'a mut [f32],
}

impl Pass for Multiply<'_> {
    fn run<const C: usize>(&mut self, first: usize) {
        let Shape { cols, rank, .. } = self.shape;
        let mut tile: Tile<C> = [[0.0; TILE]; C];
        for start in (0..cols).step_by(TILE) {
            let width = TILE.min(cols - start);
            load_tile(self.q, start, width, first, rank, &mut tile);
            for (m_row, p_row) in self.m.chunks_exact(cols).zip(self.p.chunks_exact_mut(rank)) {
                let sums = dots(&m_row[start..start + width], &tile);
                let p_row = &mut p_row[first..first + C];
                p_row.iter_mut().zip(sums).for_each(|(p, sum)| *p += sum);
            }
        }
    }
}

struct MultiplyTransposed<'a> {
    m: &'a [f32],
    p: &'a [f32],
    shape: Shape,
    q: &'a mut [f32],
}

impl Pass for MultiplyTransposed<'_> {
    fn run<const C: usize>(&mut self, first: usize) {
        let Shape { cols, rank, .. } = self.shape;
        for start in (0..cols).step_by(TILE) {
            let width = TILE.min(cols - start);
            let mut tile: Tile<C> = [[0.0; TILE]; C];
            for (m_row, p_row) in self.m.chunks_exact(cols).zip(self.p.chunks_exact(rank)) {
                let m_part = &m_row[start..start + width];
                for (column, &p) in tile.iter_mut().zip(&p_row[first..first + C]) {
                    column.iter_mut().zip(m_part).for_each(|(q, &m)| *q += m * p);
                }
            }
            store_tile(&tile, start, width, first, rank, self.q);
        }
    }
}

struct AddOuter<'a> {
    p: &'a [f32],
    q: &'a [f32],
    sign: f32,
    shape: Shape,
    m: &'a mut [f32],
}

impl Pass for AddOuter<'_> {
    fn run<const C: usize>(&mut self, first: usize) {
        let Shape { cols, rank, .. } = self.shape;
        let mut tile: Tile<C> = [[0.0; TILE]; C];
        for start in (0..cols).step_by(TILE) {
            let width = TILE.min(cols - start);
            load_tile(self.q, start, width, first, rank, &mut tile);
            for (m_row, p_row) in self.m.chunks_exact_mut(cols).zip(self.p.chunks_exact(rank)) {
                let mut factors = [0.0; C];
                factors.iter_mut().zip(&p_row[first..]).for_each(|(factor, &p)| *factor = self.sign * p);
                for (j, m) in m_row[start..start + width].iter_mut().enumerate() {
                    // A whole dot product first: the error of a subtraction stays small.
                    let mut product = 0.0;
                    for c in 0..C {
                        product += factors[c] * tile[c][j];
                    }
                    *m += product;
                }
            }
        }
    }
}

/// Transposes `C` columns of a `TILE`-row stretch of `q`.
fn load_tile<const C: usize>(q: &[f32], start: usize, width: usize, first: usize, rank: usize, tile: &mut Tile<C>) {
    for (j, q_row) in q.chunks_exact(rank).skip(start).take(width).enumerate() {
        for c in 0..C {
            tile[c][j] = q_row[first + c];
        }
    }
}

/// The inverse of [`load_tile`].
fn store_tile<const C: usize>(tile: &Tile<C>, start: usize, width: usize, first: usize, rank: usize, q: &mut [f32]) {
    for (j, q_row) in q.chunks_exact_mut(rank).skip(start).take(width).enumerate() {
        for c in 0..C {
            q_row[first + c] = tile[c][j];
        }
    }
}

/// The dot products of a part of a row with each column of the tile. Both are in the first-level
/// cache, so the row is read again for every column, and the registers hold one column's sums.
fn dots<const C: usize>(row: &[f32], tile: &Tile<C>) -> [f32; C] {
    tile.each_ref().map(|column| dot(row, &column[..row.len()]))
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut partial = [0.0_f32; LANES];
    let ((a_blocks, a_rest), (b_blocks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            partial[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    partial.iter().sum::<f32>() + rest
}
