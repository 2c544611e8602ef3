//! Writes and reads the contents of a saved state, number by number.

use super::{Fault, State};
use crate::Error;
use crate::bits::check_finite;

/// Collects contents, little-endian.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    length: usize,
    counts_only: bool,
    /// The first error of what was to be written.
    failure: Option<Error>,
}

impl Writer {
    pub(super) fn with_capacity(count: usize) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(count).map_err(|_| Error::Memory { bytes: count })?;
        Ok(Self { bytes, length: 0, counts_only: false, failure: None })
    }

    /// A writer that counts bytes without keeping them.
    pub(super) fn counting() -> Self {
        Self { bytes: Vec::new(), length: 0, counts_only: true, failure: None }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn into_bytes(self) -> Result<Vec<u8>, Error> {
        self.failure.map_or(Ok(self.bytes), Err)
    }

    /// Appends the checksum of the bytes from `first` on.
    pub(super) fn checksum_from(&mut self, first: usize) {
        let sum = crc32fast::hash(&self.bytes[first..]);
        self.bytes(&sum.to_le_bytes());
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        if !self.counts_only {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Writes 8 bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes 8 bytes.
    pub fn f64(&mut self, value: f64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes 4 bytes for each value.
    pub fn f32s(&mut self, values: &[f32]) {
        self.length += 4 * values.len();
        if !self.counts_only {
            self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }

    /// Writes 4 bytes for each of `count` values. Computes the values only if they are not merely counted.
    /// Their error becomes that of saving.
    ///
    /// # Panics
    /// If there are not `count` values.
    pub fn computed_f32s(&mut self, count: usize, values: impl FnOnce() -> Result<Vec<f32>, Error>) {
        if self.counts_only {
            self.length += 4 * count;
            return;
        }
        match values() {
            Ok(values) => {
                assert_eq!(values.len(), count, "as many values as were announced");
                self.f32s(&values);
            }
            Err(error) => self.failure = self.failure.take().or(Some(error)),
        }
    }

    /// Writes the contents of a part. The shape of the whole must include that of the part.
    pub fn part(&mut self, part: &(impl State + ?Sized)) {
        part.write_contents(self);
    }
}

/// Returns contents in the order in which they were written.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(contents: &'a [u8]) -> Self {
        Self { rest: contents }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// [`Fault::Contents`] if fewer bytes are left, here and below: more is read than was written.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) =
            self.rest.split_at_checked(count).ok_or(Fault::Contents { what: "it ends early" })?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The next 8 bytes.
    ///
    /// # Errors
    /// The same as for [`bytes`](Self::bytes).
    pub fn u64(&mut self) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.bytes(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// The next 8 bytes.
    ///
    /// # Errors
    /// The same as for [`bytes`](Self::bytes); [`Fault::Contents`] for a NaN or an infinity.
    pub fn f64(&mut self) -> Result<f64, Error> {
        let value = f64::from_bits(self.u64()?);
        if value.is_finite() {
            Ok(value)
        } else {
            Err(Fault::Contents { what: "a number is not finite" }.into())
        }
    }

    /// Fills `values`.
    ///
    /// # Errors
    /// The same as for [`bytes`](Self::bytes), with `values` unchanged then; [`Error::NonFinite`] for the
    /// first NaN or infinity.
    pub fn f32s(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let bytes = self.bytes(values.len().saturating_mul(4))?;
        values
            .iter_mut()
            .zip(bytes.as_chunks().0)
            .for_each(|(value, &bytes)| *value = f32::from_le_bytes(bytes));
        check_finite(values)
    }

    /// Reads the contents of a part.
    ///
    /// # Errors
    /// The same as for [`State::read_contents`].
    pub fn part(&mut self, part: &mut (impl State + ?Sized)) -> Result<(), Error> {
        part.read_contents(self)
    }
}
