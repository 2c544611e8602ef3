//! Exact selection, fused with the addition of the gradient, over the addition alone.

use brevity::compress::SparseVec;
use brevity::compress::dense::{add_assign, add_assign_plain};
use brevity::compress::generator::Generator;
use brevity::compress::select::{Hint, TopKScratch, feed_top_k, top_k};

use super::{Extent, Row, Subject, measure as measure_row};
use crate::{Error, Result};

/// What the selection knows beforehand.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    /// Where the last one ended, which had the same input.
    Last,
    /// Nothing: a sample is taken.
    Nothing,
    /// Where one of twice as large values ended: too high.
    Wrong,
}

/// One gradient drop: data, and everything that it needs.
struct Drop {
    /// The residual before each turn.
    start: Vec<f32>,
    residual: Vec<f32>,
    gradient: Vec<f32>,
    k: usize,
    threads: usize,
    known: Known,
    hint: Hint,
    wrong: Hint,
    out: SparseVec,
    scratch: TopKScratch,
}

/// Shares of entries kept in the rows that have a bar.
const SHARES: [f64; 2] = [0.001, 0.01];

/// Data of other shapes than the normal one: their name, and an element of a vector of `n` by its index and a normal deviate.
type Shape = (&'static str, fn(usize, usize, f32, &mut Generator) -> f32);

const SHAPES: [Shape; 5] = [
    ("heavy-tailed", |_, _, normal, generator| normal / (generator.uniform() as f32 + 1e-6)),
    ("95 % zeros", |_, _, normal, generator| if generator.below(20) > 0 { 0.0 } else { normal }),
    ("all equal", |_, _, _, _| 0.25),
    ("ascending", |i, _, _, _| i as f32),
    ("largest at the end", |i, n, normal, _| if i + 1 == n { 1e30 } else { normal }),
];

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut drop = Drop::new(extent.elements);
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
    told(drop.growing(thousandth, extent));
    told(drop.plain(thousandth, extent));
    told(drop.plain(hundredth, extent));
    drop.start.fill(0.0);
    for (name, element) in SHAPES {
        drop.fill_gradient(element);
        told(drop.row(&format!("{name}, warm"), thousandth, Known::Last, 1, Some(1.4), extent)?);
        told(drop.row(&format!("{name}, cold"), thousandth, Known::Nothing, 1, Some(1.4), extent)?);
    }
    Ok(())
}

