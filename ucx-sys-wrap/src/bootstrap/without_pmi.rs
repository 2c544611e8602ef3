//! Takes the place of the crate `brevity-pmi` in builds without the feature `pmi`: no launcher can be asked.

use std::fmt;

/// The longest text that is shared, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 512;

/// Why a launcher can't be asked.
pub(super) enum Error {
    LeftOut,
    /// What only a PMIx library can be.
    NotLoaded {},
    Incomplete {},
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this program is built without the feature `pmi`: build it with that")
    }
}

pub(super) mod pmix {
    use std::path::Path;
    use std::time::Instant;

    use super::Error;

    pub(in super::super) fn available(_: Option<&Path>) -> Result<(), Error> {
        Err(Error::LeftOut)
    }

    pub(in super::super) fn share(
        _: Option<&Path>,
        _: u32,
        _: Option<&str>,
        _: Instant,
    ) -> Result<String, Error> {
        Err(Error::LeftOut)
    }
}

pub(super) mod wire {
    use std::time::Instant;

    use super::Error;

    pub(in super::super) fn share(_: i32, _: Option<&str>, _: Instant) -> Result<String, Error> {
        Err(Error::LeftOut)
    }
}
