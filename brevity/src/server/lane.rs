//! What a worker keeps for one range of a shard in which the largest entries are selected.

use brevity_compress::feedback::{Compressor, Gradient, Residual, TopK};
use brevity_compress::momentum::{MomentumCorrection, SparsificationAware};
use brevity_compress::{Density, Error, SparseVec, SparseView};

use super::method::{Kind, Method};

/// The state of one range.
pub(super) enum Lane {
    /// What was not delivered of earlier gradients; empty if nothing.
    Dense(Residual),
    Dropping(Residual, TopK),
    Aware(SparsificationAware<TopK>),
    Corrected(MomentumCorrection<TopK>),
}

impl Lane {
    pub(super) fn new(method: Method, len: usize) -> Result<Self, Error> {
        let top_k = |density| Density::new(density).map(|density| TopK::new(density.entries(len)));
        Ok(match method.0 {
            Kind::Asgd => Self::Dense(Residual::new(0)),
            Kind::GradientDropping { density } => Self::Dropping(Residual::try_new(len)?, top_k(density)?),
            Kind::Dgs { density, momentum } => {
                Self::Aware(SparsificationAware::new(len, top_k(density)?, momentum)?)
            }
            Kind::Dgc { density, momentum, .. } => {
                Self::Corrected(MomentumCorrection::new(len, top_k(density)?, momentum)?)
            }
        })
    }

    pub(super) fn set_k(&mut self, k: usize) {
        match self {
            Self::Dense(_) => {}
            Self::Dropping(_, top_k) => top_k.set_k(k),
            Self::Aware(aware) => aware.compressor_mut().set_k(k),
            Self::Corrected(corrected) => corrected.compressor_mut().set_k(k),
        }
    }

    /// Adds a gradient, and takes out what is pushed. It is clipped by the factor: 1, but for momentum
    /// correction.
    pub(super) fn compress(
        &mut self,
        (gradient, factor): (&[f32], f32),
        rate: f32,
        out: &mut SparseVec,
    ) -> Result<(), Error> {
        match self {
            Self::Dense(_) => Ok(()),
            Self::Dropping(residual, top_k) => top_k.feed(residual, Gradient::from(gradient), out),
            Self::Aware(aware) => aware.compress(gradient, rate, out),
            Self::Corrected(corrected) => corrected.compress_scaled(gradient, factor, out),
        }
    }

    /// The sum of a gradient and what was not delivered of earlier ones, which stays until it is
    /// [forgotten](Self::forget_dense).
    pub(super) fn sum_dense(&self, gradient: &[f32], out: &mut [f32]) -> Result<(), Error> {
        out.copy_from_slice(gradient);
        let Self::Dense(kept) = self else { return Ok(()) };
        out.iter_mut().zip(kept.values()).for_each(|(sum, kept)| *sum += kept);
        match out.iter().enumerate().find(|(_, sum)| !sum.is_finite()) {
            Some((index, &value)) => Err(Error::NonFinite { index, value }),
            None => Ok(()),
        }
    }

    /// What was not delivered is on its way now.
    pub(super) fn forget_dense(&mut self) {
        if let Self::Dense(kept) = self
            && !kept.is_empty()
        {
            *kept = Residual::new(0);
        }
    }

    /// Takes a gradient out again, after what it has pushed was put back. With momentum it stays.
    pub(super) fn withdraw(&mut self, gradient: &[f32]) {
        match self {
            // It was put back as a whole.
            Self::Dense(kept) => drop(kept.subtract(gradient)),
            Self::Dropping(residual, _) => drop(residual.withdraw(gradient)),
            Self::Aware(_) | Self::Corrected(_) => {}
        }
    }

    /// Takes back a dense push that was not delivered.
    pub(super) fn put_back_dense(&mut self, values: &[f32]) -> Result<(), Error> {
        let Self::Dense(kept) = self else { return Ok(()) };
        if kept.is_empty() {
            *kept = Residual::try_new(values.len())?;
        }
        kept.accumulate(values)
    }

    /// Takes back entries that were not delivered.
    pub(super) fn put_back(&mut self, entries: &SparseVec) -> Result<(), Error> {
        match self {
            Self::Dense(_) => Ok(()),
            Self::Dropping(residual, _) => residual.put_back(entries.view()),
            Self::Aware(aware) => aware.put_back(entries),
            Self::Corrected(corrected) => corrected.put_back(entries.view()),
        }
    }

    /// Keeps what rounding has taken away from entries that are delivered.
    pub(super) fn keep_error(&mut self, errors: SparseView<'_>) -> Result<(), Error> {
        match self {
            Self::Dense(_) => Ok(()),
            Self::Dropping(residual, _) => residual.put_back(errors),
            // It counts as not sent.
            Self::Aware(aware) => aware.put_back(&errors.to_owned()),
            Self::Corrected(corrected) => corrected.add_error(errors),
        }
    }

    /// The vectors of this lane: what is not sent, and with momentum correction also the velocity.
    pub(super) fn vectors(&self) -> Vec<&[f32]> {
        match self {
            Self::Dense(kept) | Self::Dropping(kept, _) => vec![kept.values()],
            Self::Aware(aware) => vec![aware.state()],
            Self::Corrected(corrected) => vec![corrected.accumulated(), corrected.velocity()],
        }
    }

    /// Adds saved vectors, as [`vectors`](Self::vectors) gives them, to this lane's.
    pub(super) fn absorb(&mut self, vectors: &[&[f32]]) -> Result<(), Error> {
        let sum = |own: &[f32], other: &[f32]| own.iter().zip(other).map(|(a, b)| a + b).collect::<Vec<_>>();
        match self {
            Self::Dense(kept) => {
                if vectors[0].iter().any(|value| *value != 0.0) {
                    if kept.is_empty() {
                        *kept = Residual::try_new(vectors[0].len())?;
                    }
                    kept.accumulate(vectors[0])?;
                }
                Ok(())
            }
            Self::Dropping(residual, _) => residual.accumulate(vectors[0]),
            Self::Aware(aware) => aware.load(&sum(aware.state(), vectors[0])),
            Self::Corrected(corrected) => {
                let (v, u) =
                    (sum(corrected.accumulated(), vectors[0]), sum(corrected.velocity(), vectors[1]));
                corrected.load(&u, &v)
            }
        }
    }
}
