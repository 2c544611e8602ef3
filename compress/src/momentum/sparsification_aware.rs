//! Sparsification-aware momentum.

use super::{check_momentum, check_sums, for_blocks};
use crate::bits::INFINITE;
use crate::error::check_length;
use crate::feedback::{Compressor, Gradient, Residual};
use crate::simd::{Level, codes, momentum};
use crate::state::{Reader, State, Writer};
use crate::{Error, SparseView};

/// SAMomentum: `u = m u + rate g`; a selection of `u` is sent. The entries that are not sent are divided by
/// `m`; the sent ones keep their `u` (Yan et al., ICPP 2020). An entry that is not sent for `T` steps then
/// carries `m u + rate (sum of its T gradients)`, like one step with a `T` times larger batch.
///
/// The implementation avoids the division by keeping `w = m u`: each step does `w += rate g`, and sent
/// entries are multiplied by `m` afterwards. Entries that are not sent are only added to, with one rounding a
/// step, and `1 / m` can't cause an overflow. If the compressor changes values, `w` loses `1 - m` of the
/// decoded message.
///
/// Holds one dense vector. The receiver applies messages as they are: they contain the rate.
///
/// ```
/// use brevity_compress::{SparseVec, feedback::TopK, momentum::SparsificationAware};
///
/// let mut momentum = SparsificationAware::new(2, TopK::new(1), 0.5)?;
/// let mut message = SparseVec::new(2);
/// momentum.compress(&[4.0, 1.0][..], 1.0, &mut message)?;
/// assert_eq!(momentum.state(), [2.0, 1.0]);
/// momentum.compress(&[-2.0, 1.0][..], 1.0, &mut message)?;
/// assert_eq!((message.indices(), message.values()), (&[1][..], &[2.0][..]));
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SparsificationAware<C> {
    compressor: C,
    momentum: f32,
    w: Residual,
}

impl<C: Compressor> SparsificationAware<C> {
    /// For a tensor of `n` elements; `momentum` is `m`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless `0 < momentum < 1`; [`Error::Memory`].
    pub fn new(n: usize, compressor: C, momentum: f32) -> Result<Self, Error> {
        check_momentum(momentum, true)?;
        Ok(Self { compressor, momentum, w: Residual::try_new(n)? })
    }

    /// The compressor.
    pub fn compressor(&self) -> &C {
        &self.compressor
    }

    /// The compressor, for changing its settings.
    pub fn compressor_mut(&mut self) -> &mut C {
        &mut self.compressor
    }

    /// `w = m u`.
    pub fn state(&self) -> &[f32] {
        self.w.values()
    }

