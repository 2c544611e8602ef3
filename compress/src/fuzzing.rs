//! The decoders of untrusted bytes, as functions for a fuzzer: each must return a result or an error. Built
//! for tests and with the feature `fuzzing`.

use crate::codec::{Decoder, decode, decode_as};
use crate::feedback::Residual;
use crate::generator::Generator;
use crate::low_rank::{Batch, ErrorRule, LowRank, PowerSgd};
use crate::quantise::{Encoded, Format, elias};
use crate::state::{self, Reader, State, Writer};
use crate::{Error, SparseVec};

const DIM: usize = 300;
const LIMIT: usize = 200;

/// A message of a sparse vector of length 300.
pub fn codec_messages(data: &[u8]) {
    let mut out = SparseVec::new(0);
    let decoded = decode(data, DIM, LIMIT, &mut out);
    assert!(decoded.is_ok() || out.is_empty(), "{decoded:?}");
    assert!(out.dim() == DIM && out.len() <= LIMIT, "{out:?}");
    assert!(out.values().iter().all(|value| value.is_finite()), "{out:?}");
    let (indices, values) = out.into_parts();
    let checked = SparseVec::from_parts(DIM, indices, values);
    assert!(checked.is_ok(), "{checked:?}");
    Format::ALL.into_iter().for_each(|format| in_blocks(data, format));
    elias_codes(data);
    if let Some((&format, bytes)) = data.split_first() {
        dense_values(format, bytes);
    }
}

/// A message that is read in parts is the same, or refused too.
fn in_blocks(data: &[u8], format: Format) {
    let (mut whole, mut memory, mut found) = (SparseVec::new(0), SparseVec::new(0), SparseVec::new(DIM));
    let expected = decode_as(data, DIM, LIMIT, format, &mut whole);
    let blocks = Decoder::new(data, DIM, LIMIT, format, &mut memory).and_then(|mut decoder| {
        found.append(decoder.until(DIM / 2)?);
        while let Some(block) = decoder.next_block()? {
            found.append(block);
        }
        Ok(())
    });
    assert_eq!(blocks.is_ok(), expected.is_ok(), "{blocks:?} {expected:?}");
    assert!(blocks.is_err() || found == whole, "{found:?} {whole:?}");
}

/// 300 values of a dense vector in any format.
fn dense_values(format: u8, bytes: &[u8]) {
    let Some(format) = Format::from_id(format) else { return };
    if let Ok(encoded) = Encoded::new(format, DIM, bytes) {
        let mut values = [f32::NAN; DIM];
        let decoded = encoded.decode_into(&mut values);
        assert!(decoded.is_ok() && values.iter().all(|value| value.is_finite()), "{format:?}");
    }
}

/// 300 values of QSGD in Elias codes.
fn elias_codes(data: &[u8]) {
    let (mut message, mut again) = (Vec::new(), Vec::new());
    if elias::decode(data, DIM, &mut message).is_ok() {
        let encoded = elias::encode(&message, DIM, &mut again);
        assert!(encoded.is_ok() && again == data, "{encoded:?}");
    }
}

/// Saved state: the bytes as they are, and the bytes as contents under a valid checksum.
pub fn saved_state(data: &[u8]) {
    let _ = state::from_bytes(&mut Generator::new(1), data);
    saved_powersgd(data);
    check_residual(3, data);
    let elements = data.len() / 4;
    let forged = Forged { kind: *b"resi", shape: vec![elements as u64], contents: &data[..4 * elements] };
    check_residual(elements, &state::to_bytes(&forged));
    if let Some((contents, _)) = data.split_first_chunk::<32>() {
        let mut generator = Generator::new(1);
        let forged = Forged { kind: *b"rand", shape: Vec::new(), contents };
        let loaded = state::from_bytes(&mut generator, &state::to_bytes(&forged));
        assert_eq!(loaded.is_ok(), *contents != [0; 32], "{loaded:?}");
    }
}

/// Two matrices under a valid checksum.
fn saved_powersgd(data: &[u8]) {
    let states: Result<Vec<_>, _> =
        [(3, 2), (2, 4)].into_iter().map(|(rows, cols)| LowRank::new(rows, cols, 1, 1)).collect();
    let mut powersgd = PowerSgd::new(Batch::new(states.unwrap_or_default()), ErrorRule::Own);
    let _ = state::from_bytes(&mut powersgd, data);
    let forged = Forged { kind: powersgd.kind(), shape: powersgd.shape(), contents: data };
    if state::from_bytes(&mut powersgd, &state::to_bytes(&forged)).is_ok() {
        assert!(
            powersgd.memories().iter().all(|memory| memory.matrix().iter().all(|value| value.is_finite()))
        );
        assert!(
            powersgd.batch().states().iter().all(|state| state.q().iter().all(|value| value.is_finite()))
        );
    }
}

fn check_residual(elements: usize, bytes: &[u8]) {
    let mut residual = Residual::new(elements);
    if state::from_bytes(&mut residual, bytes).is_ok() {
        assert!(residual.values().iter().all(|value| value.is_finite()), "{residual:?}");
        assert_eq!(state::to_bytes(&residual), bytes);
    }
}

/// A state with arbitrary contents.
struct Forged<'a> {
    kind: [u8; 4],
    shape: Vec<u64>,
    contents: &'a [u8],
}

impl State for Forged<'_> {
    fn kind(&self) -> [u8; 4] {
        self.kind
    }

    fn shape(&self) -> Vec<u64> {
        self.shape.clone()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.bytes(self.contents);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.bytes(self.contents.len()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(target: &str, run: fn(&[u8])) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            run(&std::fs::read(path).unwrap());
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }

    #[test]
    fn the_corpus_of_codec_messages_does_no_harm() {
        replay("codec_messages", codec_messages);
    }

    #[test]
    fn the_corpus_of_saved_states_does_no_harm() {
        replay("saved_state", saved_state);
    }
}
