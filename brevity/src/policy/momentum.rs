//! Momentum before selection.

use std::fmt;

/// The momentum of a sparse tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Momentum {
    /// Error feedback alone.
    #[default]
    None,
    /// Momentum correction (DGC).
    Corrected { factor: f32, nesterov: bool, clip: Option<f64> },
    /// SAMomentum (DGS).
    Aware { factor: f32 },
}

impl Momentum {
    /// Checks the numbers. The error is the parameter, its value and its range.
    pub(super) fn check(self) -> Result<(), (&'static str, f64, &'static str)> {
        match self {
            Self::None => Ok(()),
            Self::Corrected { factor, .. } if !(0.0..1.0).contains(&factor) => {
                Err(("momentum", factor.into(), "at least 0 and less than 1"))
            }
            Self::Corrected { clip: Some(limit), .. } if !(limit > 0.0 && limit.is_finite()) => {
                Err(("clip", limit, "a finite number above 0"))
            }
            Self::Corrected { .. } => Ok(()),
            Self::Aware { factor } if factor > 0.0 && factor < 1.0 => Ok(()),
            Self::Aware { factor } => Err(("samomentum", factor.into(), "more than 0 and less than 1")),
        }
    }

    /// What it keeps of a tensor, in words that follow others.
    pub(crate) const fn kept(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Corrected { .. } => " with velocity",
            Self::Aware { .. } => " with SAMomentum",
        }
    }
}

/// As settings of a policy's text, each with a comma in front.
impl fmt::Display for Momentum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => Ok(()),
            Self::Corrected { factor, nesterov, clip } => {
                write!(f, ",momentum={factor}")?;
                if nesterov {
                    f.write_str(",nesterov=yes")?;
                }
                clip.map_or(Ok(()), |limit| write!(f, ",clip={limit}"))
            }
            Self::Aware { factor } => write!(f, ",samomentum={factor}"),
        }
    }
}
