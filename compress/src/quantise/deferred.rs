//! Error feedback in one pass for codes whose scale is known last.

use super::feedback::KIND;
use super::{BLOCK, Encoded, Quantiser, later};
use crate::Error;
use crate::bits::check_finite;
use crate::dense::take_out;
use crate::error::check_length;
use crate::simd::Level;
use crate::simd::step::{Figures, Step, Values};
use crate::state::{Reader, State, Writer};

/// A quantiser whose codes need no scale, and whose scale is made of sums: [`Sign`](super::Sign) and
/// [`TwoBit`](super::TwoBit). Not for others to implement.
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

/// [`Quantiser::encode`] for them.
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

/// What has been done about the last message.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    /// There is none, or it has been put back.
    None,
    /// The residual still contains it.
    Contained,
    /// It has been subtracted.
    Subtracted,
}

/// Error feedback in one pass of memory a step: what a message says is taken out of the residual when the
/// next gradient comes, `r = (r - d) + g`. The results are the bits of `r += g`, encode, `r -= d`.
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
    /// Feedback for a vector of `n` values, which is zero.
    pub fn new(n: usize, quantiser: Q) -> Self {
        let message = vec![0; quantiser.encoded_bytes(n)];
        Self { quantiser, values: vec![0.0; n], next: message.clone(), message, last: Last::None }
    }

    /// Adds `gradient` to the residual and encodes the sum. The message, of the quantiser's format, stays
    /// readable until the next call.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]: nothing has changed then. [`Error::NonFinite`] for the first sum that is
    /// not finite: the residual is finite then and what it was, but for the rounding of adding and
    /// subtracting part of the gradient, and the last message counts as delivered. The quantiser remembers
    /// nothing of it.
    pub fn compress(&mut self, gradient: &[f32]) -> Result<&[u8], Error> {
        let n = self.values.len();
        check_length(n, gradient.len())?;
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

    /// The last message; none before the first, and after [`put_back`](Self::put_back).
    pub fn message(&self) -> Option<&[u8]> {
        (self.last != Last::None).then_some(&*self.message)
    }

    /// The quantiser.
    pub fn quantiser(&self) -> &Q {
        &self.quantiser
    }

    /// The quantiser, to load what it remembers.
    pub fn quantiser_mut(&mut self) -> &mut Q {
        &mut self.quantiser
    }

    /// The residual, without what the last message says. Cost: a pass, if nobody has asked since.
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

    /// Puts the last message back, which was not delivered: exactly, unless [`residual`](Self::residual) was
    /// asked for in between: to rounding then, and finite. Nothing happens where there is none.
    pub fn put_back(&mut self) {
        if self.last == Last::Subtracted {
            let said = Encoded::new(self.quantiser.format(), self.values.len(), &self.message);
            // What this object has written is well-formed, and as long.
            let _ = said.and_then(|said| said.put_back_to(&mut self.values));
        }
        self.last = Last::None;
    }

    /// `r -= message` from a value on that begins a block.
    fn subtract_message(&mut self, first: usize) {
        let n = self.values.len();
        // What this object has written is well-formed.
        if let Ok(said) = Encoded::new(self.quantiser.format(), n, &self.message) {
            said.add_range(-1.0, first..n, &mut self.values);
        }
    }

    /// What [`residual`](Self::residual) gives, as a copy.
    fn residual_copy(&self) -> Vec<f32> {
        let mut residual = self.values.clone();
        if self.last == Last::Contained
            && let Ok(said) = Encoded::new(self.quantiser.format(), residual.len(), &self.message)
        {
            said.add_range(-1.0, 0..residual.len(), &mut residual);
        }
        residual
    }

    /// Takes the gradient out of the values that were done, and finds what was wrong with the others.
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

/// The residual. The last message counts as delivered.
impl<Q: OnePass> State for DeferredFeedback<Q> {
    fn kind(&self) -> [u8; 4] {
        KIND
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.values.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.computed_f32s(self.values.len(), || self.residual_copy());
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        self.last = Last::None;
        contents.f32s(&mut self.values)
    }
}
