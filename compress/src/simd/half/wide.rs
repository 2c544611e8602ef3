//! Reductions of `f32` with 16-bit numbers, which are exact as `f32`.

use super::super::reduce::{LONG_BYTES, Operation};
use super::*;

/// An operation on every element of a row, with converted numbers.
#[derive(Clone, Copy)]
struct Widened<O, C>(O, C);

impl<O: Operation<f32>, C: Convert> Each<f32, TURN, u16> for Widened<O, C> {
    #[inline(always)]
    fn each(self, into: &mut [f32; TURN], from: &[u16; TURN]) {
        let mut wide = [0.0; TURN];
        // All operations give quiet NaN.
        self.1.widen_operand(from, &mut wide);
        for (into, &from) in into.iter_mut().zip(&wide) {
            *into = self.0.apply(*into, from);
        }
    }
}

per_level_half! {
    /// `into[i] = into[i] op from[i]`, computed in `f32`, up to the shorter length.
    pub(crate) fn combine_wide<by, O: Operation<f32>>(operation: O, into: &mut [f32], from: &[u16]) {
        let length = into.len().min(from.len());
        let (rows, rest) = into[..length].as_chunks_mut();
        let (from_rows, from_rest) = from[..length].as_chunks();
        let widened = Widened(operation, by);
        if size_of_val(rows) < LONG_BYTES {
            rows.iter_mut().zip(from_rows).for_each(|(into, from)| widened.each(into, from));
        } else {
            side_by_side(widened, rows, from_rows);
        }
        let mut last = padded(rest);
        widened.each(&mut last, &padded(from_rest));
        rest.copy_from_slice(&last[..rest.len()]);
    }
}
