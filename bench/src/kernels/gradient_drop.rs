//! Exact selection in the pass that adds the gradient, compared with the addition alone.

use brevity::compress::SparseVec;
use brevity::compress::dense::add_assign;
use brevity::compress::generator::Generator;
use brevity::compress::select::{Hint, TopKScratch, feed_top_k};

use super::vectors::{add_in_shares, normal};
use super::{Done, Extent, Group, Outcome, Row, Subject, all_fed, measure as measure_row, refused};
use crate::{Error, Result};

/// What the selection knows beforehand.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Known {
    /// The end of the last selection, which had the same input.
    Last,
    /// Nothing: a sample is taken.
    Nothing,
    /// The end of a selection from values twice as large, which is too high.
    Wrong,
}

/// One gradient drop: data and work space.
pub(super) struct GradientDrop {
    /// The residual before each turn.
    pub(super) start: Vec<f32>,
    residual: Vec<f32>,
    pub(super) gradient: Vec<f32>,
    pub(super) k: usize,
    threads: usize,
    known: Known,
    hint: Hint,
    wrong: Hint,
    pub(super) out: SparseVec,
    scratch: TopKScratch,
}

const NAME: &str = "gradient drop";

/// Shares of entries kept in the rows that have a bar.
pub(super) const SHARES: [f64; 2] = [0.001, 0.01];

/// Data with another distribution than the normal one: its name, and an element of a vector of `n` by index
/// and normal deviate.
type Shape = (&'static str, fn(usize, usize, f32, &mut Generator) -> f32);

const SHAPES: [Shape; 5] = [
    ("heavy-tailed", |_, _, normal, generator| normal / (generator.uniform() as f32 + 1e-6)),
    ("95 % zeros", |_, _, normal, generator| if generator.below(20) > 0 { 0.0 } else { normal }),
    ("all equal", |_, _, _, _| 0.25),
    ("ascending", |i, _, _, _| i as f32),
    ("largest at the end", |i, n, normal, _| if i + 1 == n { 1e30 } else { normal }),
];

/// The number of entries in a share of `n`, at least one.
pub(super) fn entries(share: f64, n: usize) -> usize {
    ((share * n as f64).round() as usize).max(1)
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut drop = GradientDrop::new(extent.elements);
    let [thousandth, hundredth] = SHARES;
    for (share, known, what, bar) in [
        (thousandth, Known::Last, "warm", Some(1.15)),
        (hundredth, Known::Last, "warm", Some(1.5)),
        (thousandth, Known::Nothing, "cold", Some(1.25)),
        (hundredth, Known::Nothing, "cold", None),
        (thousandth, Known::Wrong, "guess wrong", Some(2.5)),
        (hundredth, Known::Wrong, "guess wrong", None),
    ] {
        told(drop.row(what, share, known, 1, bar, extent)?);
    }
    told(drop.row("warm, 2 threads", thousandth, Known::Last, 2, Some(1.5), extent)?);
    told(drop.row("warm, 2 threads", hundredth, Known::Last, 2, None, extent)?);
    drop.start.fill(0.0);
    for (name, element) in SHAPES {
        drop.fill_gradient(element);
        told(drop.row(&format!("{name}, warm"), thousandth, Known::Last, 1, Some(1.4), extent)?);
        told(drop.row(&format!("{name}, cold"), thousandth, Known::Nothing, 1, Some(1.4), extent)?);
    }
    Ok(())
}

impl GradientDrop {
    /// Residual and gradient of independent normal deviates.
    pub(super) fn new(n: usize) -> Self {
        let start = normal(n, 1);
        Self {
            residual: start.clone(),
            start,
            gradient: normal(n, 2),
            k: 0,
            threads: 1,
            known: Known::Last,
            hint: Hint::new(),
            wrong: Hint::new(),
            out: SparseVec::new(n),
            scratch: TopKScratch::new(),
        }
    }

    fn fill_gradient(&mut self, element: impl Fn(usize, usize, f32, &mut Generator) -> f32) {
        let (n, mut generator) = (self.gradient.len(), Generator::new(3));
        for (i, g) in self.gradient.iter_mut().enumerate() {
            let normal = generator.normal();
            *g = element(i, n, normal, &mut generator);
        }
    }

    /// Sets what the next turns do.
    pub(super) fn set(&mut self, share: f64, known: Known, threads: usize) -> Result<()> {
        let n = self.start.len();
        self.k = entries(share, n);
        (self.known, self.threads, self.hint) = (known, threads, Hint::new());
        self.scratch = TopKScratch::with_threads(threads);
        if known == Known::Wrong {
            self.residual.iter_mut().zip(&self.start).for_each(|(r, start)| *r = 2.0 * start);
            add_assign(&mut self.residual, &self.gradient).map_err(refused(NAME))?;
            self.feed().of(NAME)?;
            self.wrong = self.hint;
        }
        Ok(())
    }

    /// Measures gradient drops that all begin with the same residual.
    fn row(
        &mut self,
        what: &str,
        share: f64,
        known: Known,
        threads: usize,
        bar: Option<f64>,
        extent: Extent,
    ) -> Result<Row> {
        self.set(share, known, threads)?;
        self.verify()?;
        let floor = if threads == 1 { "acc" } else { "acc, 2 thr." };
        let subject = self.subject(what, share, floor).at_most(bar);
        measure_row(subject, extent.iterations, self, Self::prepare, Self::floor, Self::feed)
    }

    pub(super) fn subject(&self, what: &str, share: f64, floor: &'static str) -> Subject {
        let subject =
            Subject::new(Group::Drop, format!("gradient drop, {what}"), self.start.len(), 12, floor);
        Subject { density: Some(share), ..subject }
    }

    pub(super) fn prepare(&mut self) {
        self.residual.copy_from_slice(&self.start);
        match self.known {
            Known::Last => (),
            Known::Nothing => self.hint = Hint::new(),
            Known::Wrong => self.hint = self.wrong,
        }
    }

    fn floor(&mut self) -> Done {
        add_in_shares(&mut self.residual, &self.gradient, self.threads)
    }

    pub(super) fn feed(&mut self) -> Result<(), String> {
        let Self { residual, gradient, k, hint, out, scratch, .. } = self;
        all_fed(feed_top_k(residual, gradient[..].into(), *k, hint, out, scratch))
    }

    /// Checks that no remaining value is larger than a selected one, and that both together are the sum.
    pub(super) fn verify(&mut self) -> Result<()> {
        self.prepare();
        self.floor().of(NAME)?;
        let sums = self.residual.clone();
        self.prepare();
        self.feed().of(NAME)?;
        let smallest = self.out.values().iter().fold(f32::MAX, |least, value| least.min(value.abs()));
        let largest = self.residual.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let mut whole = self.residual.clone();
        self.out.add_to(&mut whole);
        let non_zero = sums.iter().filter(|&&sum| sum != 0.0).count();
        if self.out.len() == self.k.min(non_zero) && largest <= smallest && whole == sums {
            return Ok(());
        }
        Err(Error::contestant(NAME, format!("{} selected of {}, or not the largest", self.out.len(), self.k)))
    }
}
