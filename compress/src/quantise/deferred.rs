//! Error feedback in one pass, for codes whose scale is known only after the last value.

use super::feedback::KIND;
use super::{BLOCK, Encoded, Quantiser, check_contracts, later};
use crate::Error;
use crate::bits::check_finite;
use crate::dense::take_out;
use crate::error::check_length;
use crate::simd::Level;
use crate::simd::step::{Figures, Step, Values};
use crate::state::{Reader, State, Writer};

/// A quantiser whose codes need no scale and whose scale is computed from sums: [`Sign`](super::Sign) and
/// [`TwoBit`](super::TwoBit). Other crates can't implement it.
pub trait OnePass: Quantiser {
    #[doc(hidden)]
    fn head_bytes(&self) -> usize;
    /// The magnitude above which values of `r + g` are large.
    #[doc(hidden)]
    fn threshold_of(&self, r: &[f32], g: &[f32]) -> f32;
    #[doc(hidden)]
    fn write_scales(&mut self, figures: &Figures, count: usize, bytes: &mut [u8]);
    #[doc(hidden)]
    fn step(&self, step: Step<'_>, head: &[u8], threshold: f32) -> Result<Figures, usize>;
}

/// [`Quantiser::encode`] for these quantisers.
pub(super) fn encode_in_one_pass(
    quantiser: &mut impl OnePass,
    values: &[f32],
    bytes: &mut Vec<u8>,
) -> Result<(), Error> {
    bytes.resize(quantiser.encoded_bytes(values.len()), 0);
    let threshold = quantiser.threshold_of(values, &[]);
    let next = &mut bytes[quantiser.head_bytes()..];
    match quantiser.step(Step { values: Values::Alone(values), last: &[], next }, &[], threshold) {
        Ok(figures) => quantiser.write_scales(&figures, values.len(), bytes),
        Err(done) => check_finite(&values[done..]).map_err(|error| later(error, done))?,
    }
    Ok(())
}

/// The state of the last message.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    /// There is no message, or it has been put back.
    None,
    /// The residual still contains it.
    Contained,
    /// It has been subtracted.
    Subtracted,
}

/// Error feedback with one pass of memory a step: the next gradient's pass subtracts the last message `d`
/// from the residual, `r = (r - d) + g`. The results have the bits of `r += g`, encode, `r -= d`.
///
/// Holds the residual and two messages.
#[derive(Debug, Clone)]
pub struct DeferredFeedback<Q> {
    quantiser: Q,
    values: Vec<f32>,
    message: Vec<u8>,
    next: Vec<u8>,
    last: Last,
}

impl<Q: OnePass> DeferredFeedback<Q> {
    /// Feedback for a vector of `n` values, initially zero.
    ///
    /// # Errors
    /// [`Error::Diverges`] unless the quantiser [contracts](Quantiser::contracts).
    pub fn new(n: usize, quantiser: Q) -> Result<Self, Error> {
        check_contracts(&quantiser, n)?;
        let message = vec![0; quantiser.encoded_bytes(n)];
        Ok(Self { quantiser, values: vec![0.0; n], next: message.clone(), message, last: Last::None })
    }

    /// Adds `gradient` to the residual and encodes the sum. The message, in the quantiser's format, stays
    /// readable until the next call.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], and the same as for [`new`](Self::new) if the quantiser was replaced:
    /// nothing has changed then. [`Error::NonFinite`] for the first sum that is not finite: part of the
    /// gradient has been added and subtracted again, so the residual is finite and unchanged up to rounding;
    /// the last message counts as delivered, and the quantiser's memory is unchanged.
    pub fn compress(&mut self, gradient: &[f32]) -> Result<&[u8], Error> {
        let n = self.values.len();
        check_length(n, gradient.len())?;
        check_contracts(&self.quantiser, n)?;
        let threshold = self.quantiser.threshold_of(&self.values, gradient);
        let head = self.quantiser.head_bytes();
        let last = if self.last == Last::Contained { &self.message[head..] } else { &[] };
        let values = Values::Sum { r: &mut self.values, g: gradient };
        let step = Step { values, last, next: &mut self.next[head..] };
        match self.quantiser.step(step, &self.message[..head], threshold) {
            Ok(figures) => {
                self.quantiser.write_scales(&figures, n, &mut self.next);
                std::mem::swap(&mut self.message, &mut self.next);
                self.last = Last::Contained;
                Ok(&self.message)
            }
            Err(done) => Err(self.undo(gradient, done)),
        }
    }

