//! Products of a large row-major matrix with a few columns, each in one pass over the matrix.
//!
//! `M` is `rows x cols`, `P` is `rows x r`, `Q` is `cols x r`, all row-major. Columns are cut into panels.
//! The part of `Q` that belongs to a panel is kept transposed in the second-level cache. Rows are processed
//! in groups of four along the whole panel, in tiles that fit the first-level cache: each loaded value serves
//! four rows, or several columns of `Q`, from registers. Meanwhile the next tile is prefetched.
//!
//! The order of additions is fixed. A dot product along a row has sixteen partial sums a tile, which are
//! added to sixteen a panel, and these pairwise to one. A dot product along a row of `P` takes the columns in
//! groups of eight, then four, two and one, and its target is rounded once for each group. A dot product down
//! a column sums eight rows at a time. How many rows or columns share the registers depends on the level, but
//! changes no sum.

mod fused;
mod product;
mod strip;
mod tiles;
mod transposed;

use super::Level;
use super::lanes::{Kernel, Simd, dispatch};
use crate::dense::Element;
use fused::Factors;
use product::AddProduct;
use strip::Strip;
use tiles::{Panel, Totals};
pub(crate) use tiles::{Tile, Tiles};
use transposed::MultiplyTransposed;

/// Row lengths: `cols` of `M`, `rank` of `P` and `Q`. The slices give the number of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) cols: usize,
    pub(crate) rank: usize,
}

/// Two factors, `P` and `Q`, of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) p: &'a [f32],
    pub(crate) q: &'a [f32],
}

/// Scratch memory of the phases, kept from step to step: 33 KiB for each unit of rank, and as much as the
/// largest `P`.
#[derive(Debug, Clone, Default)]
pub struct Workspace {
    q: Panel,
    pending_q: Panel,
    totals: Totals,
    columns: Vec<f32>,
}

impl Workspace {
    /// Room for a factor in column-major order, with unspecified contents.
    pub(crate) fn columns(&mut self, elements: usize) -> &mut [f32] {
        if self.columns.len() < elements {
            self.columns.resize(elements, 0.0);
        }
        &mut self.columns[..elements]
    }
}

/// `P = M Q`.
pub(crate) fn multiply(
    level: Level,
    m: &[f32],
    q: &[f32],
    shape: Shape,
    p: &mut [f32],
    workspace: &mut Workspace,
) {
    p.fill(0.0);
    dispatch(level, Multiply { m, q, shape, p, workspace });
}

/// `Q = M^T P`.
pub(crate) fn multiply_transposed(
    level: Level,
    m: &[f32],
    p: &[f32],
    shape: Shape,
    q: &mut [f32],
    workspace: &mut Workspace,
) {
    q.fill(0.0);
    dispatch(level, MultiplyTransposed { m, p, shape, q, panel: &mut workspace.q });
}

/// `M += sign * P Q^T`.
pub(crate) fn add_product(
    level: Level,
    m: &mut [f32],
    product: Product<'_>,
    sign: f32,
    shape: Shape,
    workspace: &mut Workspace,
) {
    dispatch(level, AddProduct { m, product, sign, replace: false, shape, panel: &mut workspace.q });
}

/// `M = P Q^T`.
pub(crate) fn reconstruct(
    level: Level,
    m: &mut [f32],
    product: Product<'_>,
    shape: Shape,
    workspace: &mut Workspace,
) {
    dispatch(level, AddProduct { m, product, sign: 1.0, replace: true, shape, panel: &mut workspace.q });
}

/// The inputs of [`accumulate`] besides the matrix.
pub(crate) struct Accumulation<'a, G> {
    /// The gradient to add, with the matrix's shape.
    pub(crate) gradient: &'a [G],
    /// The product to subtract first.
    pub(crate) pending: Option<Product<'a>>,
    pub(crate) q: &'a [f32],
    pub(crate) shape: Shape,
}

/// `M = (M - P' Q'^T) + G` and `P = M Q`, in one pass.
///
/// The two sums are rounded as if each were computed over the whole matrix in turn.
///
/// # Errors
/// The first tile with a sum or product that is not finite. The pending product has been subtracted
/// everywhere then, but `G` has been added only to the tiles before; `p` is unspecified.
pub(crate) fn accumulate<G: Element>(
    level: Level,
    m: &mut [f32],
    terms: Accumulation<'_, G>,
    p: &mut [f32],
    workspace: &mut Workspace,
) -> Result<(), Tile> {
    p.fill(0.0);
    dispatch(level, Accumulate { level, m, terms, p, workspace })
}

