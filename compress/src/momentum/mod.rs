//! Momentum for compressed gradients.
//!
//! If momentum were applied to the received updates, an entry that is rarely sent would lose the momentum of
//! the steps in which it was not sent. There are three remedies:
//!
//! | type | `g` gradient, `m` momentum | source |
//! | --- | --- | --- |
//! | [`MomentumCorrection`] | `u = m u + g; v += u`; sends entries of `v`, and sets `u` and `v` to zero there | DGC: Lin et al., ICLR 2018 |
//! | [`SparsificationAware`] | `u = m u + rate g`; sends entries of `u`, and divides the others by `m` | DGS: Yan et al., ICPP 2020 |
//! | [`PostCompression`] | `mom = m mom + update; x -= rate (update + mom)`, applied to the average of all ranks | PowerSGD: Vogels et al., NeurIPS 2019, algorithm 2 |
//!
//! The first takes a [`Compressor`](crate::feedback::Compressor) whose message is a selection, the second any
//! compressor. Both take the place of error feedback: do not use them inside of it. State is `f32` for every
//! type of gradients.

mod clip;
mod correction;
mod post_compression;
mod sparsification_aware;

pub use clip::{Clip, squared_norm};
pub use correction::MomentumCorrection;
pub use post_compression::PostCompression;
pub use sparsification_aware::SparsificationAware;

use crate::Error;
use crate::bits::INFINITE;
use crate::feedback::Gradient;
use crate::simd::{Level, dense};

/// Elements that are checked before they are written; they stay in the first-level cache in between.
const BLOCK: usize = 1024;

/// Passes a gradient as `f32` to `use_block`, block by block with the index of each block's first element.
/// Stops at the first error.
fn for_blocks<E>(
    gradient: Gradient<'_>,
    mut use_block: impl FnMut(usize, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    if let Gradient::F32(g) = gradient {
        return g.chunks(BLOCK).enumerate().try_for_each(|(number, block)| use_block(number * BLOCK, block));
    }
    let (level, mut wide) = (Level::best(), [0.0; BLOCK]);
    for first in (0..gradient.len()).step_by(BLOCK) {
        let block = &mut wide[..BLOCK.min(gradient.len() - first)];
        gradient.slice(first..first + block.len()).convert(level, block);
        use_block(first, block)?;
    }
    Ok(())
}

/// The largest magnitude.
///
/// # Errors
/// [`Error::NonFinite`] for the first NaN or infinity.
fn largest_finite(values: &[f32]) -> Result<f64, Error> {
    let largest = dense::largest_magnitude(Level::best(), values);
    if largest >= INFINITE {
        crate::bits::check_finite(values)?;
    }
    Ok(f64::from(f32::from_bits(largest)))
}

/// Fails unless `0 <= momentum < 1`; if `positive`, 0 fails too.
fn check_momentum(momentum: f32, positive: bool) -> Result<(), Error> {
    if (0.0..1.0).contains(&momentum) && (momentum > 0.0 || !positive) {
        return Ok(());
    }
    let expected = if positive {
        "more than 0 and less than 1: without momentum, use error feedback"
    } else {
        "at least 0 and less than 1"
    };
    Err(Error::OutOfRange { what: "momentum", value: f64::from(momentum), expected })
}
