//! Selection by bins: the largest value of a bin sets its threshold.

use crate::bits::{check_finite, magnitude};
use crate::error::{check_addressable, check_length};
use crate::{Error, SparseVec};

/// Selects in each bin of `bin` places the values that another gradient like the last would raise to the
/// bin's largest magnitude: `|r + g| >= max |r|`. `values` are `r`, the residual with the last gradient `g`
/// already added (AdaComp, Chen et al., AAAI 2018, algorithm 2: `H = G + dW`, and `G` is sent where `|H| >=
/// g_max`).
///
/// The paper's bins have 50 places for convolutions and 500 for fully connected and recurrent layers. Sent:
/// the entries as they are, with an index of one or two bytes within the bin and 4 bytes of value. The paper
/// sends one magnitude for all; here a quantiser can do that. Zeros are never sent. A bin with non-zero
/// values may send none if its gradient points in the other direction. There is no bound below all entries.
/// The last bin may be shorter. Cost: two reads of `values` and of `gradient`.
///
/// # Errors
/// [`Error::LengthMismatch`] if `gradient` is not as long as `values`, [`Error::NonFinite`] for the first of
/// `values`, otherwise of `gradient`, that is not finite, [`Error::TooLong`]. `out` is empty then.
///
/// # Panics
/// If `bin` is 0.
pub fn bin_maxima(values: &[f32], gradient: &[f32], bin: usize, out: &mut SparseVec) -> Result<(), Error> {
    assert!(bin > 0, "a bin has places");
    out.reset(values.len());
    check_addressable(values.len())?;
    check_length(values.len(), gradient.len())?;
    check_finite(values)?;
    check_finite(gradient)?;
    let mut first = 0;
    for (values, gradient) in values.chunks(bin).zip(gradient.chunks(bin)) {
        let most = values.iter().fold(0, |most, &value| magnitude(value).max(most));
        for ((index, &value), &g) in (first..).zip(values).zip(gradient) {
            // A sum that overflows is only compared.
            if magnitude(value + g) >= most && value != 0.0 {
                out.push(index as u32, value);
            }
        }
        first += values.len();
    }
    Ok(())
}