struct Multiply<'a> {
    m: &'a [f32],
    q: &'a [f32],
    shape: Shape,
    p: &'a mut [f32],
    workspace: &'a mut Workspace,
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { m, q, shape: Shape { cols, rank }, p, workspace } = self;
        let Workspace { q: panel, totals, .. } = workspace;
        let mut strip = Strip::new();
        for tile in Tiles::new(m.len(), cols) {
            if tile.opens_panel() {
                panel.load(q, rank, tile);
            }
            if tile.opens_group() {
                totals.clear(tile.height, rank);
            }
            strip.read(s, m, cols, tile);
            strip.dots(s, panel, rank, totals, tile, (m, m, cols));
            if tile.closes_group() {
                totals.add_to(&mut p[tile.row * rank..]);
            }
        }
    }
}

struct Accumulate<'a, G> {
    level: Level,
    m: &'a mut [f32],
    terms: Accumulation<'a, G>,
    p: &'a mut [f32],
    workspace: &'a mut Workspace,
}

impl<G: Element> Kernel for Accumulate<'_, G> {
    type Output = Result<(), Tile>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Result<(), Tile> {
        let Self { level, m, terms, p, workspace } = self;
        let Accumulation { gradient, pending, q, shape: Shape { cols, rank } } = terms;
        let Workspace { q: panel, pending_q, totals, .. } = workspace;
        let mut strip = Strip::new();
        let mut stopped = None;
        for tile in Tiles::new(m.len(), cols) {
            if tile.opens_panel() {
                panel.load(q, rank, tile);
                if let Some(product) = pending {
                    pending_q.load(product.q, rank, tile);
                }
            }
            if tile.opens_group() {
                totals.clear(tile.height, rank);
            }
            // At most twice: a tile whose result is not finite is read again without the gradient.
            loop {
                let is_done = match (pending, G::as_f32(gradient)) {
                    (Some(Product { p, .. }), Some(gradient)) if stopped.is_none() => {
                        let factors = Factors { p, pending_q, q: panel, rank };
                        strip.accumulate(s, (m, gradient, cols), &factors, totals, tile)
                    }
                    _ => false,
                };
                if !is_done {
                    strip.read(s, m, cols, tile);
                    if let Some(product) = pending {
                        strip.add_product(s, product.p, -1.0, pending_q, rank, tile);
                    }
                    if stopped.is_some() {
                        break;
                    }
                    strip.add(s, level, gradient, cols, tile);
                    strip.dots(s, panel, rank, totals, tile, (m, gradient, cols));
                }
                // A value that is not finite makes every sum with it not finite.
                let is_finite = if rank == 0 { strip.is_finite(tile) } else { totals.is_finite() };
                if is_finite {
                    break;
                }
                stopped = Some(tile);
            }
            strip.write(s, m, cols, tile);
            if tile.closes_group() {
                totals.add_to(&mut p[tile.row * rank..]);
            }
        }
        stopped.map_or(Ok(()), Err)
    }
}

