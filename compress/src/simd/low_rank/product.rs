//! Adding `P Q^T` to a matrix, or storing it as one.

use super::strip::Strip;
use super::tiles::{Panel, Tiles};
use super::{Product, Shape};
use crate::simd::lanes::{Kernel, Simd};

/// From this many elements on, a matrix is stored past the caches: shorter ones are still there when they are
/// read (measured on Zen 4: a loss up to 24 MiB, a gain above 32).
const LONG: usize = 1 << 23;

/// `M += sign * P Q^T`, or `M = sign * P Q^T`.
pub(super) struct AddProduct<'a> {
    pub(super) m: &'a mut [f32],
    pub(super) product: Product<'a>,
    pub(super) sign: f32,
    /// Whether `M` counts as zero.
    pub(super) replace: bool,
    pub(super) shape: Shape,
    pub(super) panel: &'a mut Panel,
}

impl Kernel for AddProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { m, product, sign, replace, shape: Shape { cols, rank }, panel } = self;
        let mut strip = Strip::new();
        let past_caches = replace && m.len() >= LONG;
        for tile in Tiles::new(m.len(), cols) {
            if tile.opens_panel() {
                panel.load(product.q, rank, tile);
            }
            if replace {
                strip.clear();
            } else {
                strip.read(s, m, cols, tile);
            }
            strip.add_product(s, product.p, sign, panel, rank, tile);
            if past_caches {
                strip.write_past_caches(s, m, cols, tile);
            } else {
                strip.write(s, m, cols, tile);
            }
        }
        if past_caches {
            s.fence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Workspace, add_product, reconstruct};
    use super::*;
    use crate::generator::Generator;
    use crate::simd::Level;

    /// What is stored past the caches, from any address on, is what is stored otherwise.
    #[test]
    fn a_long_matrix_is_reconstructed_like_a_short_one() {
        let shape = Shape { cols: 4099, rank: 3 };
        let rows = LONG / shape.cols + 2;
        let mut generator = Generator::new(5);
        let (mut p, mut q) = (vec![0.0; rows * shape.rank], vec![0.0; shape.cols * shape.rank]);
        generator.fill_normal(&mut p);
        generator.fill_normal(&mut q);
        let (product, mut workspace) = (Product { p: &p, q: &q }, Workspace::default());
        let mut expected = vec![0.0; rows * shape.cols];
        add_product(Level::best(), &mut expected, product, 1.0, shape, &mut workspace);
        for level in Level::available() {
            for begin in 0..3 {
                let mut found = vec![f32::NAN; begin + rows * shape.cols + 1];
                let m = &mut found[begin..begin + rows * shape.cols];
                reconstruct(level, m, product, shape, &mut workspace);
                assert!(m == expected, "{} from {begin} on", level.name());
                assert!(found[..begin].iter().chain(found.last()).all(|v| v.is_nan()), "{}", level.name());
            }
        }
    }
}
