//! A whole gradient drop compared with the same in `numpy.argpartition`, on the same vectors, each on one
//! thread.

use std::time::Instant;

use super::gradient_drop::{GradientDrop, Known, SHARES};
use super::{Extent, Group, Outcome, Row, Subject, measure_told};
use crate::peers::Numpy;
use crate::{Error, Result};

/// A twentieth of the time.
const BAR: f64 = 0.05;

/// Measures a row for each version of NumPy found.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let found = Numpy::find();
    if found.is_empty() {
        return Ok(());
    }
    let mut drop = GradientDrop::new(extent.elements);
    for numpy in &found {
        told(row(numpy, &mut drop, extent)?);
    }
    Ok(())
}

fn row(numpy: &Numpy, drop: &mut GradientDrop, extent: Extent) -> Result<Row> {
    let [share, _] = SHARES;
    drop.set(share, Known::Last, 1)?;
    drop.verify()?;
    let mut theirs = numpy.gradient_drop(&drop.start, &drop.gradient, drop.k)?;
    let subject = drop.subject(&format!("warm, beside numpy {}", numpy.version), share, "numpy").at_most(BAR);
    let subject = Subject { group: Group::Numpy, ..subject };
    let floor = |_: &mut GradientDrop| Ok(theirs.turn()?.ms);
    let kernel = |drop: &mut GradientDrop| {
        let start = Instant::now();
        let fed = drop.feed();
        let time = start.elapsed();
        fed.of("gradient drop").map(|()| time.as_secs_f64() * 1e3)
    };
    let row = measure_told(subject, extent.iterations, drop, GradientDrop::prepare, floor, kernel)?;
    let found = theirs.turn()?;
    let least = drop.out.values().iter().fold(f32::MAX, |least, value| least.min(value.abs()));
    if (found.entries, found.least) != (drop.out.len(), least) {
        let what = format!(
            "selects {} down to {}, ours {} down to {least}",
            found.entries,
            found.least,
            drop.out.len()
        );
        return Err(Error::contestant("numpy", what));
    }
    Ok(row)
}
