//! Lists of numbers in saved states.

use std::io::Read;

use brevity_compress::Error;
use brevity_compress::state::{self, Reader, State, Writer};

use crate::error::Result;

/// Values of a count that the reader knows.
pub(super) struct List<T> {
    count: usize,
    /// None before it is loaded: there is memory only for what has been read, since the count may come from a
    /// file and be anything.
    values: Vec<T>,
}

/// 4 bytes as they are.
pub(super) type Word = [u8; 4];

/// What there are lists of.
pub(super) trait Listed: Copy {
    const KIND: [u8; 4];
    /// The shape of a list of so many.
    fn shape(count: usize) -> u64 {
        count as u64
    }

    fn write(values: &[Self], contents: &mut Writer);

    /// Reads so many values of contents that are in memory.
    fn read(count: usize, contents: &mut Reader<'_>) -> Result<Vec<Self>, Error>;
}

impl Listed for u64 {
    const KIND: [u8; 4] = *b"srvn";

    fn write(values: &[Self], contents: &mut Writer) {
        values.iter().for_each(|value| contents.u64(*value));
    }

    fn read(count: usize, contents: &mut Reader<'_>) -> Result<Vec<Self>, Error> {
        (0..count).map(|_| contents.u64()).collect()
    }
}

impl Listed for f32 {
    const KIND: [u8; 4] = *b"srvf";

    fn write(values: &[Self], contents: &mut Writer) {
        contents.f32s(values);
    }

    fn read(count: usize, contents: &mut Reader<'_>) -> Result<Vec<Self>, Error> {
        let mut values = vec![0.0; count];
        contents.f32s(&mut values)?;
        Ok(values)
    }
}

impl Listed for Word {
    const KIND: [u8; 4] = *b"srvb";

    fn shape(count: usize) -> u64 {
        4 * count as u64
    }

    fn write(values: &[Self], contents: &mut Writer) {
        contents.bytes(values.as_flattened());
    }

    fn read(count: usize, contents: &mut Reader<'_>) -> Result<Vec<Self>, Error> {
        contents.bytes(4 * count).map(|bytes| bytes.as_chunks().0.to_vec())
    }
}

impl<T> List<T> {
    pub(super) fn of(values: Vec<T>) -> Self {
        Self { count: values.len(), values }
    }
}

impl<T: Listed> State for List<T> {
    fn kind(&self) -> [u8; 4] {
        T::KIND
    }

    fn shape(&self) -> Vec<u64> {
        vec![T::shape(self.count)]
    }

    fn write_contents(&self, contents: &mut Writer) {
        if self.values.len() == self.count {
            T::write(&self.values, contents);
        } else {
            // A list that is loaded is only counted.
            contents.computed_f32s(size_of::<T>() / 4 * self.count, || Ok(Vec::new()));
        }
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        self.values = T::read(self.count, contents)?;
        Ok(())
    }
}

/// Loads a list of so many values, less than 2^56.
pub(super) fn load<T: Listed>(count: usize, from: &mut impl Read) -> Result<Vec<T>> {
    let mut list = List { count, values: Vec::new() };
    state::load(&mut list, from)?;
    Ok(list.values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        state::save(&List::of(vec![7u64, 1 << 40]), &mut bytes).unwrap();
        state::save(&List::of(vec![1.5f32]), &mut bytes).unwrap();
        state::save(&List::of(vec![*b"abcd", *b"efgh"]), &mut bytes).unwrap();
        let rest = &mut &bytes[..];
        assert_eq!(load::<u64>(2, rest).unwrap(), [7, 1 << 40]);
        assert_eq!(load::<f32>(1, rest).unwrap(), [1.5]);
        assert_eq!(load::<Word>(2, rest).unwrap(), [*b"abcd", *b"efgh"]);
        assert!(rest.is_empty() && load::<u64>(0, rest).is_err());
    }

    /// A file whose head says so, and that ends.
    #[test]
    fn a_count_alone_takes_no_memory() {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(b"BRVS\x01\x01\0\0srvn");
        bytes.extend_from_slice(&(1u64 << 50).to_le_bytes());
        bytes.extend_from_slice(&(1u64 << 53).to_le_bytes());
        let sum = !bytes.iter().fold(!0u32, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ ((sum & 1) * 0xedb8_8320))
        });
        bytes.extend_from_slice(&sum.to_le_bytes());
        let ended = load::<u64>(1 << 50, &mut &bytes[..]).unwrap_err().to_string();
        assert!(ended.contains("ends after 0 of 9007199254740996 bytes"), "{ended}");
    }
}
