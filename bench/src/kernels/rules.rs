//! Selection rules other than gradient dropping, compared with one read of the same values.

use brevity::compress::SparseVec;
use brevity::compress::generator::Generator;
use brevity::compress::select::{
    Blocks, BySignScratch, SampledScratch, TopKScratch, bin_maxima, fixed_threshold, non_zero_blocks,
    random_block, random_k, resampled_top_k, sampled_top_k, top_k, top_k_by_sign,
};

use super::gradient_drop::{SHARES, entries};
use super::plain::{are_of, are_those_above, are_top_k, top_k as plain_top_k};
use super::vectors::Vectors;
use super::{Done, Extent, Group, Row, Subject, check, refused};
use crate::Result;

/// One in a thousand normal deviates is larger.
const TAU: f32 = 3.29;

/// Places of an AdaComp bin.
const BIN: usize = 500;

/// Places of a block.
const BLOCK: usize = 256;

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut vectors = Vectors::new(extent);
    let [share, hundredth] = SHARES;
    let (k, many) = (entries(share, extent.elements), entries(hundredth, extent.elements));
    let (mut generator, mut sampled) = (Generator::new(3), SampledScratch::new());
    let (mut scratch, mut by_sign, mut drawn) = (TopKScratch::new(), BySignScratch::new(), Vec::new());
    let mut blocks = Blocks::new();
    let is_top = |v: &[f32], out: &SparseVec| are_top_k(out, v, k);
    told(vectors.rule("top k", share, is_top, |v, out| top_k(v, k, out, &mut scratch))?);
    let is_top_of_many = |v: &[f32], out: &SparseVec| are_top_k(out, v, many);
    told(vectors.rule("top k", hundredth, is_top_of_many, |v, out| top_k(v, many, out, &mut scratch))?);
    let rule = |v: &[f32], out: &mut _| sampled_top_k(v, k, 2 * k, &mut generator, out, &mut sampled);
    let are_some = |v: &[f32], out: &SparseVec| {
        let is_top = out.len() == 2 * k && are_top_k(out, v, 2 * k);
        !out.is_empty() && out.len() <= 2 * k && (is_top || are_those_above(out, v))
    };
    told(vectors.rule("sampled threshold", share, are_some, rule)?);
    let rule = |v: &[f32], out: &mut _| resampled_top_k(v, k, &mut generator, out, &mut sampled);
    let are_about_k = |v: &[f32], out: &SparseVec| {
        are_top_k(out, v, k)
            || are_those_above(out, v) && (0.8..=1.3).contains(&(out.len() as f64 / k as f64))
    };
    told(vectors.rule("sampled threshold, then top k", share, are_about_k, rule)?);
    let reach_tau = |v: &[f32], out: &SparseVec| {
        let signed =
            (0..).zip(v).filter(|(_, value)| value.abs() >= TAU).map(|(i, value)| (i, TAU.copysign(*value)));
        out.iter().eq(signed)
    };
    told(vectors.rule("fixed threshold", share, reach_tau, |v, out| fixed_threshold(v, TAU, out))?);
    let half = k.div_ceil(2);
    let rule = |v: &[f32], out: &mut _| top_k_by_sign(v, half, half, out, &mut by_sign);
    let are_top_of_signs = |v: &[f32], out: &SparseVec| {
        // Zeros fill up if there are too few values of a sign.
        let of_sign = |sign: f32| {
            let largest = plain_top_k(v.iter().map(|value| (sign * value).max(0.0)), half);
            largest.into_iter().filter(move |&i| sign * v[i as usize] > 0.0)
        };
        let mut places: Vec<u32> = of_sign(1.0).chain(of_sign(-1.0)).collect();
        places.sort_unstable();
        out.indices() == places && out.iter().all(|(i, value)| value * v[i as usize] > 0.0)
    };
    told(vectors.rule("top k of each sign", share, are_top_of_signs, rule)?);
    let rule = |v: &[f32], out: &mut _| random_k(v, k, &mut generator, out, &mut drawn);
    let are_k = |v: &[f32], out: &SparseVec| out.len() == k && out.indices().is_sorted() && are_of(out, v);
    told(vectors.rule("random k", share, are_k, rule)?);
    let are_in_a_row = |v: &[f32], out: &SparseVec| {
        let breaks = out.indices().windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        are_k(v, out) && (breaks == 0 || breaks == 1 && out.indices()[0] == 0)
    };
    told(
        vectors
            .rule("random block", share, are_in_a_row, |v, out| random_block(v, k, &mut generator, out))?,
    );
    let gradient = vectors.gradient.clone();
    let reach_maxima = |v: &[f32], out: &SparseVec| {
        let most: Vec<f32> =
            v.chunks(BIN).map(|bin| bin.iter().fold(0.0, |most, v| v.abs().max(most))).collect();
        let reaches = |&(i, v): &(usize, &f32)| *v != 0.0 && (v + gradient[i]).abs() >= most[i / BIN];
        out.iter().eq(v.iter().enumerate().filter(reaches).map(|(i, v)| (i as u32, *v)))
    };
    let rule = |v: &[f32], out: &mut _| bin_maxima(v, &gradient, BIN, out);
    told(vectors.rule("maxima of bins of 500", None, reach_maxima, rule)?);
    vectors.gradient.chunks_mut(BLOCK).enumerate().for_each(|(b, block)| {
        if b % 20 > 0 {
            block.fill(0.0);
        }
    });
    let name = "non-zero blocks of 256, one in 20";
    let subject = vectors.subject(Group::Rules, name, 4, "read");
    non_zero_blocks(&vectors.gradient, &mut blocks).map_err(refused(name))?;
    let is_there = |&(_, block): &(usize, &[f32])| block.iter().any(|value| *value != 0.0);
    let places = vectors.gradient.chunks(BLOCK).enumerate().filter(is_there);
    let expected = places.flat_map(|(b, block)| (b * BLOCK..).zip(block.iter().copied()));
    check(blocks.iter().eq(expected), name, "these are not the blocks that are not all zero")?;
    told(vectors.row(subject, Vectors::read, |vectors| non_zero_blocks(&vectors.gradient, &mut blocks))?);
    Ok(())
}

impl Vectors {
    fn rule(
        &mut self,
        name: &str,
        share: impl Into<Option<f64>>,
        is_right: impl Fn(&[f32], &SparseVec) -> bool,
        mut select: impl FnMut(&[f32], &mut SparseVec) -> Done,
    ) -> Result<Row> {
        let mut out = SparseVec::new(0);
        select(&self.gradient, &mut out).map_err(refused(name))?;
        check(is_right(&self.gradient, &out), name, "a plain loop selects others")?;
        let subject = Subject { density: share.into(), ..self.subject(Group::Rules, name, 4, "read") };
        self.row(subject, Self::read, |vectors| select(&vectors.gradient, &mut out))
    }
}