    /// The last message; `None` before the first and after [`put_back`](Self::put_back).
    pub fn message(&self) -> Option<&[u8]> {
        (self.last != Last::None).then_some(&*self.message)
    }

    /// The quantiser.
    pub fn quantiser(&self) -> &Q {
        &self.quantiser
    }

    /// The quantiser, for loading its saved state.
    pub fn quantiser_mut(&mut self) -> &mut Q {
        &mut self.quantiser
    }

    /// The residual, without the part that the last message delivers. Cost: a pass on the first call after
    /// each message.
    pub fn residual(&mut self) -> &[f32] {
        if self.last == Last::Contained {
            self.subtract_message(0);
            self.last = Last::Subtracted;
        }
        &self.values
    }

    /// Replaces the residual, for example by a saved one, and forgets the last message.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::NonFinite`]; nothing has changed then.
    pub fn load(&mut self, values: &[f32]) -> Result<(), Error> {
        check_length(self.values.len(), values.len())?;
        check_finite(values)?;
        self.values.copy_from_slice(values);
        self.last = Last::None;
        Ok(())
    }

    /// Puts the last message back because it was not delivered. Exact, unless [`residual`](Self::residual)
    /// was called in between; then up to rounding, and finite. Does nothing without a message.
    pub fn put_back(&mut self) {
        if self.last == Last::Subtracted {
            let said = Encoded::new(self.quantiser.format(), self.values.len(), &self.message);
            // This object wrote the message, so it is well-formed and has the right length.
            let _ = said.and_then(|said| said.put_back_to(&mut self.values));
        }
        self.last = Last::None;
    }

    /// `r -= message`, from value `first` on, which begins a block.
    fn subtract_message(&mut self, first: usize) {
        let n = self.values.len();
        // This object wrote the message, so it is well-formed.
        if let Ok(said) = Encoded::new(self.quantiser.format(), n, &self.message) {
            said.add_range(-1.0, first..n, &mut self.values);
        }
    }

    /// A copy of what [`residual`](Self::residual) returns.
    fn residual_copy(&self) -> Vec<f32> {
        let mut residual = self.values.clone();
        if self.last == Last::Contained
            && let Ok(said) = Encoded::new(self.quantiser.format(), residual.len(), &self.message)
        {
            said.add_range(-1.0, 0..residual.len(), &mut residual);
        }
        residual
    }

    /// Takes the gradient out of the first `done` values, and finds the error in the others.
    fn undo(&mut self, gradient: &[f32], done: usize) -> Error {
        if self.last == Last::Contained {
            self.subtract_message(done);
            self.last = Last::Subtracted;
        }
        let until = gradient.len().min(done + BLOCK);
        let sums = self.values[done..until].iter().zip(&gradient[done..until]).map(|(r, g)| r + g);
        let (place, value) = sums.enumerate().find(|(_, sum)| !sum.is_finite()).unwrap_or((0, f32::NAN));
        take_out(Level::best(), &mut self.values[..done], &gradient[..done]);
        Error::NonFinite { index: done + place, value }
    }
}

/// Saves the residual. The last message counts as delivered.
impl<Q: OnePass> State for DeferredFeedback<Q> {
    fn kind(&self) -> [u8; 4] {
        KIND
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.values.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.computed_f32s(self.values.len(), || Ok(self.residual_copy()));
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        self.last = Last::None;
        contents.f32s(&mut self.values)
    }
}