impl Drop {
    /// Residual and gradient of independent normal deviates.
    fn new(n: usize) -> Self {
        let (mut start, mut gradient) = (vec![0.0; n], vec![0.0; n]);
        Generator::new(1).fill_normal(&mut start);
        Generator::new(2).fill_normal(&mut gradient);
        Self {
            residual: start.clone(),
            start,
            gradient,
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

    fn set(&mut self, share: f64, known: Known, threads: usize) {
        let n = self.start.len();
        self.k = (share * n as f64).round() as usize;
        (self.known, self.threads, self.hint) = (known, threads, Hint::new());
        self.scratch = TopKScratch::with_threads(threads);
        if known == Known::Wrong {
            self.residual.iter_mut().zip(&self.start).for_each(|(r, start)| *r = 2.0 * start);
            add_assign(&mut self.residual, &self.gradient).unwrap_or_default();
            self.feed();
            self.wrong = self.hint;
        }
    }

    /// Gradient drops that all begin with the same residual.
    fn row(
        &mut self,
        what: &str,
        share: f64,
        known: Known,
        threads: usize,
        bar: Option<f64>,
        extent: Extent,
    ) -> Result<Row> {
        self.set(share, known, threads);
        self.verify()?;
        let floor = if threads == 1 { "acc" } else { "acc, 2 thr." };
        let subject = self.subject(format!("gradient drop, {what}"), share, floor, bar);
        Ok(measure_row(subject, extent.iterations, self, Self::prepare, Self::floor, Self::feed))
    }

    /// Gradient drops one after the other: the residual is what the last one left, gradients differ in order and scale. The
    /// residual fills up, so its threshold rises from step to step.
    fn growing(&mut self, share: f64, extent: Extent) -> Row {
        self.set(share, Known::Last, 1);
        self.residual.fill(0.0);
        let pool = self.gradient.clone();
        let (mut generator, mut sum) = (Generator::new(4), self.start.clone());
        let prepare = |drop: &mut Self| {
            let shift = generator.below(pool.len().max(1) as u64) as usize;
            let scale = 1.0 + 0.05 * generator.normal();
            let rotated = pool[shift..].iter().chain(&pool[..shift]);
            drop.gradient.iter_mut().zip(rotated).for_each(|(g, v)| *g = scale * v);
        };
        let floor = |drop: &mut Self| add_assign_plain(&mut sum, &drop.gradient).unwrap_or_default();
        let subject = self.subject("gradient drop, residual filling up".into(), share, "acc", None);
        let row = measure_row(subject, extent.iterations, self, prepare, floor, Self::feed);
        self.gradient = pool;
        row
    }

    /// Selection from a vector that stays as it is, over a sum of it.
    fn plain(&mut self, share: f64, extent: Extent) -> Row {
        self.set(share, Known::Nothing, 1);
        let bytes = 4 * self.start.len();
        let subject = Subject { bytes, ..self.subject("top k of a fixed vector, cold".into(), share, "read", None) };
        let floor = |drop: &mut Self| {
            std::hint::black_box(drop.start.iter().fold(0_u32, |sum, value| sum.wrapping_add(value.to_bits())));
        };
        let kernel = |drop: &mut Self| {
            top_k(&drop.start, drop.k, &mut drop.out, &mut drop.scratch).unwrap_or_default();
        };
        measure_row(subject, extent.iterations, self, |_| (), floor, kernel)
    }

    fn subject(&self, kernel: String, share: f64, floor: &'static str, bar: Option<f64>) -> Subject {
        let elements = self.start.len();
        Subject { kernel, elements, density: Some(share), bytes: 12 * elements, floor, bar }
    }

    fn prepare(&mut self) {
        self.residual.copy_from_slice(&self.start);
        match self.known {
            Known::Last => (),
            Known::Nothing => self.hint = Hint::new(),
            Known::Wrong => self.hint = self.wrong,
        }
    }

    fn floor(&mut self) {
        let (r, g) = (&mut self.residual[..], &self.gradient[..]);
        if self.threads == 1 {
            return add_assign_plain(r, g).unwrap_or_default();
        }
        let share = r.len().div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            let mut shares = r.chunks_mut(share).zip(g.chunks(share));
            let own = shares.next();
            shares.for_each(|(r, g)| drop(scope.spawn(|| add_assign_plain(r, g))));
            own.map(|(r, g)| add_assign_plain(r, g));
        });
    }

    fn feed(&mut self) {
        let Self { residual, gradient, k, hint, out, scratch, .. } = self;
        let fed = feed_top_k(residual, gradient[..].into(), *k, hint, out, scratch);
        debug_assert_eq!(fed, Ok(None));
    }

    /// Makes sure that nothing larger stays than what is selected, and that both together are the sum.
    fn verify(&mut self) -> Result<()> {
        self.prepare();
        self.floor();
        let sums = self.residual.clone();
        self.prepare();
        self.feed();
        let smallest = self.out.values().iter().fold(f32::MAX, |least, value| least.min(value.abs()));
        let largest = self.residual.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let mut whole = self.residual.clone();
        self.out.add_to(&mut whole);
        let non_zero = sums.iter().filter(|&&sum| sum != 0.0).count();
        if self.out.len() == self.k.min(non_zero) && largest <= smallest && whole == sums {
            return Ok(());
        }
        Err(Error::contestant(
            "gradient drop",
            format!("{} selected of {}, or not the largest", self.out.len(), self.k),
        ))
    }
}