    /// A step: compresses `u` into `message`.
    ///
    /// Cost: with rate 1, that of [`Compressor::feed`], which is one pass for
    /// [`TopK`](crate::feedback::TopK); the receiver may multiply by the rate instead. With other rates, a
    /// pass to add and the compressor's passes.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::OutOfRange`] unless `rate` is finite: nothing has changed then.
    /// [`Error::NonFinite`] for the first element or sum that is not finite: the state is unchanged up to
    /// rounding. After an error of the compressor itself the gradient is in the state, and nothing counts as
    /// sent. `message` must not be sent after any error.
    pub fn compress<'a>(
        &mut self,
        gradient: impl Into<Gradient<'a>>,
        rate: f32,
        message: &mut C::Message,
    ) -> Result<(), Error> {
        let gradient = gradient.into();
        check_length(self.w.len(), gradient.len())?;
        if !rate.is_finite() {
            return Err(Error::OutOfRange {
                what: "rate",
                value: f64::from(rate),
                expected: "a finite number",
            });
        }
        let Self { compressor, momentum, w } = self;
        if rate == 1.0 {
            compressor.feed(w, gradient, message)?;
        } else {
            w.change(|values| add_scaled(values, rate, gradient))?;
            compressor.compress(w.values(), message)?;
            w.change(|values| compressor.add_decoded(message, -1.0, values))?;
        }
        w.change(|values| compressor.add_decoded(message, *momentum, values))
    }

    /// The first half of a [step](Self::compress) with rate 1: adds the gradient and takes nothing out.
    /// [`take`](Self::take) or [`deliver`](Self::deliver) is the other half.
    ///
    /// # Errors
    /// As for [`Residual::accumulate`].
    pub fn accumulate(&mut self, gradient: &[f32]) -> Result<(), Error> {
        self.w.accumulate(gradient)
    }

    /// Takes out a message that was made of the whole [state](Self::state): what [`compress`](Self::compress)
    /// does after its compressor.
    ///
    /// # Errors
    /// The same as for [`Compressor::add_decoded`].
    pub fn take(&mut self, message: &C::Message) -> Result<(), Error> {
        let Self { compressor, momentum, w } = self;
        w.change(|values| compressor.add_decoded(message, -1.0, values))?;
        w.change(|values| compressor.add_decoded(message, *momentum, values))
    }

    /// The whole state was delivered, as in a dense step: `w *= m`.
    pub fn deliver(&mut self) {
        let momentum = self.momentum;
        self.w.change(|values| values.iter_mut().for_each(|w| *w *= momentum));
    }

    /// Puts the last message back because it was not delivered: its entries count as not sent. Exact if the
    /// compressor does not change values and no step was made since.
    ///
    /// # Errors
    /// The same as for [`Compressor::add_decoded`].
    pub fn put_back(&mut self, message: &C::Message) -> Result<(), Error> {
        let Self { compressor, momentum, w } = self;
        w.change(|values| compressor.add_decoded(message, -*momentum, values))?;
        w.change(|values| compressor.add_decoded(message, 1.0, values))
    }

    /// Whether [`put_back`](Self::put_back) of a message with these entries would succeed.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::NonFinite`] for the first sum that is not finite.
    pub fn check_put_back(&self, entries: SparseView<'_>) -> Result<(), Error> {
        let taken = |w: f32, value: f32| w - self.momentum * value;
        check_sums(entries, self.w.values(), taken)?;
        check_sums(entries, self.w.values(), |w, value| taken(w, value) + value)
    }

    /// Takes the gradient of the last step, with its rate, out of `w` again. Its message must have been
    /// [put back](Self::put_back) before. Each element is restored up to rounding.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; nothing has changed then.
    pub fn withdraw<'a>(&mut self, gradient: impl Into<Gradient<'a>>, rate: f32) -> Result<(), Error> {
        let gradient = gradient.into();
        check_length(self.w.len(), gradient.len())?;
        self.w.change(|values| {
            for (index, value) in values.iter_mut().enumerate() {
                // The sum was rounded, so the difference may exceed the largest number by half a unit.
                *value = (*value - rate * gradient.at(index)).clamp(f32::MIN, f32::MAX);
            }
        });
        Ok(())
    }

    /// Replaces `w`, for example by a saved one.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::NonFinite`]; nothing has changed then.
    pub fn load(&mut self, state: &[f32]) -> Result<(), Error> {
        self.w.load(state)
    }
}

/// `w += rate g` in one pass. If a sum is not finite, takes it out again, up to rounding.
fn add_scaled(w: &mut [f32], rate: f32, gradient: Gradient<'_>) -> Result<(), Error> {
    let level = Level::best();
    let added = for_blocks(gradient, |first, g| {
        let sums = &mut w[first..first + g.len()];
        if momentum::largest_scaled_sum(level, sums, rate, g) >= INFINITE {
            let mut sums = sums.iter().zip(g).map(|(w, g)| w + rate * g).enumerate();
            let (place, value) = sums.find(|(_, sum)| !sum.is_finite()).unwrap_or((0, f32::NAN));
            return Err((first, Error::NonFinite { index: first + place, value }));
        }
        codes::add_scaled(level, sums, rate, g);
        Ok(())
    });
    added.map_err(|(done, error)| {
        let _ = for_blocks::<()>(gradient.slice(0..done), |first, g| {
            let sums = &mut w[first..first + g.len()];
            codes::add_scaled(level, sums, -rate, g);
            // The sum was rounded, so the difference may exceed the largest number by half a unit.
            sums.iter_mut().for_each(|value| *value = value.clamp(f32::MIN, f32::MAX));
            Ok(())
        });
        error
    })
}

/// Saves `w`. The message of the last step counts as delivered.
impl<C> State for SparsificationAware<C> {
    fn kind(&self) -> [u8; 4] {
        *b"samo"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.w.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.part(&self.w);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.part(&mut self.w)
    }
}
