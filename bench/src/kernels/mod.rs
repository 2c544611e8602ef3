//! The rows of `brevity perf compress`: kernels of compression, each measured in turns with a floor on the
//! same memory.
//!
//! A floor is the least that memory makes a kernel pay, such as `r += g` over the same vectors, or another
//! way of doing the same. Kernel and floor run interleaved in one process, each on equally prepared memory.
//! One ratio compares the smallest times, the other the medians; a bar applies to both.

mod codec;
mod entries;
mod feedback;
mod gradient_drop;
mod low_rank;
mod numpy;
mod plain;
mod plot;
mod quantise;
mod row;
mod rules;
mod sparse;
mod steady;
mod table;
mod vectors;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

pub use plot::svg;
pub use row::{Bar, Outcome, Row, Subject, measure, measure_told};
pub use table::{head, line, verdict};

use brevity::compress::select::LeftOut;

use crate::peers::Numpy;
use crate::{Error, Result};

/// The sizes that all kernels are measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Elements of the dense vectors.
    pub elements: usize,
    /// Turns of each kernel and its floor.
    pub iterations: usize,
}

impl Extent {
    /// Turns of a kernel that takes a hundredth of a pass over the dense vectors.
    fn of_short(self) -> usize {
        9 * self.iterations
    }
}

/// Kernels that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Exact selection in the pass that adds the gradient.
    Drop,
    /// The same compared with `numpy.argpartition`, a row for each version found.
    Numpy,
    /// Other selection rules.
    Rules,
    /// Sums of sparse vectors.
    Sparse,
    /// Messages of sparse vectors.
    Codec,
    /// Sums and conversions of dense vectors.
    Dense,
    /// Quantisers.
    Quantise,
    /// PowerSGD and its phases.
    LowRank,
    /// Error feedback around compressors, momentum, saved state.
    Feedback,
}

impl Group {
    /// All groups, in the order of the table.
    pub const ALL: [Self; 9] = [
        Self::Drop,
        Self::Numpy,
        Self::Rules,
        Self::Sparse,
        Self::Codec,
        Self::Dense,
        Self::Quantise,
        Self::LowRank,
        Self::Feedback,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Numpy => "numpy",
            Self::Rules => "rules",
            Self::Sparse => "sparse",
            Self::Codec => "codec",
            Self::Dense => "dense",
            Self::Quantise => "quantise",
            Self::LowRank => "low-rank",
            Self::Feedback => "feedback",
        }
    }

    /// Measures the group's rows, and passes each on as soon as it is complete.
    ///
    /// Without NumPy, its rows are left out: see [`peers`].
    ///
    /// # Errors
    /// [`Error::Contestant`] for a kernel with a wrong result.
    pub fn measure(self, extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
        match self {
            Self::Drop => {
                gradient_drop::measure(extent, told)?;
                steady::measure(extent, told)
            }
            Self::Numpy => numpy::measure(extent, told),
            Self::Rules => rules::measure(extent, told),
            Self::Sparse => sparse::measure(extent, told),
            Self::Codec => codec::measure(extent, told),
            Self::Dense => vectors::measure(extent, told),
            Self::Quantise => quantise::measure(extent, told),
            Self::LowRank => low_rank::measure(extent, told),
            Self::Feedback => feedback::measure(extent, told),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Group {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|group| group.name() == name);
        found.ok_or_else(|| {
            Error::Arguments(format!("--only {name}: there is no such group, name some of {names}"))
        })
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What the figures depend on besides the machine: the instruction set, and the versions of NumPy.
#[must_use]
pub fn peers() -> Vec<String> {
    let found = Numpy::find();
    let missing = found.is_empty().then(|| MISSING.to_owned());
    let numpys = found.iter().map(|numpy| format!("numpy: {}", numpy.said));
    let kernels = format!("kernels: {}", brevity::compress::instruction_set());
    [kernels].into_iter().chain(missing).chain(numpys).collect()
}

const MISSING: &str = "missing: numpy, whose rows are left out (bench/peers/install.sh installs it)";

/// The result of a kernel that returns no value.
type Done = std::result::Result<(), brevity::compress::Error>;

/// The [`Outcome`] of a gradient drop. With finite input, it leaves out no value.
fn all_fed(fed: std::result::Result<Option<LeftOut>, brevity::compress::Error>) -> Result<(), String> {
    match fed {
        Ok(None) => Ok(()),
        Ok(Some(left_out)) => Err(format!("{} values were left out", left_out.count)),
        Err(error) => Err(error.to_string()),
    }
}

/// Fails with the kernel's name if its result is wrong.
fn check(is_right: bool, kernel: &str, what: &str) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::contestant(kernel, what)) }
}

/// Converts a kernel's error.
fn refused<E: fmt::Display>(kernel: &str) -> impl Fn(E) -> Error + '_ {
    move |error| Error::contestant(kernel, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kernels_are_right_on_few_elements() {
        for group in Group::ALL {
            let mut rows = Vec::new();
            group.measure(Extent { elements: 20_000, iterations: 1 }, &mut |row| rows.push(row)).unwrap();
            if group == Group::Numpy {
                assert_eq!(rows.len(), Numpy::find().len());
            } else {
                assert!(!rows.is_empty(), "{group}");
            }
            for row in &rows {
                assert!(row.group == group && row.ms >= 0.0 && row.floor_ms >= 0.0, "{row:?}");
                assert!(line(row).contains(&row.kernel));
            }
            assert!(svg(&["head"], &rows).unwrap().contains("</svg>"));
        }
    }

    #[test]
    fn few_elements_are_enough() {
        for elements in [1, 2, 100] {
            for group in Group::ALL {
                group.measure(Extent { elements, iterations: 1 }, &mut drop).unwrap();
            }
        }
    }

    #[test]
    fn groups_are_found_by_name() {
        for group in Group::ALL {
            assert_eq!(group.name().parse::<Group>().unwrap(), group);
        }
        let message = "dance".parse::<Group>().unwrap_err().to_string();
        assert!(message.contains("low-rank") && message.lines().count() == 1, "{message}");
    }
}
