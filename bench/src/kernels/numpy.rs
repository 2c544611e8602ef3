//! A whole gradient drop beside `numpy.argpartition` doing the same on the same vectors, on one thread both.

use std::time::Instant;

use super::gradient_drop::{GradientDrop, Known, SHARES};
use super::{Extent, Group, Outcome, Row, Subject, measure_told};
use crate::peers::Numpy;
use crate::{Error, Result};

/// A twentieth of the time.
const BAR: f64 = 0.05;

/// Measures the row, if NumPy is there.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let Some(numpy) = Numpy::find() else { return Ok(()) };
    let [share, _] = SHARES;
    let mut drop = GradientDrop::new(extent.elements);
    drop.set(share, Known::Last, 1)?;
    drop.verify()?;
    let mut theirs = numpy.gradient_drop(&drop.start, &drop.gradient, drop.k)?;
    let subject = Subject { group: Group::Numpy, ..drop.subject("warm, beside numpy", share, "numpy").at_most(BAR) };
    let floor = |_: &mut GradientDrop| Ok(theirs.turn()?.ms);
    let kernel = |drop: &mut GradientDrop| {
        let start = Instant::now();
        let fed = drop.feed();
        let time = start.elapsed();
        fed.of("gradient drop").map(|()| time.as_secs_f64() * 1e3)
    };
    let row = measure_told(subject, extent.iterations, &mut drop, GradientDrop::prepare, floor, kernel)?;
    let found = theirs.turn()?;
    let least = drop.out.values().iter().fold(f32::MAX, |least, value| least.min(value.abs()));
    if (found.entries, found.least) != (drop.out.len(), least) {
        let what =
            format!("selects {} down to {}, ours {} down to {least}", found.entries, found.least, drop.out.len());
        return Err(Error::contestant("numpy", what));
    }
    told(row);
    Ok(())
}
