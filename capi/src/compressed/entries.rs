//! The arguments of collectives on sparse vectors, as C passes them.

use brevity::PutBack;
use brevity::compress::quantise::Values;
use brevity::compress::{SparseVec, SparseView};
use brevity_collectives::sparse::{Coder, Wire};

use crate::failure::Failure;
use crate::memory::Stretch;
use crate::policy::{self, F32_PACKED, PAIRS, brv_put_back, brv_values};

/// The last number.
const LAST: brv_values = 12;

/// The entries of this rank.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    pub(super) indices: *const u32,
    pub(super) values: *const f32,
    pub(super) count: usize,
    pub(super) dim: usize,
}

impl Entries {
    /// A copy of the entries, of which there are at most `limit`, an argument of this name.
    ///
    /// # Safety
    /// `indices` and `values` have `count` elements, set, that nobody writes meanwhile.
    pub(super) unsafe fn read(self, limit: usize, name: &str) -> Result<SparseVec, Failure> {
        let Self { indices, values, count, dim } = self;
        // Indices that rise below dim are no more than it.
        for (most, name) in [(dim, "dim"), (limit, name)] {
            if count > most {
                return Err(Failure::argument(format!("count is {count}, expected at most {name}, {most}")));
            }
        }
        let (indices, values) =
            (Stretch::new(indices, count, "indices")?, Stretch::new(values, count, "values")?);
        // SAFETY: the caller of this function guarantees as many elements, which nobody writes.
        let (indices, values) = unsafe { (indices.read(), values.read()) };
        let view = SparseView::new(dim, indices, values).map_err(brevity::Error::from)?;
        Ok(view.to_owned())
    }
}

/// The format of values with this number.
pub(super) fn values(number: brv_values) -> Result<Values, Failure> {
    policy::values(number).ok_or_else(|| refused(number, policy::VALUES_TEXT))
}

/// What writes entries in the format with this number. Exact values travel as pairs unless they are packed.
pub(super) fn coder(number: brv_values) -> Result<Coder, Failure> {
    let wire = match policy::values(number) {
        Some(values) if values.is_exact() => Wire::Pairs,
        Some(values) => Wire::Coded(values),
        None if number == F32_PACKED => Wire::Coded(Values::F32),
        None if number == PAIRS => Wire::Pairs,
        None => return Err(refused(number, &format!("a brv_values (0 to {LAST}, or {PAIRS})"))),
    };
    Ok(Coder::new(wire))
}

fn refused(number: brv_values, expected: &str) -> Failure {
    Failure::argument(format!("format is {number}, expected {expected}"))
}

/// The rule with this number.
pub(super) fn put_back(number: brv_put_back) -> Result<PutBack, Failure> {
    policy::put_back(number)
        .ok_or_else(|| Failure::argument(format!("put_back is {number}, expected a brv_put_back (0 to 2)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_its_wire() {
        assert_eq!([0, PAIRS].map(|number| coder(number).unwrap().wire()), [Wire::Pairs; 2]);
        assert_eq!(coder(F32_PACKED).unwrap().wire(), Wire::Coded(Values::F32));
        for number in (1..=LAST).filter(|number| *number != F32_PACKED) {
            assert_eq!(coder(number).unwrap().wire(), Wire::Coded(values(number).unwrap()));
        }
        assert!(
            coder(13).unwrap_err().text().contains("format is 13, expected a brv_values (0 to 12, or 16)")
        );
        let text = "format is 8, expected a brv_values (0 to 7 or 9 to 12)";
        assert!(values(8).unwrap_err().text().contains(text));
        assert!(put_back(3).unwrap_err().text().contains("put_back is 3"));
    }

    #[test]
    fn entries_are_checked() {
        let (indices, values) = ([1, 4, 4], [1.0, 2.0, 3.0]);
        let read = |count, dim, limit| {
            let entries = Entries { indices: indices.as_ptr(), values: values.as_ptr(), count, dim };
            // SAFETY: the arrays have 3 elements, and no more are read.
            unsafe { entries.read(limit, "k") }.map_err(|failure| failure.text().to_owned())
        };
        assert_eq!(read(2, 5, 2).unwrap().indices(), [1, 4]);
        assert_eq!(read(0, 0, 0).unwrap().len(), 0);
        assert!(read(3, 5, 2).unwrap_err().contains("count is 3, expected at most k, 2"));
        assert!(read(3, 2, 3).unwrap_err().contains("count is 3, expected at most dim, 2"));
        assert!(read(3, 5, 3).unwrap_err().contains("position 2 does not rise"));
        assert!(read(2, 4, 3).unwrap_err().contains("index 4 at position 1 is out of range"));
        assert!(read(0, (1 << 32) + 1, 0).is_err());
    }
}
