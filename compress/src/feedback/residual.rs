//! The part of a tensor's gradients that has not been sent.

use super::gradient::Gradient;
use crate::bits::largest_finite;
use crate::error::check_length;
use crate::select::{self, Hint, LeftOut, TopKScratch, top_k};
use crate::state::{Reader, State, Writer};
use crate::{Error, SparseVec, SparseView, room};

/// A dense residual, always finite.
#[derive(Debug, Clone)]
pub struct Residual {
    values: Vec<f32>,
    /// An upper bound of the magnitudes in `values`. Additions raise it, so they need not read `values` twice
    /// to rule out an overflow. Only a scan of the values lowers it.
    ceiling: f64,
    /// Where the last selection ended; speeds up the next one.
    hint: Hint,
    /// Places where a sum of the last [`feed_top_k`](Self::feed_top_k) was not finite although the gradient
    /// was.
    overflowed: Vec<u32>,
}

impl Residual {
    /// A residual of `n` zeros.
    pub fn new(n: usize) -> Self {
        Self::of(vec![0.0; n])
    }

    /// Like [`new`](Self::new), for a length that there may be no memory for.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn try_new(n: usize) -> Result<Self, Error> {
        Ok(Self::of(room::zeros(n)?))
    }

    fn of(values: Vec<f32>) -> Self {
        Self { values, ceiling: 0.0, hint: Hint::new(), overflowed: Vec::new() }
    }

    /// The residual.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The Euclidean norm.
    pub fn norm(&self) -> f64 {
        self.values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt()
    }

    /// `r += g`. Reads the gradient twice: all of it is checked before anything is stored.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::NonFinite`] for the first gradient value that is not
    /// finite, else the first sum that overflows. The residual is unchanged then, bit for bit.
    pub fn accumulate(&mut self, gradient: &[f32]) -> Result<(), Error> {
        self.check_addition(gradient, 1.0)?;
        self.values.iter_mut().zip(gradient).for_each(|(r, &g)| *r += g);
        // A later withdrawal is of this gradient.
        self.overflowed.clear();
        Ok(())
    }

    /// `r -= g`: takes a step out again, up to rounding.
    ///
    /// # Errors
    /// The same as for [`accumulate`](Self::accumulate).
    pub fn subtract(&mut self, gradient: &[f32]) -> Result<(), Error> {
        self.check_addition(gradient, -1.0)?;
        self.values.iter_mut().zip(gradient).for_each(|(r, &g)| *r -= g);
        Ok(())
    }

    /// [`accumulate`](Self::accumulate) and [`select`](Self::select) in one pass: see
    /// [`feed_top_k`](select::feed_top_k). If a sum is not finite, the residual keeps its old value there and
    /// the return value says so. A caller that does not send then puts `out` back and
    /// [withdraws](Self::withdraw) the gradient.
    ///
    /// # Errors
    /// The same as for [`feed_top_k`](select::feed_top_k); the residual is unchanged then.
    pub fn feed_top_k<'a>(
        &mut self,
        gradient: impl Into<Gradient<'a>>,
        k: usize,
        out: &mut SparseVec,
        scratch: &mut TopKScratch,
    ) -> Result<Option<LeftOut>, Error> {
        let left_out =
            select::feed_top_k(&mut self.values, gradient.into(), k, &mut self.hint, out, scratch)?;
        self.overflowed.clear();
        self.overflowed.extend(scratch.overflowed().map(|(_, index)| index));
        self.lower_ceiling(self.hint, k, left_out);
        Ok(left_out)
    }

    /// Like [`feed_top_k`](Self::feed_top_k), with one threshold for a list of tensors: see
    /// [`feed_top_k_of_all`](select::feed_top_k_of_all). The caller keeps one `hint` for the list.
    ///
    /// # Errors
    /// The same as for [`feed_top_k_of_all`](select::feed_top_k_of_all); the residuals are unchanged then.
    pub fn feed_top_k_of_all(
        residuals: &mut [Self],
        gradients: &[Gradient<'_>],
        k: usize,
        hint: &mut Hint,
        outs: &mut [SparseVec],
        scratch: &mut TopKScratch,
    ) -> Result<Option<LeftOut>, Error> {
        let values = residuals.iter_mut().map(|residual| &mut residual.values[..]);
        let left_out = select::feed_top_k_of_all(values, gradients, k, hint, outs, scratch)?;
        for residual in &mut *residuals {
            residual.overflowed.clear();
            residual.lower_ceiling(*hint, k, left_out);
        }
        scratch.overflowed().for_each(|(tensor, index)| residuals[tensor].overflowed.push(index));
        Ok(left_out)
    }

    /// Takes the gradient of the last [`feed_top_k`](Self::feed_top_k) or [`accumulate`](Self::accumulate)
    /// out again wherever it was added. What was selected must have been [put back](Self::put_back) before.
    /// The residual is restored up to rounding: the part below half an ulp of a large gradient is lost. Not
    /// for hot paths.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; the residual is unchanged then.
    pub fn withdraw<'a>(&mut self, gradient: impl Into<Gradient<'a>>) -> Result<(), Error> {
        let gradient = gradient.into();
        check_length(self.values.len(), gradient.len())?;
        let mut overflowed = self.overflowed.iter().map(|&index| index as usize).peekable();
        for (index, r) in self.values.iter_mut().enumerate() {
            let g = gradient.at(index);
            if overflowed.next_if_eq(&index).is_none() && g.is_finite() {
                // The sum was rounded, so the difference may exceed the largest number by half a unit.
                *r = (*r - g).clamp(f32::MIN, f32::MAX);
            }
        }
        self.overflowed.clear();
        self.ceiling = f64::from(largest_finite(&self.values)?);
        Ok(())
    }

    /// Moves the `k` largest entries (see [`top_k`]) to `out` and leaves zeros in their place.
    ///
    /// # Errors
    /// The same as for [`top_k`]; the residual is unchanged then.
    pub fn select(&mut self, k: usize, out: &mut SparseVec, scratch: &mut TopKScratch) -> Result<(), Error> {
        top_k(&self.values, k, out, scratch)?;
        out.indices().iter().for_each(|&index| self.values[index as usize] = 0.0);
        Ok(())
    }

    /// Adds back `entries` that were selected but not delivered.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::NonFinite`] for the first sum that is not finite. The
    /// residual is unchanged then.
    pub fn put_back(&mut self, entries: SparseView<'_>) -> Result<(), Error> {
        let largest = self.largest_sum(entries)?;
        entries.add_to(&mut self.values);
        self.ceiling = self.ceiling.max(f64::from(largest));
        Ok(())
    }

    /// Whether [`put_back`](Self::put_back) of `entries` would succeed. Mostly reads only `entries`.
    ///
    /// # Errors
    /// The same as for [`put_back`](Self::put_back).
    pub fn check_put_back(&self, entries: SparseView<'_>) -> Result<(), Error> {
        let largest = entries.values().iter().fold(0.0_f64, |most, &v| most.max(f64::from(v).abs()));
        let is_finite = entries.values().iter().all(|v| v.is_finite());
        if is_finite && entries.dim() == self.len() && self.ceiling + largest <= f64::from(f32::MAX) {
            return Ok(());
        }
        self.largest_sum(entries).map(drop)
    }

    /// The largest magnitude of a sum with one of `entries`.
    fn largest_sum(&self, entries: SparseView<'_>) -> Result<f32, Error> {
        check_length(self.values.len(), entries.dim())?;
        let mut largest = 0.0_f32;
        for (index, value) in entries.iter() {
            let sum = self.values[index as usize] + value;
            if !sum.is_finite() {
                return Err(Error::NonFinite { index: index as usize, value: sum });
            }
            largest = largest.max(sum.abs());
        }
        Ok(largest)
    }

    /// Replaces the residual, for example by a saved one.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::NonFinite`]; the residual is unchanged then.
    pub fn load(&mut self, values: &[f32]) -> Result<(), Error> {
        check_length(self.values.len(), values.len())?;
        self.ceiling = f64::from(largest_finite(values)?);
        self.values.copy_from_slice(values);
        Ok(())
    }

    /// Sets every element to zero.
    pub fn clear(&mut self) {
        self.values.fill(0.0);
        self.ceiling = 0.0;
    }

    /// Sets the elements at these indices to zero: what has been sent of them is delivered.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for the first index that is not below the length. The residual is unchanged
    /// then.
    pub fn clear_at(&mut self, indices: &[u32]) -> Result<(), Error> {
        let dim = self.values.len();
        if let Some(position) = indices.iter().position(|&index| index as usize >= dim) {
            return Err(Error::IndexOutOfRange { position, index: indices[position], dim });
        }
        indices.iter().for_each(|&index| self.values[index as usize] = 0.0);
        Ok(())
    }

    /// Checks that `r + sign * g` is finite everywhere, and raises the ceiling accordingly.
    fn check_addition(&mut self, gradient: &[f32], sign: f32) -> Result<(), Error> {
        check_length(self.values.len(), gradient.len())?;
        let largest = f64::from(largest_finite(gradient)?);
        // Half an ulp of rounding, with a margin.
        let raised = |ceiling: f64| (ceiling + largest) * (1.0 + f64::from(f32::EPSILON));
        if raised(self.ceiling) > f64::from(f32::MAX) {
            self.ceiling = f64::from(largest_finite(&self.values)?);
            let sums = self.values.iter().zip(gradient).map(|(&r, &g)| r + sign * g);
            if let Some((index, value)) = sums.enumerate().find(|(_, sum)| !sum.is_finite()) {
                return Err(Error::NonFinite { index, value });
            }
        }
        self.ceiling = raised(self.ceiling);
        Ok(())
    }

    /// After `k` entries or all have been selected, no remaining magnitude exceeds the smallest selected one,
    /// except those that were left out.
    fn lower_ceiling(&mut self, hint: Hint, k: usize, left_out: Option<LeftOut>) {
        let ceiling = f64::from(if k == 0 { f32::MAX } else { hint.threshold() });
        self.ceiling = if left_out.is_some() { self.ceiling.max(ceiling) } else { ceiling };
    }

    /// Changes the values; `change` must leave them finite. The ceiling is computed again when it is needed.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut [f32]) -> R) -> R {
        self.ceiling = f64::INFINITY;
        change(&mut self.values)
    }
}

