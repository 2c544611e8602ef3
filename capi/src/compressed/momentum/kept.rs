//! What is kept of a tensor with momentum.

use std::ffi::c_void;

use brevity::compress::feedback::{Gradient, TopK};
use brevity::compress::momentum::{Clip, MomentumCorrection, SparsificationAware};
use brevity::compress::select::{TopKScratch, top_k};
use brevity::compress::state;
use brevity::compress::{Error, SparseVec, SparseView};

use super::super::residual::refused;
use super::super::selection::over;
use crate::element::{brv_type, with_gradients};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::policy::brv_momentum;

/// What is kept of a tensor.
pub(super) struct Kept {
    pub(super) rule: Rule,
    /// Whether entries were taken since the last gradient.
    pub(super) is_taken: bool,
    scratch: TopKScratch,
}

#[derive(Clone)]
pub(super) enum Rule {
    Corrected(MomentumCorrection<TopK>),
    Aware(SparsificationAware<TopK>),
}

impl Rule {
    pub(super) fn new(
        n: usize,
        rule: brv_momentum,
        momentum: f64,
        clip: Option<Clip>,
    ) -> Result<Self, Failure> {
        // Rounded first: a number just below 1 may become 1.
        let (momentum, none) = (momentum as f32, TopK::new(0));
        let corrected = || {
            let corrected = MomentumCorrection::new(n, none.clone(), momentum).map_err(refused)?;
            Ok(clip.into_iter().fold(corrected, MomentumCorrection::with_clip))
        };
        match rule {
            1 => corrected().map(Self::Corrected),
            2 => Ok(Self::Corrected(corrected()?.with_nesterov())),
            3 if clip.is_none() => {
                SparsificationAware::new(n, none, momentum).map(Self::Aware).map_err(refused)
            }
            3 => Err(Failure::argument("clip is set, expected 0 with BRV_MOMENTUM_AWARE")),
            _ => Err(Failure::argument(format!(
                "rule is {rule}, expected a brv_momentum (1 to 3): without momentum, use a brv_residual"
            ))),
        }
    }

    /// What was not sent.
    pub(super) fn values(&self) -> &[f32] {
        match self {
            Self::Corrected(corrected) => corrected.accumulated(),
            Self::Aware(aware) => aware.state(),
        }
    }

    /// Adds a gradient, and takes out the `k` largest entries.
    fn feed(&mut self, gradient: Gradient<'_>, k: usize, out: &mut SparseVec) -> Result<(), Error> {
        match self {
            Self::Corrected(corrected) => {
                corrected.compressor_mut().set_k(k);
                corrected.compress(gradient, out)
            }
            Self::Aware(aware) => {
                aware.compressor_mut().set_k(k);
                aware.compress(gradient, 1.0, out)
            }
        }
    }

    fn take(&mut self, entries: &SparseVec) -> Result<(), Error> {
        match self {
            Self::Corrected(corrected) => corrected.take(entries),
            Self::Aware(aware) => aware.take(entries),
        }
    }

    pub(super) fn deliver(&mut self) {
        match self {
            Self::Corrected(corrected) => corrected.deliver(),
            Self::Aware(aware) => aware.deliver(),
        }
    }

    fn check_put_back(&self, entries: SparseView<'_>) -> Result<(), Error> {
        match self {
            Self::Corrected(corrected) => corrected.check_put_back(entries),
            Self::Aware(aware) => aware.check_put_back(entries),
        }
    }

    /// Takes entries back; those that are `delivered` were sent, and these are their errors.
    pub(super) fn put_back(&mut self, entries: &SparseVec, delivered: &[u32]) -> Result<(), Error> {
        self.check_put_back(entries.view())?;
        match self {
            Self::Corrected(corrected) => {
                let (errors, others): (Vec<_>, Vec<_>) =
                    entries.iter().partition(|(index, _)| delivered.binary_search(index).is_ok());
                let of = |part: Vec<(u32, f32)>| {
                    let (indices, values) = part.into_iter().unzip();
                    SparseVec::from_parts(entries.dim(), indices, values)
                };
                corrected.put_back(of(others)?.view())?;
                corrected.add_error(of(errors)?.view())
            }
            // An error counts as not sent.
            Self::Aware(aware) => aware.put_back(entries),
        }
    }

    pub(super) fn saved_bytes(&self) -> usize {
        match self {
            Self::Corrected(corrected) => state::saved_bytes(corrected),
            Self::Aware(aware) => state::saved_bytes(aware),
        }
    }
}

impl Kept {
    /// Zeros.
    pub(super) fn new(
        n: usize,
        rule: brv_momentum,
        momentum: f64,
        clip: Option<Clip>,
    ) -> Result<Self, Failure> {
        let rule = Rule::new(n, rule, momentum, clip)?;
        Ok(Self { rule, is_taken: false, scratch: TopKScratch::new() })
    }

    fn len(&self) -> usize {
        self.rule.values().len()
    }

