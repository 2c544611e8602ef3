//! Consecutive gradient drops, each on the residual that the last one left, as in training.

use brevity::compress::SparseVec;
use brevity::compress::dense::add_assign_plain;
use brevity::compress::generator::Generator;
use brevity::compress::select::{Hint, TopKScratch, feed_top_k, feed_top_k_of_all};

use super::gradient_drop::{SHARES, entries};
use super::vectors::normal;
use super::{
    Done, Extent, Group, Outcome, Row, Subject, all_fed, check, measure as measure_row, plain, refused,
};
use crate::{Error, Result};

const NAME: &str = "gradient drop in training";

/// Tensors in a list, as many as in ResNet-50.
const TENSORS: usize = 161;

/// How gradients are scaled from step to step.
#[derive(Clone, Copy)]
struct Scale {
    /// One step's scale.
    draw: fn(&mut Generator) -> f32,
    /// The root mean square of all scales.
    root_mean_square: f64,
}

/// Scales that differ slightly, as from batch to batch.
const EVEN: Scale = Scale { draw: |generator| 1.0 + 0.05 * generator.normal(), root_mean_square: 1.0 };

const JUMPS: [f32; 5] = [0.1, 0.3, 1.0, 3.0, 10.0];

/// Scales that jump by up to a hundred, as when the learning rate changes or a batch is unlike the last.
const JUMPING: Scale = Scale {
    draw: |generator| JUMPS[generator.below(JUMPS.len() as u64) as usize],
    // sqrt((0.01 + 0.09 + 1 + 9 + 100) / 5)
    root_mean_square: 4.692_547_3,
};

/// A residual in training, and the work space of its steps.
struct Training {
    /// Gradients are stretches of this vector, from a random place on, times a scale.
    pool: Vec<f32>,
    generator: Generator,
    scale: Scale,
    gradient: Vec<f32>,
    residual: Vec<f32>,
    /// The vector that the floor adds to.
    sum: Vec<f32>,
    k: usize,
    hint: Hint,
    out: SparseVec,
    scratch: TopKScratch,
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut training = Training::new(extent.elements);
    for (what, scale) in [("steady training", EVEN), ("steady training, scale jumping", JUMPING)] {
        for share in SHARES {
            training.settle(share, scale);
            training.verify()?;
            let subject = training.subject(what, share);
            let kernel = Training::step;
            told(measure_row(
                subject,
                extent.iterations,
                &mut training,
                Training::draw,
                Training::floor,
                kernel,
            )?);
        }
    }
    let [thousandth, _] = SHARES;
    training.settle(thousandth, EVEN);
    training.residual.fill(0.0);
    let subject = training.subject("residual filling up", thousandth);
    told(measure_row(
        subject,
        extent.iterations,
        &mut training,
        Training::draw,
        Training::floor,
        Training::step,
    )?);
    training.lists(extent, told)
}

impl Training {
    fn new(n: usize) -> Self {
        Self {
            pool: normal(n, 4),
            generator: Generator::new(7),
            scale: EVEN,
            gradient: vec![0.0; n],
            residual: vec![0.0; n],
            sum: vec![0.0; n],
            k: 0,
            hint: Hint::new(),
            out: SparseVec::new(n),
            scratch: TopKScratch::new(),
        }
    }

    /// Sets the residual to its distribution after many steps with gradients of deviation `d`: sums restart
    /// at `t = d / sqrt(share)`, which a random walk reaches after `1 / share` steps, and are distributed
    /// below it like the sum of two uniform deviates.
    fn settle(&mut self, share: f64, scale: Scale) {
        let (top, generator) = (scale.root_mean_square / share.sqrt(), &mut self.generator);
        self.residual
            .iter_mut()
            .for_each(|r| *r = (top * (generator.uniform() + generator.uniform() - 1.0)) as f32);
        (self.k, self.scale, self.hint) = (entries(share, self.pool.len()), scale, Hint::new());
    }

    /// The next gradient.
    fn draw(&mut self) {
        let scale = (self.scale.draw)(&mut self.generator);
        let (before, after) =
            self.pool.split_at(self.generator.below(self.pool.len().max(1) as u64) as usize);
        self.gradient.iter_mut().zip(after.iter().chain(before)).for_each(|(g, v)| *g = scale * v);
    }

    fn floor(&mut self) -> Done {
        add_assign_plain(&mut self.sum, &self.gradient)
    }

    fn step(&mut self) -> Result<(), String> {
        let Self { residual, gradient, k, hint, out, scratch, .. } = self;
        all_fed(feed_top_k(residual, gradient[..].into(), *k, hint, out, scratch))
    }

