//! Momentum correction.

use super::{Clip, check_momentum, check_sums, for_blocks, largest_finite, squared_norm};
use crate::bits::{check_finite, magnitude};
use crate::error::check_length;
use crate::feedback::{Compressor, Gradient, add_entries};
use crate::simd::{Level, momentum};
use crate::state::{Reader, State, Writer};
use crate::{Error, SparseVec, SparseView, room};

/// Momentum correction: `u = m u + g; v += u`, selection from `v`. Where an entry is sent, `u` and `v` are
/// reset to zero, so that old momentum has no further effect (*masking*; Lin et al., ICLR 2018, 3.1 and 3.3).
///
/// If the compressor changes values, `v` keeps what the message misses. Holds two dense vectors. Without
/// momentum it is error feedback.
///
/// ```
/// use brevity_compress::{SparseVec, feedback::TopK, momentum::MomentumCorrection};
///
/// let mut correction = MomentumCorrection::new(2, TopK::new(1), 0.5)?;
/// let mut message = SparseVec::new(2);
/// correction.compress(&[2.0, 1.0][..], &mut message)?;
/// correction.compress(&[1.0, 1.0][..], &mut message)?;
/// assert_eq!((message.indices(), message.values()), (&[1][..], &[2.5][..]));
/// assert_eq!((correction.velocity(), correction.accumulated()), (&[1.0, 0.0][..], &[1.0, 0.0][..]));
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MomentumCorrection<C> {
    compressor: C,
    momentum: f32,
    nesterov: bool,
    clip: Option<Clip>,
    u: Vec<f32>,
    v: Vec<f32>,
    /// Upper bounds of the magnitudes in `u` and in `v`.
    ceilings: [f64; 2],
    /// What masking removed from `u` for the last message.
    masked: SparseVec,
}

impl<C: Compressor<Message = SparseVec>> MomentumCorrection<C> {
    /// For a tensor of `n` elements; `momentum` is `m`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless `0 <= momentum < 1`; [`Error::Memory`].
    pub fn new(n: usize, compressor: C, momentum: f32) -> Result<Self, Error> {
        check_momentum(momentum, false)?;
        let (u, v) = (room::zeros(n)?, room::zeros(n)?);
        let masked = SparseVec::new(n);
        Ok(Self { compressor, momentum, nesterov: false, clip: None, u, v, ceilings: [0.0; 2], masked })
    }

    /// Uses Nesterov momentum: `u = m u + g; v += m u + g`.
    #[must_use]
    pub fn with_nesterov(self) -> Self {
        Self { nesterov: true, ..self }
    }

    /// Clips each gradient by its own norm first. To clip several tensors together, use
    /// [`compress_scaled`](Self::compress_scaled).
    #[must_use]
    pub fn with_clip(self, clip: Clip) -> Self {
        Self { clip: Some(clip), ..self }
    }

    /// Changes how gradients are clipped, for another number of ranks.
    pub fn set_clip(&mut self, clip: Option<Clip>) {
        self.clip = clip;
    }

    /// The compressor.
    pub fn compressor(&self) -> &C {
        &self.compressor
    }

    /// The compressor, for changing its settings.
    pub fn compressor_mut(&mut self) -> &mut C {
        &mut self.compressor
    }

    /// `u`.
    pub fn velocity(&self) -> &[f32] {
        &self.u
    }

    /// `v`: what has not been sent.
    pub fn accumulated(&self) -> &[f32] {
        &self.v
    }