/// Runs `$body` for columns `$first..$first + $columns` of the factors, in the order that is the same at all
/// levels.
macro_rules! for_columns {
    ($rank:expr, $first:ident, $columns:ident => $body:expr) => {{
        let rank: usize = $rank;
        let mut $first = 0;
        while $first < rank {
            $first += match rank - $first {
                8.. => {
                    const $columns: usize = 8;
                    $body;
                    8
                }
                4.. => {
                    const $columns: usize = 4;
                    $body;
                    4
                }
                2.. => {
                    const $columns: usize = 2;
                    $body;
                    2
                }
                _ => {
                    const $columns: usize = 1;
                    $body;
                    1
                }
            };
        }
    }};
}
use for_columns;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generator::Generator;

    /// All results of the kernels, as bits.
    fn run(level: Level, rows: usize, shape: Shape, with_pending: bool, seed: u64) -> Vec<u32> {
        let mut generator = Generator::new(seed);
        let mut normal = |count| {
            let mut values = vec![0.0; count];
            generator.fill_normal(&mut values);
            values
        };
        let Shape { cols, rank } = shape;
        let (mut m, gradient, mut out) = (normal(rows * cols), normal(rows * cols), normal(rows * cols));
        let (p_before, q_before, q) = (normal(rows * rank), normal(cols * rank), normal(cols * rank));
        let (mut p, mut left, mut right) =
            (vec![f32::NAN; rows * rank], normal(rows * rank), normal(cols * rank));
        let mut workspace = Workspace::default();
        let pending = with_pending.then_some(Product { p: &p_before, q: &q_before });
        let terms = Accumulation { gradient: &gradient, pending, q: &q, shape };
        assert_eq!(accumulate(level, &mut m, terms, &mut p, &mut workspace), Ok(()));
        multiply(level, &m, &q_before, shape, &mut left, &mut workspace);
        multiply_transposed(level, &m, &p, shape, &mut right, &mut workspace);
        reconstruct(level, &mut out, Product { p: &p, q: &right }, shape, &mut workspace);
        let mut error = m.clone();
        add_product(level, &mut error, Product { p: &p, q: &right }, -1.0, shape, &mut workspace);
        [m, p, left, right, out, error].concat().into_iter().map(f32::to_bits).collect()
    }

    /// With a pending product and whole tiles, which some levels do in one loop; also where a value is not
    /// finite, in the first tile, the last whole one, and the last one.
    #[test]
    fn every_level_accumulates_whole_tiles_alike() {
        for rank in [1, 2, 4, 8] {
            let (rows, shape) = (9, Shape { cols: 1040, rank });
            for bad in [None, Some(3), Some(8 * shape.cols - 1), Some(9 * shape.cols - 1)] {
                let results: Vec<_> =
                    Level::available().map(|level| (level, accumulated(level, rows, shape, bad))).collect();
                for (level, found) in &results {
                    assert_eq!(found.0.is_err(), bad.is_some(), "{}, rank {rank}", level.name());
                    assert!(*found == results[0].1, "{}, rank {rank}, {bad:?}", level.name());
                }
            }
        }
    }

    /// What [`accumulate`] returns, and the bits of the matrix; those of `P` too unless it is unspecified.
    fn accumulated(
        level: Level,
        rows: usize,
        shape: Shape,
        bad: Option<usize>,
    ) -> (Result<(), Tile>, Vec<u32>) {
        let mut generator = Generator::new(3);
        let mut normal = |count| {
            let mut values = vec![0.0; count];
            generator.fill_normal(&mut values);
            values
        };
        let Shape { cols, rank } = shape;
        let (mut m, mut gradient) = (normal(rows * cols), normal(rows * cols));
        let (p_before, q_before, q) = (normal(rows * rank), normal(cols * rank), normal(cols * rank));
        bad.into_iter().for_each(|place| gradient[place] = f32::INFINITY);
        let mut p = vec![0.0; rows * rank];
        let pending = Some(Product { p: &p_before, q: &q_before });
        let terms = Accumulation { gradient: &gradient, pending, q: &q, shape };
        let ended = accumulate(level, &mut m, terms, &mut p, &mut Workspace::default());
        if ended.is_ok() {
            m.append(&mut p);
        }
        (ended, m.into_iter().map(f32::to_bits).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_level_gives_the_same_bits(
            rows in 0_usize..20,
            cols in prop_oneof![0_usize..40, 500_usize..530, 4090_usize..4120],
            rank in 0_usize..18,
            with_pending: bool,
            seed: u64,
        ) {
            let shape = Shape { cols, rank };
            let expected =
                run(Level::available().next().unwrap_or(Level::best()), rows, shape, with_pending, seed);
            for level in Level::available() {
                let found = run(level, rows, shape, with_pending, seed);
                let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                prop_assert_eq!(differs, None, "{}", level.name());
            }
        }

        #[test]
        fn every_level_stops_at_the_same_tile(
            rows in 1_usize..10,
            cols in prop_oneof![1_usize..40, 500_usize..530, 4090_usize..4120],
            rank in 0_usize..10,
            place: prop::sample::Index,
        ) {
            let shape = Shape { cols, rank };
            let mut gradient = vec![1.0_f32; rows * cols];
            gradient[place.index(rows * cols)] = f32::NAN;
            let (row, column) = (place.index(rows * cols) / cols, place.index(rows * cols) % cols);
            for level in Level::available() {
                let (mut m, q, mut p) =
                    (vec![2.0; rows * cols], vec![0.5; cols * rank], vec![0.0; rows * rank]);
                let terms = Accumulation { gradient: &gradient, pending: None, q: &q, shape };
                let stopped = accumulate(level, &mut m, terms, &mut p, &mut Workspace::default());
                let Err(tile) = stopped else { panic!("{}: a NaN went through", level.name()) };
                prop_assert!(
                    (tile.row..tile.row + tile.height).contains(&row),
                    "{}: {:?}",
                    level.name(),
                    tile
                );
                prop_assert!(
                    (tile.column..tile.column + tile.width).contains(&column),
                    "{}: {:?}",
                    level.name(),
                    tile
                );
                prop_assert!(m.iter().all(|&v| v == 2.0 || v == 3.0), "{}", level.name());
            }
        }
    }
}