    fn subject(&self, what: &str, share: f64) -> Subject {
        let subject = Subject::new(Group::Drop, format!("gradient drop, {what}"), self.pool.len(), 12, "acc");
        Subject { density: Some(share), ..subject }
    }

    /// Checks that what some steps select plus what stays is the input.
    fn verify(&mut self) -> Result<()> {
        for _ in 0..3 {
            self.draw();
            let mut sums = self.residual.clone();
            add_assign_plain(&mut sums, &self.gradient).map_err(refused(NAME))?;
            self.step().of(NAME)?;
            let mut whole = self.residual.clone();
            self.out.add_to(&mut whole);
            if whole != sums || self.out.len() != self.k {
                let what = format!("{} selected of {}, or sums that differ", self.out.len(), self.k);
                return Err(Error::contestant(NAME, what));
            }
        }
        Ok(())
    }

    /// The same vectors as a list of tensors: with one threshold for all, and with one for each.
    fn lists(&mut self, extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
        let [share, _] = SHARES;
        let length = self.pool.len().div_ceil(TENSORS).max(1);
        let mut outs = vec![SparseVec::new(0); self.pool.len().div_ceil(length)];
        self.settle(share, EVEN);
        let of_all = |training: &mut Self, outs: &mut [SparseVec]| {
            let Self { residual, gradient, k, hint, scratch, .. } = training;
            let gradients: Vec<_> = gradient.chunks(length).map(Into::into).collect();
            all_fed(feed_top_k_of_all(residual.chunks_mut(length), &gradients, *k, hint, outs, scratch))
        };
        self.draw();
        let (before, gradient) = (self.residual.clone(), self.gradient.clone());
        of_all(self, &mut outs).of(NAME)?;
        self.verify_list(&before, &gradient, &outs, &top_k_of_sums(&before, &gradient, self.k))?;
        let subject = self.subject(&format!("{TENSORS} tensors, one threshold"), share);
        let kernel = |training: &mut Self| of_all(training, &mut outs);
        told(measure_row(subject, extent.iterations, self, Self::draw, Self::floor, kernel)?);
        self.settle(share, EVEN);
        let mut hints = vec![Hint::new(); self.pool.len().div_ceil(length)];
        let mut each = |training: &mut Self, outs: &mut [SparseVec]| {
            let Self { residual, gradient, scratch, .. } = training;
            let mut tensors =
                residual.chunks_mut(length).zip(gradient.chunks(length)).zip(&mut hints).zip(outs);
            tensors.try_for_each(|(((r, g), hint), out)| {
                let k = entries(share, r.len());
                all_fed(feed_top_k(r, g.into(), k, hint, out, scratch))
            })
        };
        self.draw();
        let (before, gradient) = (self.residual.clone(), self.gradient.clone());
        each(self, &mut outs).of(NAME)?;
        let tensors = before.chunks(length).zip(gradient.chunks(length)).enumerate();
        let largest = tensors.flat_map(|(tensor, (r, g))| {
            let indices = top_k_of_sums(r, g, entries(share, r.len()));
            indices.into_iter().map(move |index| index + (tensor * length) as u32)
        });
        self.verify_list(&before, &gradient, &outs, &largest.collect::<Vec<_>>())?;
        let subject = self.subject(&format!("{TENSORS} tensors, one threshold each"), share);
        let kernel = |training: &mut Self| each(training, &mut outs);
        told(measure_row(subject, extent.iterations, self, Self::draw, Self::floor, kernel)?);
        Ok(())
    }

    /// Checks that a list of tensors gives the same selection as a plain one, and that the selection plus
    /// what stays is the sum.
    fn verify_list(
        &self,
        before: &[f32],
        gradient: &[f32],
        outs: &[SparseVec],
        expected: &[u32],
    ) -> Result<()> {
        let (mut first, mut found) = (0, Vec::new());
        let mut whole = self.residual.clone();
        for out in outs {
            found.extend(out.indices().iter().map(|index| index + first as u32));
            out.add_to(&mut whole[first..first + out.dim()]);
            first += out.dim();
        }
        let mut sums = before.iter().zip(gradient).map(|(r, g)| r + g);
        let is_right = found == expected && whole.iter().all(|whole| sums.next() == Some(*whole));
        check(is_right, NAME, "a list of tensors does not give up its largest sums")
    }
}

/// The indices of the `k` largest sums, by a plain implementation.
fn top_k_of_sums(r: &[f32], g: &[f32], k: usize) -> Vec<u32> {
    plain::top_k(r.iter().zip(g).map(|(r, g)| r + g), k)
}
