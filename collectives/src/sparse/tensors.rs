//! Which tensors a vector consists of, for errors.

use brevity_compress::Error;

/// The tensors whose elements a vector holds one after the other, by their numbers in the caller's list. A
/// number alone stands for a vector that is one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Tensors<'a>(Kind<'a>);

#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    One(u32),
    Many(&'a [TensorEnd]),
}

/// Where a tensor ends in a vector of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorEnd {
    /// The index after its last element.
    pub end: usize,
    /// Its number.
    pub tensor: u32,
}

impl Tensors<'_> {
    /// The number of the tensor that has the element at `index`.
    pub(super) fn at(self, index: usize) -> u32 {
        match self.0 {
            Kind::One(tensor) => tensor,
            Kind::Many(ends) => {
                let place = ends.partition_point(|tensor| tensor.end <= index);
                ends.get(place).or(ends.last()).map_or(0, |found| found.tensor)
            }
        }
    }

    /// The number of the tensor that a value was found in.
    pub(super) fn of(self, error: &Error) -> u32 {
        self.at(if let Error::NonFinite { index, .. } = error { *index } else { 0 })
    }
}

impl From<u32> for Tensors<'_> {
    fn from(tensor: u32) -> Self {
        Self(Kind::One(tensor))
    }
}

impl<'a> From<&'a [TensorEnd]> for Tensors<'a> {
    /// Of ascending ends.
    fn from(ends: &'a [TensorEnd]) -> Self {
        Self(Kind::Many(ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_its_tensor_and_empty_tensors_have_none() {
        let ends = [(0, 9), (3, 4), (3, 5), (7, 1)].map(|(end, tensor)| TensorEnd { end, tensor });
        let tensors = Tensors::from(&ends[..]);
        assert_eq!([0, 2, 3, 6, 7].map(|index| tensors.at(index)), [4, 4, 1, 1, 1]);
        let error = Error::NonFinite { index: 5, value: f32::NAN };
        assert_eq!((tensors.of(&error), Tensors::from(8).of(&error)), (1, 8));
        assert_eq!(Tensors::from(&[][..]).at(3), 0);
    }
}
