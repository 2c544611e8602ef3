//! Rules of selection other than gradient dropping, over one read of the same values.

use brevity::compress::SparseVec;
use brevity::compress::generator::Generator;
use brevity::compress::select::{
    Blocks, BySignScratch, SampledScratch, TopKScratch, bin_maxima, fixed_threshold, non_zero_blocks, random_block,
    random_k, resampled_top_k, sampled_top_k, top_k, top_k_by_sign,
};

use super::gradient_drop::{SHARES, entries};
use super::vectors::Vectors;
use super::{Extent, Group, Row, Subject, refused};
use crate::Result;

type Selected = std::result::Result<(), brevity::compress::Error>;

/// Of normal deviates, one in a thousand is larger.
const TAU: f32 = 3.29;

/// Places of a bin of AdaComp.
const BIN: usize = 500;

/// Places of a block that is all zero or not.
const BLOCK: usize = 256;

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut vectors = Vectors::new(extent);
    let [share, hundredth] = SHARES;
    let (k, many) = (entries(share, extent.elements), entries(hundredth, extent.elements));
    let (mut generator, mut sampled) = (Generator::new(3), SampledScratch::new());
    let (mut scratch, mut by_sign, mut drawn) = (TopKScratch::new(), BySignScratch::new(), Vec::new());
    let mut blocks = Blocks::new();
    told(vectors.rule("top k", share, |v, out| top_k(v, k, out, &mut scratch))?);
    told(vectors.rule("top k", hundredth, |v, out| top_k(v, many, out, &mut scratch))?);
    let rule = |v: &[f32], out: &mut _| sampled_top_k(v, k, 2 * k, &mut generator, out, &mut sampled);
    told(vectors.rule("sampled threshold", share, rule)?);
    let rule = |v: &[f32], out: &mut _| resampled_top_k(v, k, &mut generator, out, &mut sampled);
    told(vectors.rule("sampled threshold, then top k", share, rule)?);
    told(vectors.rule("fixed threshold", share, |v, out| fixed_threshold(v, TAU, out))?);
    let half = k.div_ceil(2);
    let rule = |v: &[f32], out: &mut _| top_k_by_sign(v, half, half, out, &mut by_sign);
    told(vectors.rule("top k of each sign", share, rule)?);
    let rule = |v: &[f32], out: &mut _| random_k(v, k, &mut generator, out, &mut drawn);
    told(vectors.rule("random k", share, rule)?);
    told(vectors.rule("random block", share, |v, out| random_block(v, k, &mut generator, out))?);
    let gradient = vectors.gradient.clone();
    told(vectors.rule("maxima of bins of 500", None, |v, out| bin_maxima(v, &gradient, BIN, out))?);
    vectors.gradient.chunks_mut(BLOCK).enumerate().for_each(|(b, block)| {
        if b % 20 > 0 {
            block.fill(0.0);
        }
    });
    told(vectors.rule("non-zero blocks of 256, one in 20", None, |v, _| non_zero_blocks(v, &mut blocks))?);
    Ok(())
}

impl Vectors {
    fn rule(
        &mut self,
        name: &str,
        share: impl Into<Option<f64>>,
        mut select: impl FnMut(&[f32], &mut SparseVec) -> Selected,
    ) -> Result<Row> {
        let mut out = SparseVec::new(0);
        select(&self.gradient, &mut out).map_err(refused(name))?;
        let subject = Subject { density: share.into(), ..self.subject(Group::Rules, name, 4, "read") };
        let kernel = |vectors: &mut Self| select(&vectors.gradient, &mut out).unwrap_or_default();
        Ok(self.row(subject, Self::read, kernel))
    }
}
