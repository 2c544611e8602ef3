//! Values as they are.

use crate::Error;
use crate::bits::check_finite;
use crate::quantise::{Format, Quantiser};

/// The quantiser that does not round: 4 bytes a value.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl Quantiser for Plain {
    fn format(&self) -> Format {
        Format::F32
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        4 * count
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        check_finite(values)?;
        bytes.resize(4 * values.len(), 0);
        bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(values)
            .for_each(|(bytes, value)| *bytes = value.to_le_bytes());
        Ok(())
    }

    fn contracts(&self, _: usize, _: bool) -> bool {
        true
    }
}