    /// The gradient of this residual.
    ///
    /// # Safety
    /// `start` has `n` elements of the type, set, that nobody writes during `'a`.
    unsafe fn gradient<'a>(
        &self,
        start: *const c_void,
        n: usize,
        r#type: brv_type,
    ) -> Result<Gradient<'a>, Failure> {
        with_gradients!(r#type, E => {
            let gradient = Stretch::new(start.cast::<E>(), n, "gradient")?;
            if n != self.len() {
                let expected = self.len();
                return Err(Failure::argument(format!(
                    "n is {n}, expected {expected}, the length of the residual"
                )));
            }
            // SAFETY: the caller of this function guarantees set memory that nobody writes. Values of the
            // residual, which C can see, are refused before.
            let gradient: &'a [E] = unsafe { gradient.read() };
            Ok(Gradient::from(gradient))
        })
    }

    /// Refuses memory of the residual itself, which [`brv_momentum_residual_view`] shows.
    fn check_apart(&self, start: *const c_void, bytes: usize) -> Result<(), Failure> {
        let gradient = Stretch::new(start.cast::<u8>(), bytes, "gradient")?;
        let velocity = match &self.rule {
            Rule::Corrected(corrected) => corrected.velocity(),
            Rule::Aware(_) => &[],
        };
        for own in [self.rule.values(), velocity] {
            let own = Stretch::new(own.as_ptr().cast::<u8>(), size_of_val(own), "residual")?;
            own.check_apart(gradient, "gradient and the residual itself")?;
        }
        Ok(())
    }

    /// Adds a gradient, and takes out the `k` largest entries.
    ///
    /// # Safety
    /// As for [`gradient`](Self::gradient).
    pub(super) unsafe fn feed(
        &mut self,
        start: *const c_void,
        n: usize,
        r#type: brv_type,
        k: usize,
    ) -> Result<SparseVec, Failure> {
        let bytes = with_gradients!(r#type, E => Ok(n.saturating_mul(size_of::<E>())))?;
        self.check_apart(start, bytes)?;
        // SAFETY: the caller of this function guarantees the same.
        let gradient = unsafe { self.gradient(start, n, r#type) }?;
        let mut out = SparseVec::new(n);
        self.rule.feed(gradient, k, &mut out).map_err(refused)?;
        self.is_taken = k > 0;
        Ok(out)
    }

    /// Takes entries out.
    pub(super) fn take(&mut self, entries: &SparseVec) -> Result<(), Failure> {
        if self.is_taken {
            return Err(Failure::argument(
                "entries were taken since the last gradient: take all of a step at once",
            ));
        }
        self.rule.take(entries).map_err(refused)?;
        self.is_taken = true;
        Ok(())
    }

    /// Takes the largest entries.
    pub(super) fn select(&mut self, k: usize) -> Result<SparseVec, Failure> {
        let mut out = SparseVec::new(0);
        top_k(self.rule.values(), k, &mut out, &mut self.scratch).map_err(refused)?;
        self.take(&out)?;
        Ok(out)
    }

    /// Takes what reaches a threshold, or the `limit` largest entries if these are fewer.
    pub(super) fn select_over(&mut self, threshold: f32, limit: usize) -> Result<SparseVec, Failure> {
        let mut out = SparseVec::new(0);
        over(self.rule.values(), threshold, limit, &mut out, &mut self.scratch).map_err(refused)?;
        self.take(&out)?;
        Ok(out)
    }

    pub(super) fn check_entries(&self, entries: &SparseVec, name: &str) -> Result<(), Failure> {
        let (found, expected) = (entries.dim(), self.len());
        if found == expected {
            return Ok(());
        }
        Err(Failure::argument(format!(
            "the dim of {name} is {found}, expected {expected}, the length of the residual"
        )))
    }
}

#[cfg(test)]
mod tests {
    use brevity::compress::generator::Generator;

    use super::*;

    const N: usize = 500;

    /// Gradients of all types, with the bits of the objects of Rust.
    #[test]
    fn steps_have_the_bits_of_rust() {
        let clip = Clip::new(3.0, 4).unwrap();
        let corrected = || MomentumCorrection::new(N, TopK::new(20), 0.9).unwrap().with_clip(clip);
        let mut plain = Rule::Corrected(corrected());
        let mut nesterov = Rule::Corrected(corrected().with_nesterov());
        let mut aware = Rule::Aware(SparsificationAware::new(N, TopK::new(20), 0.9).unwrap());
        for (number, expected) in (1..).zip([&mut plain, &mut nesterov, &mut aware]) {
            let mut kept = Kept::new(N, number, 0.9, (number < 3).then_some(clip)).unwrap();
            for step in 0..5 {
                let mut generator = Generator::new(step);
                let gradient: Vec<f64> = (0..N).map(|_| f64::from(generator.normal())).collect();
                let (start, mut message) = (gradient.as_ptr().cast::<c_void>(), SparseVec::new(0));
                // SAFETY: a local vector of `N` numbers of this type.
                let selected = unsafe { kept.feed(start, N, f64_number(), 20) }.unwrap();
                expected.feed(Gradient::from(&gradient[..]), 20, &mut message).unwrap();
                assert_eq!(selected, message);
                assert_eq!(kept.rule.values(), expected.values());
            }
        }
    }

    fn f64_number() -> brv_type {
        brevity_collectives::DataType::F64.number().into()
    }
}