    /// A step: clips the gradient if so configured, accumulates it, and moves to `message` what the
    /// compressor takes from `v`.
    ///
    /// Cost: two reads of `gradient`, a read and write of `u` and of `v`, and the compressor's pass over `v`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], and [`Error::NonFinite`] for the first element of the gradient, or the
    /// first sum, that is not finite: nothing has changed then. After an error of the compressor itself the
    /// gradient is in `u` and `v`, and nothing has been taken out. `message` must not be sent after any
    /// error.
    pub fn compress<'a>(
        &mut self,
        gradient: impl Into<Gradient<'a>>,
        message: &mut SparseVec,
    ) -> Result<(), Error> {
        let gradient = gradient.into();
        check_length(self.u.len(), gradient.len())?;
        let squares = squared_norm(gradient)?;
        let factor = self.clip.map_or(1.0, |clip| clip.factor(squares));
        self.step(gradient, squares, factor, message)
    }

    /// Like [`compress`](Self::compress) for `factor * gradient`, which is not clipped further.
    ///
    /// # Errors
    /// The same as for [`compress`](Self::compress), and [`Error::OutOfRange`] unless `factor` is finite.
    pub fn compress_scaled<'a>(
        &mut self,
        gradient: impl Into<Gradient<'a>>,
        factor: f32,
        message: &mut SparseVec,
    ) -> Result<(), Error> {
        let gradient = gradient.into();
        check_length(self.u.len(), gradient.len())?;
        if !factor.is_finite() {
            return Err(Error::OutOfRange {
                what: "factor",
                value: f64::from(factor),
                expected: "a finite number",
            });
        }
        self.step(gradient, squared_norm(gradient)?, factor, message)
    }

    /// The first half of a [step](Self::compress): accumulates the gradient and takes nothing out.
    /// [`take`](Self::take) or [`deliver`](Self::deliver) is the other half.
    ///
    /// # Errors
    /// As for [`compress`](Self::compress): nothing has changed then.
    pub fn accumulate<'a>(&mut self, gradient: impl Into<Gradient<'a>>) -> Result<(), Error> {
        let gradient = gradient.into();
        check_length(self.u.len(), gradient.len())?;
        let squares = squared_norm(gradient)?;
        self.add(gradient, squares, self.clip.map_or(1.0, |clip| clip.factor(squares)))
    }

    /// Takes out a message that was made of all that is [accumulated](Self::accumulated): what
    /// [`compress`](Self::compress) does after its compressor.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for a message of another length; nothing has changed then.
    pub fn take(&mut self, message: &SparseVec) -> Result<(), Error> {
        self.compressor.add_decoded(message, -1.0, &mut self.v)?;
        self.raise_ceiling(message.indices());
        for &index in message.indices() {
            self.masked.push(index, self.u[index as usize]);
            self.u[index as usize] = 0.0;
        }
        Ok(())
    }

    /// All that is accumulated was delivered, as in a dense step. The velocity goes on: nothing is masked,
    /// and the sum of what is delivered in such steps is that of momentum SGD.
    pub fn deliver(&mut self) {
        self.v.fill(0.0);
        self.ceilings[1] = 0.0;
    }

    /// Puts some or all entries of the last step's message back because they were not delivered. `u` and `v`
    /// become what they would be without the selection of these entries: exactly, if the compressor does not
    /// change values.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], and [`Error::NonFinite`] for the first sum that is not finite; nothing has
    /// changed then.
    pub fn put_back(&mut self, entries: SparseView<'_>) -> Result<(), Error> {
        add_entries(entries, 1.0, &mut self.v)?;
        self.raise_ceiling(entries.indices());
        let mut masked = self.masked.iter().peekable();
        for &index in entries.indices() {
            while masked.next_if(|entry| entry.0 < index).is_some() {}
            if let Some((_, u)) = masked.next_if(|entry| entry.0 == index) {
                self.u[index as usize] = u;
            }
        }
        Ok(())
    }

    /// Adds what rounding has taken away from entries of the last step's message to what has not been sent.
    /// Unlike [`put_back`](Self::put_back) it leaves the velocity as it is: the entries were sent.
    ///
    /// # Errors
    /// As for [`put_back`](Self::put_back).
    pub fn add_error(&mut self, errors: SparseView<'_>) -> Result<(), Error> {
        add_entries(errors, 1.0, &mut self.v)?;
        self.raise_ceiling(errors.indices());
        Ok(())
    }

    /// Whether [`add_error`](Self::add_error) and [`put_back`](Self::put_back) of these entries would
    /// succeed.
    ///
    /// # Errors
    /// As for [`put_back`](Self::put_back).
    pub fn check_put_back(&self, entries: SparseView<'_>) -> Result<(), Error> {
        check_sums(entries, &self.v, |v, value| v + value)
    }

    /// Takes the gradient of the last step out of `u` and `v` again, as if it had not been made. Its message
    /// must have been [put back](Self::put_back) before. Each element is restored up to a few roundings; with
    /// a momentum of 0, `u` becomes 0, which no later step depends on. Not for hot paths.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; nothing has changed then. [`Error::NonFinite`] for a gradient that the step
    /// has refused.
    pub fn withdraw<'a>(&mut self, gradient: impl Into<Gradient<'a>>) -> Result<(), Error> {
        let gradient = gradient.into();
        check_length(self.u.len(), gradient.len())?;
        let squares = squared_norm(gradient)?;
        let factor = self.clip.map_or(1.0, |clip| clip.factor(squares));
        let m = self.momentum;
        for (index, (u, v)) in self.u.iter_mut().zip(&mut self.v).enumerate() {
            let g = factor * gradient.at(index);
            let added = if self.nesterov { m * *u + g } else { *u };
            // Rounded sums, and a division: the differences may exceed the largest number a little.
            let within = |value: f32| value.clamp(f32::MIN, f32::MAX);
            *v = within(*v - added);
            *u = if m > 0.0 { within((*u - g) / m) } else { 0.0 };
        }
        self.reset_ceilings()
    }

    fn step(
        &mut self,
        gradient: Gradient<'_>,
        squares: f64,
        factor: f32,
        message: &mut SparseVec,
    ) -> Result<(), Error> {
        self.add(gradient, squares, factor)?;
        self.compressor.compress(&self.v, message)?;
        self.take(message)
    }

    fn add(&mut self, gradient: Gradient<'_>, squares: f64, factor: f32) -> Result<(), Error> {
        self.check(gradient, squares.sqrt(), factor)?;
        let (level, m, nesterov) = (Level::best(), self.momentum, self.nesterov);
        for_blocks::<Error>(gradient, |first, g| {
            let (u, v) = (&mut self.u[first..first + g.len()], &mut self.v[first..first + g.len()]);
            let kernel = if nesterov { momentum::correct_nesterov } else { momentum::correct };
            kernel(level, u, v, g, m, factor);
            Ok(())
        })?;
        self.masked.reset(self.u.len());
        Ok(())
    }

    /// Checks that a gradient of this norm overflows nothing, and raises the ceilings accordingly.
    fn check(&mut self, gradient: Gradient<'_>, norm: f64, factor: f32) -> Result<(), Error> {
        let raised = self.raised(norm, factor);
        if raised[1] <= f64::from(f32::MAX) {
            self.ceilings = raised;
            return Ok(());
        }
        self.ceilings = [largest_finite(&self.u)?, largest_finite(&self.v)?];
        let raised = self.raised(norm, factor);
        if raised[1] > f64::from(f32::MAX) {
            // The bounds cover magnitudes; signs may keep the actual sums in range. Rarely reached.
            for_blocks(gradient, |first, block| {
                for (index, g) in (first..).zip(block) {
                    let value = self.next(index, factor * g);
                    if !value.is_finite() {
                        return Err(Error::NonFinite { index, value });
                    }
                }
                Ok(())
            })?;
        }
        self.ceilings = raised.map(|ceiling| ceiling.min(f64::from(f32::MAX)));
        Ok(())
    }

    /// The next value of an element of `v`. Not finite if the next `u` is not.
    fn next(&self, index: usize, g: f32) -> f32 {
        let u = self.momentum * self.u[index] + g;
        self.v[index] + if self.nesterov { self.momentum * u + g } else { u }
    }

    /// The ceilings after a gradient of this norm.
    fn raised(&self, norm: f64, factor: f32) -> [f64; 2] {
        // No element exceeds the norm. The factor covers several roundings.
        let room = 1.0 + 8.0 * f64::from(f32::EPSILON);
        let (m, g) = (f64::from(self.momentum), norm * f64::from(factor.abs()));
        let u = (m * self.ceilings[0] + g) * room + f64::from(f32::MIN_POSITIVE);
        // Covers both forms of momentum.
        [u, (self.ceilings[1] + u + g) * room]
    }

    /// Raises the ceiling for changed elements of `v`.
    fn raise_ceiling(&mut self, changed: &[u32]) {
        let largest = changed.iter().map(|&index| magnitude(self.v[index as usize])).max().unwrap_or(0);
        self.ceilings[1] = self.ceilings[1].max(f64::from(f32::from_bits(largest)));
    }

    /// Replaces `u` and `v`, for example by saved ones.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::NonFinite`]; nothing has changed then.
    pub fn load(&mut self, velocity: &[f32], accumulated: &[f32]) -> Result<(), Error> {
        check_length(self.u.len(), velocity.len())?;
        check_length(self.v.len(), accumulated.len())?;
        check_finite(velocity)?;
        check_finite(accumulated)?;
        self.u.copy_from_slice(velocity);
        self.v.copy_from_slice(accumulated);
        self.reset_ceilings()
    }

    /// Computes the ceilings again after all values were replaced.
    fn reset_ceilings(&mut self) -> Result<(), Error> {
        self.masked.reset(self.u.len());
        self.ceilings = [largest_finite(&self.u)?, largest_finite(&self.v)?];
        Ok(())
    }
}

/// Saves `u` and `v`. The message of the last step counts as delivered.
impl<C: Compressor<Message = SparseVec>> State for MomentumCorrection<C> {
    fn kind(&self) -> [u8; 4] {
        *b"mcor"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.u.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.f32s(&self.u);
        contents.f32s(&self.v);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.f32s(&mut self.u)?;
        contents.f32s(&mut self.v)?;
        self.reset_ceilings()
    }
}
