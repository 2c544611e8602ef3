//! How a matrix is divided, and the parts of the factors that belong to each division.

use super::super::lanes::{Block, LANES};

/// Columns of a panel. Their part of `Q` takes 16 KiB for each unit of rank.
const PANEL: usize = 4096;
/// Blocks in a row of a tile.
pub(super) const BLOCKS: usize = 32;
/// Columns of a tile.
pub(super) const TILE: usize = BLOCKS * LANES;
/// Rows of a tile.
pub(super) const GROUP: usize = 4;

/// The unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) row: usize,
    pub(crate) height: usize,
    pub(crate) column: usize,
    pub(crate) width: usize,
    panel: usize,
    panel_width: usize,
}

impl Tile {
    /// Whether this is the first tile of its panel.
    #[inline(always)]
    pub(super) fn opens_panel(self) -> bool {
        self.row == 0 && self.column == self.panel
    }

    /// Whether this is the first tile of its rows in the panel.
    #[inline(always)]
    pub(super) fn opens_group(self) -> bool {
        self.column == self.panel
    }

    /// Whether this is the last tile of its rows in the panel.
    #[inline(always)]
    pub(super) fn closes_group(self) -> bool {
        self.column + self.width == self.panel + self.panel_width
    }

    /// The number of blocks in its rows; the last may be partial.
    #[inline(always)]
    pub(super) fn blocks(self) -> usize {
        self.width.div_ceil(LANES)
    }

    /// The number of its first block in its panel.
    #[inline(always)]
    pub(super) fn first_block(self) -> usize {
        (self.column - self.panel) / LANES
    }

    /// The start of the next tile in a row-major matrix; past the end after the last tile.
    #[inline(always)]
    pub(super) fn next_start(self, cols: usize) -> usize {
        if self.closes_group() {
            (self.row + GROUP) * cols + self.panel
        } else {
            self.row * cols + self.column + TILE
        }
    }
}

/// All tiles of a matrix, in the order of work.
pub(crate) struct Tiles {
    rows: usize,
    cols: usize,
    next: Option<(usize, usize, usize)>,
}

impl Tiles {
    #[inline(always)]
    pub(crate) fn new(elements: usize, cols: usize) -> Self {
        let rows = elements.checked_div(cols).unwrap_or(0);
        Self { rows, cols, next: (rows > 0).then_some((0, 0, 0)) }
    }
}

impl Tiles {
    /// The panels of a matrix: first column and width.
    #[inline(always)]
    pub(super) fn panels(cols: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..cols).step_by(PANEL).map(move |start| (start, PANEL.min(cols - start)))
    }
}

impl Iterator for Tiles {
    type Item = Tile;

    #[inline(always)]
    fn next(&mut self) -> Option<Tile> {
        let (panel, row, column) = self.next?;
        let panel_width = PANEL.min(self.cols - panel);
        let width = TILE.min(panel + panel_width - column);
        let tile = Tile { row, height: GROUP.min(self.rows - row), column, width, panel, panel_width };
        self.next = if !tile.closes_group() {
            Some((panel, row, column + TILE))
        } else if row + GROUP < self.rows {
            Some((panel, row + GROUP, panel))
        } else {
            let panel = panel + PANEL;
            (panel < self.cols).then_some((panel, 0, panel))
        };
        Some(tile)
    }
}

/// Sets of a first-level cache of 4 KiB a way.
const SETS: usize = 64;

/// The part of `Q` that belongs to a panel, transposed: `length` blocks for each column of `Q`, padded with
/// zeros. They begin `stride` blocks apart, in different sets of the cache: columns of 16 KiB one behind the
/// other would all need the same ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Panel {
    pub(super) blocks: Vec<Block>,
    pub(super) length: usize,
    pub(super) stride: usize,
}

impl Panel {
    /// Sets the panel to zeros for `width` columns.
    pub(super) fn clear(&mut self, rank: usize, width: usize) {
        self.length = width.div_ceil(LANES);
        self.stride = self.length.next_multiple_of(SETS) + SETS / 8;
        self.blocks.clear();
        self.blocks.resize(rank * self.stride, Block::ZERO);
    }

    /// Copies the rows of `q` that belong to the panel of `tile`.
    pub(super) fn load(&mut self, q: &[f32], rank: usize, tile: Tile) {
        self.clear(rank, tile.panel_width);
        if rank == 0 {
            return;
        }
        for (j, row) in q[tile.panel * rank..][..tile.panel_width * rank].chunks_exact(rank).enumerate() {
            for (c, &value) in row.iter().enumerate() {
                self.blocks[c * self.stride + j / LANES].0[j % LANES] = value;
            }
        }
    }

    /// Writes back the rows of `q` that belong to a panel.
    pub(super) fn store(&self, q: &mut [f32], rank: usize) {
        for (j, row) in q.chunks_exact_mut(rank).enumerate() {
            for (c, value) in row.iter_mut().enumerate() {
                *value = self.blocks[c * self.stride + j / LANES].0[j % LANES];
            }
        }
    }

    /// The blocks of `C` columns of `Q` that belong to a tile.
    #[inline(always)]
    pub(super) fn columns<const C: usize>(&self, first: usize, tile: Tile) -> [&[Block]; C] {
        let mut columns: [&[Block]; C] = [&[]; C];
        for (c, column) in columns.iter_mut().enumerate() {
            *column = &self.blocks[(first + c) * self.stride + tile.first_block()..][..tile.blocks()];
        }
        columns
    }
}

/// Partial sums of the rows of a group for all columns of `Q`, with the layout of `P`.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals(pub(super) Vec<Block>);

impl Totals {
    pub(super) fn clear(&mut self, height: usize, rank: usize) {
        self.0.clear();
        self.0.resize(height * rank, Block::ZERO);
    }

    #[inline(always)]
    pub(super) fn is_finite(&self) -> bool {
        self.0.iter().all(|total| total.is_finite())
    }

    /// Adds the sums to the first elements of `p`.
    #[inline(always)]
    pub(super) fn add_to(&self, p: &mut [f32]) {
        p.iter_mut().zip(&self.0).for_each(|(p, total)| *p += total.pairwise_sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_element_once() {
        for rows in [0, 1, 3, 4, 5, 9] {
            for cols in [0, 1, 511, 512, 513, 4095, 4096, 4097, 9000] {
                let mut seen = vec![0_u8; rows * cols];
                let mut expected_start = 0;
                for tile in Tiles::new(rows * cols, cols) {
                    assert!(
                        tile.opens_panel() || tile.row * cols + tile.column == expected_start,
                        "{tile:?}"
                    );
                    expected_start = tile.next_start(cols);
                    for row in tile.row..tile.row + tile.height {
                        seen[row * cols + tile.column..][..tile.width]
                            .iter_mut()
                            .for_each(|count| *count += 1);
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{rows} x {cols}");
            }
        }
    }
}
