//! Dense sums and conversions, compared with an addition or a copy of as many `f32`; and the vectors for the
//! floors.

use std::hint::black_box;
use std::panic::resume_unwind;
use std::thread;

use brevity::compress::dense::{Element, accumulate, add_assign, add_assign_plain, from_f32};
use brevity::compress::generator::Generator;
use half::{bf16, f16};

use super::plain::Plain;
use super::{Done, Extent, Group, Outcome, Row, Subject, check, measure as measure_row, refused};
use crate::Result;

/// A gradient, and a vector for the floors to write.
pub(super) struct Vectors {
    pub(super) gradient: Vec<f32>,
    sum: Vec<f32>,
    extent: Extent,
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let mut vectors = Vectors::new(extent);
    // The bandwidth of two reads and a write must be at least 1.4 and 1.7 times that of a copy of as many
    // f32.
    told(vectors.sum_row::<f32>(Some(1.5 / 1.4))?);
    told(vectors.sum_row::<f64>(None)?);
    told(vectors.sum_row::<bf16>(Some(0.75 / 1.7))?);
    told(vectors.sum_row::<f16>(Some(0.75 / 1.7))?);
    told(vectors.accumulate_row::<f32>()?);
    told(vectors.accumulate_row::<bf16>()?);
    told(vectors.conversion_row::<bf16>(Some(1.2))?);
    told(vectors.conversion_row::<f16>(None)?);
    Ok(())
}

/// `n` normal deviates.
pub(super) fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    Generator::new(seed).fill_normal(&mut values);
    values
}

/// A sum of the bits: the least time for reading all values.
pub(super) fn read(values: &[f32]) {
    black_box(values.iter().fold(0_u32, |sum, value| sum.wrapping_add(value.to_bits())));
}

/// Adds with `threads` threads, a stretch each. The threads are started here.
pub(super) fn add_in_shares(r: &mut [f32], g: &[f32], threads: usize) -> Done {
    if threads == 1 {
        return add_assign_plain(r, g);
    }
    let share = r.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let mut shares = r.chunks_mut(share).zip(g.chunks(share));
        let own = shares.next();
        let others: Vec<_> = shares.map(|(r, g)| scope.spawn(|| add_assign_plain(r, g))).collect();
        let own = own.map_or(Ok(()), |(r, g)| add_assign_plain(r, g));
        let joined =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.fold(own, Result::and)
    })
}

impl Vectors {
    /// A gradient of normal deviates.
    pub(super) fn new(extent: Extent) -> Self {
        let gradient = normal(extent.elements, 5);
        Self { sum: gradient.clone(), gradient, extent }
    }

    /// Measures a kernel in turns with one of the floors below.
    pub(super) fn row<F: Outcome, K: Outcome>(
        &mut self,
        subject: Subject,
        floor: impl FnMut(&mut Self) -> F,
        kernel: impl FnMut(&mut Self) -> K,
    ) -> Result<Row> {
        measure_row(subject, self.extent.iterations, self, |_| (), floor, kernel)
    }

    /// Like [`row`](Self::row), but the gradient begins at another place in each turn, so that no two are
    /// equal.
    pub(super) fn rotating_row<F: Outcome, K: Outcome>(
        &mut self,
        subject: Subject,
        floor: impl FnMut(&mut Self) -> F,
        kernel: impl FnMut(&mut Self) -> K,
    ) -> Result<Row> {
        let (pool, mut generator) = (self.gradient.clone(), Generator::new(6));
        let rotate = |vectors: &mut Self| {
            let (before, after) = pool.split_at(generator.below(pool.len().max(1) as u64) as usize);
            let (first, last) = vectors.gradient.split_at_mut(after.len());
            first.copy_from_slice(after);
            last.copy_from_slice(before);
        };
        let row = measure_row(subject, self.extent.iterations, self, rotate, floor, kernel);
        self.gradient = pool;
        row
    }

    /// `r += g`.
    pub(super) fn acc(&mut self) -> Done {
        add_assign_plain(&mut self.sum, &self.gradient)
    }

    /// A copy.
    pub(super) fn copy(&mut self) {
        black_box(&mut self.sum[..]).copy_from_slice(black_box(&self.gradient));
    }

    /// A read.
    pub(super) fn read(&mut self) {
        read(&self.gradient);
    }

    /// A kernel on as many elements as the gradient has.
    pub(super) fn subject(
        &self,
        group: Group,
        kernel: impl Into<String>,
        bytes_each: usize,
        floor: &'static str,
    ) -> Subject {
        Subject::new(group, kernel, self.gradient.len(), bytes_each, floor)
    }

    /// The gradient in another type, in whose range normal deviates are.
    fn converted<E: Element>(&self) -> Result<Vec<E>> {
        let mut values = vec![E::default(); self.gradient.len()];
        from_f32(&self.gradient, &mut values).map_err(refused(E::NAME))?;
        Ok(values)
    }

    fn sum_row<E: Plain>(&mut self, bar: Option<f64>) -> Result<Row> {
        let name = format!("a += b, {}", E::NAME);
        let (mut a, mut b) = (self.converted::<E>()?, self.converted::<E>()?);
        b.reverse();
        let expected: Vec<E> = a.iter().zip(&b).map(|(a, b)| E::plain_sum(*a, *b)).collect();
        add_assign(&mut a, &b).map_err(refused(&name))?;
        check(a == expected, &name, "a sum is not that of a plain loop")?;
        drop(expected);
        let subject = self.subject(Group::Dense, name, 3 * size_of::<E>(), "copy");
        self.row(subject.at_most(bar), Self::copy, |_| add_assign(&mut a, &b))
    }

    fn accumulate_row<E: Plain>(&mut self) -> Result<Row> {
        let name = format!("r += g, {}, refused unless finite", E::NAME);
        let (mut r, g) = (self.gradient.clone(), self.converted::<E>()?);
        accumulate(&mut r, &g).map_err(refused(&name))?;
        let mut sums = self.gradient.iter().zip(&g).map(|(r, g)| r + g.plain_f32());
        check(r.iter().all(|r| sums.next() == Some(*r)), &name, "a sum is not that of a plain loop")?;
        let subject = self.subject(Group::Dense, name, 8 + size_of::<E>(), "acc");
        self.row(subject, Self::acc, |_| accumulate(&mut r, &g))
    }

    fn conversion_row<E: Plain>(&mut self, bar: Option<f64>) -> Result<Row> {
        let name = format!("f32 to {}", E::NAME);
        let mut to = self.converted::<E>()?;
        let is_plain = self.gradient.iter().zip(&to).all(|(from, to)| E::plain_from(*from) == *to);
        check(is_plain, &name, "a value is not rounded as one at a time is")?;
        let subject = self.subject(Group::Dense, name, 4 + size_of::<E>(), "copy");
        self.row(subject.at_most(bar), Self::copy, |vectors| from_f32(&vectors.gradient, &mut to))
    }
}