impl State for Residual {
    fn kind(&self) -> [u8; 4] {
        *b"resi"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.values.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.f32s(&self.values);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.f32s(&mut self.values)?;
        self.ceiling = f64::from(largest_finite(&self.values)?);
        // Affects only speed.
        self.hint = Hint::new();
        self.overflowed.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(values: &[f32]) -> Residual {
        let mut residual = Residual::new(values.len());
        residual.load(values).unwrap();
        residual
    }

    #[test]
    fn failed_accumulation_changes_nothing() {
        let mut residual = loaded(&[1.0, 1e-30, f32::MAX]);
        let before = residual.values().to_vec();
        for (gradient, index) in [
            ([1e30, f32::NAN, f32::INFINITY], 1),
            ([1e30, 1e30, f32::MAX], 2),
            ([f32::NEG_INFINITY, 0.0, 0.0], 0),
        ] {
            let found = residual.accumulate(&gradient);
            assert!(matches!(found, Err(Error::NonFinite { index: i, .. }) if i == index), "{found:?}");
            assert_eq!(residual.values(), before);
        }
        assert_eq!(residual.accumulate(&[0.0]), Err(Error::LengthMismatch { expected: 3, found: 1 }));
        // The value that overflows in one direction fits in the other.
        residual.subtract(&[0.0, 0.0, f32::MAX]).unwrap();
        assert_eq!(residual.values(), [1.0, 1e-30, 0.0]);
        residual.accumulate(&[0.0, 0.0, f32::MAX]).unwrap();
        assert_eq!(residual.values(), before);
    }

    #[test]
    fn no_sequence_of_additions_slips_past_the_ceiling() {
        let mut residual = Residual::new(1);
        let step = f32::MAX / 3.0;
        let taken = (0..5).take_while(|_| residual.accumulate(&[step]).is_ok()).count();
        assert_eq!(taken, 3);
        assert!(residual.values()[0].is_finite());
        let entry = SparseVec::from_parts(1, vec![0], vec![step]).unwrap();
        assert!(matches!(residual.put_back(entry.view()), Err(Error::NonFinite { index: 0, .. })));
        assert!(matches!(residual.check_put_back(entry.view()), Err(Error::NonFinite { index: 0, .. })));
        residual.clear();
        residual.check_put_back(entry.view()).unwrap();
        for value in [f32::NAN, f32::NEG_INFINITY] {
            let entry = SparseVec::from_parts(1, vec![0], vec![value]).unwrap();
            assert!(matches!(residual.check_put_back(entry.view()), Err(Error::NonFinite { index: 0, .. })));
        }
        assert!(matches!(
            residual.check_put_back(SparseVec::new(2).view()),
            Err(Error::LengthMismatch { .. })
        ));
        residual.put_back(entry.view()).unwrap();
        assert_eq!(residual.values(), [step]);
    }

    #[test]
    fn selection_moves_and_put_back_returns() {
        let mut residual = loaded(&[3.0, -5.0, 1.0, 4.0]);
        let mut out = SparseVec::new(0);
        residual.select(2, &mut out, &mut TopKScratch::new()).unwrap();
        assert_eq!(residual.values(), [3.0, 0.0, 1.0, 0.0]);
        residual.put_back(out.view()).unwrap();
        assert_eq!(residual.values(), [3.0, -5.0, 1.0, 4.0]);
        assert_eq!(residual.norm(), 51.0_f64.sqrt());
    }

    #[test]
    fn a_fed_gradient_can_be_withdrawn_but_for_what_was_left_out() {
        let before = [1.0, -8.0, f32::MAX, -4.0, 2.0];
        let gradient = [2.0, f32::NAN, f32::MAX, 1.0, f32::INFINITY];
        let (mut residual, mut out, mut scratch) = (loaded(&before), SparseVec::new(0), TopKScratch::new());
        let left_out = residual.feed_top_k(&gradient[..], 1, &mut out, &mut scratch).unwrap().unwrap();
        assert_eq!((left_out.count, left_out.index), (3, 1));
        assert!(left_out.value.is_nan());
        assert_eq!((out.indices(), out.values()), (&[0][..], &[3.0][..]));
        assert_eq!(residual.values(), [0.0, -8.0, f32::MAX, -3.0, 2.0]);
        residual.put_back(out.view()).unwrap();
        residual.withdraw(&gradient[..]).unwrap();
        assert_eq!(residual.values(), before);
        // The ceiling must not have been lowered below the value that was left out.
        assert!(matches!(residual.accumulate(&gradient), Err(Error::NonFinite { index: 1, .. })));
        let found = residual.accumulate(&[0.0, 0.0, f32::MAX, 0.0, 0.0]);
        assert_eq!(found, Err(Error::NonFinite { index: 2, value: f32::INFINITY }));
    }

    #[test]
    fn what_is_withdrawn_takes_no_more_than_half_an_ulp_with_it() {
        let (before, gradient) = ([1.5, -700.25, 3.0, 2.0], [1e10, 1e10, 1e-10, f32::NAN]);
        let (mut residual, mut out) = (loaded(&before), SparseVec::new(0));
        residual.feed_top_k(&gradient[..], 1, &mut out, &mut TopKScratch::new()).unwrap();
        residual.put_back(out.view()).unwrap();
        residual.withdraw(&gradient[..]).unwrap();
        let off = |i: usize| (residual.values()[i] - before[i]).abs();
        // An ulp of 1e10 is 1024.
        assert!(
            off(0) <= 512.0 && off(1) <= 512.0 && off(2) == 0.0 && off(3) == 0.0,
            "{:?}",
            residual.values()
        );
    }

    #[test]
    fn delivered_places_become_zero() {
        let mut residual = loaded(&[1.0, -2.0, 3.0]);
        let found = residual.clear_at(&[0, 3]);
        assert_eq!(found, Err(Error::IndexOutOfRange { position: 1, index: 3, dim: 3 }));
        assert_eq!(residual.values(), [1.0, -2.0, 3.0]);
        residual.clear_at(&[0, 2]).unwrap();
        assert_eq!(residual.values(), [0.0, -2.0, 0.0]);
    }

    #[test]
    fn what_stays_after_a_feed_is_below_the_ceiling() {
        for k in [0, 1, 2, 5] {
            let (mut residual, mut out) = (loaded(&[2e38, -1e38, 5e37]), SparseVec::new(0));
            residual.feed_top_k(&[0.0; 3][..], k, &mut out, &mut TopKScratch::new()).unwrap();
            let step = [3e38; 3];
            let sums: Vec<f32> = residual.values().iter().map(|r| r + step[0]).collect();
            let fits = sums.iter().all(|sum| sum.is_finite());
            assert_eq!(residual.accumulate(&step).is_ok(), fits, "k {k}");
        }
    }
}
