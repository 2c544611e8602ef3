//! Messages of sparse vectors at random places: bytes of the indices relative to their entropy, and time for
//! an entry beyond the time for the values alone. The difference between a message and its values is what the
//! indices take.

use std::hint::black_box;

use brevity::compress::SparseVec;
use brevity::compress::codec::{Choice, Encoder, HEADER_BYTES, IndexCodec, decode};
use brevity::compress::quantise::{Encoded, Quantiser, Sign};

use super::entries::disjoint;
use super::gradient_drop::{SHARES, entries};
use super::{Bar, Done, Extent, Group, Row, Subject, measure as measure_row, refused};
use crate::{Error, Result};

/// The limit for an index, in nanoseconds each way: a message with values minus the values alone.
const NANOSECONDS: f64 = 0.35;

/// The limit of the indices' bytes, relative to the entropy.
const OVER_ENTROPY: f64 = 1.2;

/// A share of entries at which a bitmap is the smallest codec.
const MANY: f64 = 0.2;

/// A sparse vector, its message, and the decoded vector. The values are one bit each.
struct Messages {
    entries: SparseVec,
    choice: Choice,
    encoder: Encoder,
    sign: Sign,
    message: Vec<u8>,
    /// The values alone.
    values: Vec<u8>,
    floats: Vec<f32>,
    decoded: SparseVec,
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let [thousandth, hundredth] = SHARES;
    for (codec, share, is_held) in [
        (IndexCodec::Packed, thousandth, true),
        (IndexCodec::Packed, hundredth, true),
        (IndexCodec::Rice, thousandth, false),
        (IndexCodec::Rice, hundredth, false),
        (IndexCodec::Raw, hundredth, false),
        (IndexCodec::Bitmap, MANY, false),
    ] {
        let entries = disjoint(extent.elements, 1, entries(share, extent.elements))?.swap_remove(0);
        Messages::new(entries, codec)?.measure(codec, share, is_held, extent, told)?;
    }
    Ok(())
}

impl Messages {
    fn new(entries: SparseVec, codec: IndexCodec) -> Result<Self> {
        let mut messages = Self {
            decoded: SparseVec::new(entries.dim()),
            floats: vec![0.0; entries.len()],
            entries,
            choice: Choice::Only(codec),
            encoder: Encoder::new(),
            sign: Sign::default(),
            message: Vec::new(),
            values: Vec::new(),
        };
        messages.encode().map_err(refused("codec"))?;
        messages.encode_values().map_err(refused("codec"))?;
        messages.decode().map_err(refused("codec"))?;
        messages.verify().map(|()| messages)
    }

    fn measure(
        mut self,
        codec: IndexCodec,
        share: f64,
        is_held: bool,
        extent: Extent,
        told: &mut impl FnMut(Row),
    ) -> Result<()> {
        let turns = if codec == IndexCodec::Bitmap { extent.iterations } else { extent.of_short() };
        let held = |bars: &[Bar]| if is_held { bars.to_vec() } else { Vec::new() };
        let name = format!("{codec:?}").to_lowercase();
        let subject = self.subject(format!("indices {name}, 1 bit a value: encode"), share);
        let bars = held(&[Bar::Entropy(OVER_ENTROPY), Bar::NanosecondsOver(NANOSECONDS)]);
        let subject = Subject { over_entropy: self.over_entropy(), bars, ..subject };
        told(measure_row(subject, turns, &mut self, |_| (), Self::encode_values, Self::encode)?);
        let subject = self.subject(format!("indices {name}, 1 bit a value: decode"), share);
        let subject = Subject { bars: held(&[Bar::NanosecondsOver(NANOSECONDS)]), ..subject };
        told(measure_row(subject, turns, &mut self, |_| (), Self::decode_values, Self::decode)?);
        Ok(())
    }

    fn subject(&self, kernel: String, share: f64) -> Subject {
        let subject = Subject::new(Group::Codec, kernel, self.entries.dim(), 0, "values");
        let (entries, bytes) = (Some(self.entries.len()), 8 * self.entries.len() + self.message.len());
        Subject { density: Some(share), entries, bytes, ..subject }
    }

    fn encode(&mut self) -> Done {
        let Self { entries, choice, encoder, sign, message, .. } = self;
        encoder.encode(black_box(entries.view()), *choice, sign, message)
    }

    fn encode_values(&mut self) -> Done {
        self.sign.encode_sparse(black_box(self.entries.view()), &mut self.values)
    }

    fn decode(&mut self) -> Done {
        let Self { entries, message, decoded, .. } = self;
        decode(black_box(message), entries.dim(), entries.len(), decoded)
    }

    fn decode_values(&mut self) -> Done {
        let Self { sign, values, floats, .. } = self;
        let values = Encoded::new(sign.format(), floats.len(), black_box(values));
        values.and_then(|values| values.decode_into(floats))
    }

    /// Bytes of the indices relative to the `log2 C(n, k)` bits of their entropy, by Stirling's formula.
    fn over_entropy(&self) -> Option<f64> {
        let (n, k) = (self.entries.dim() as f64, self.entries.len() as f64);
        let rest = n - k;
        let circle = (n / (std::f64::consts::TAU * k * rest)).log2() / 2.0;
        let bits = k * (n / k).log2() + rest * (n / rest).log2() + circle;
        let bytes = self.message.len() - HEADER_BYTES - self.values.len();
        (rest > 0.0 && bits > 0.0).then_some(8.0 * bytes as f64 / bits)
    }

    /// Checks that decoding restores the indices, and the values as the quantiser rounds them.
    fn verify(&self) -> Result<()> {
        let mut floats = self.floats.clone();
        let values =
            Encoded::new(self.sign.format(), floats.len(), &self.values).map_err(refused("codec"))?;
        values.decode_into(&mut floats).map_err(refused("codec"))?;
        if (self.decoded.indices(), self.decoded.values()) == (self.entries.indices(), &floats[..]) {
            return Ok(());
        }
        Err(Error::contestant("codec", format!("{:?}: what is decoded is not what was encoded", self.choice)))
    }
}
