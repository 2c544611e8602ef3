//! Random rounding that repeats: the seed of a message is a hash of what is rounded.
//!
//! A quantiser with a generator of its own rounds the same values in another way after a restart, unless the
//! generator is saved. Here equal values give equal bytes, on every rank, and other values independent ones.

use super::{Format, Qsgd, Quantiser, Ternary};
use crate::Error;
use crate::generator::Generator;

/// A quantiser that draws keys from a generator.
pub(super) trait Drawing: Quantiser {
    /// Draws the next keys from this generator.
    fn draw_from(&mut self, keys: Generator);
}

/// Seeds a quantiser by the values of each message.
#[derive(Debug, Clone)]
pub(super) struct Seeded<Q>(pub(super) Q);

impl<Q: Drawing> Quantiser for Seeded<Q> {
    fn format(&self) -> Format {
        self.0.format()
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        self.0.encoded_bytes(count)
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.0.draw_from(Generator::new(hash(values)));
        self.0.encode(values, bytes)
    }

    fn contracts(&self, count: usize, may_be_zero: bool) -> bool {
        self.0.contracts(count, may_be_zero)
    }
}

impl Drawing for Qsgd {
    fn draw_from(&mut self, keys: Generator) {
        self.set_keys(keys);
    }
}

impl Drawing for Ternary {
    fn draw_from(&mut self, keys: Generator) {
        self.set_keys(keys);
    }
}

/// Values that are hashed side by side.
const LANES: usize = 16;

/// A hash of the bits of all values and of their number. Part of what a restart repeats: it doesn't change.
/// Rotation brings high bits, as the sign, to where the product spreads them; the shift keeps a change of the
/// product's highest bit alone from being one that the next value could undo. Not for hash tables that an
/// attacker fills.
fn hash(values: &[f32]) -> u64 {
    let mut lanes: [u32; LANES] = std::array::from_fn(|lane| lane as u32);
    let mix = |lane: u32, value: f32| {
        let product = (lane ^ value.to_bits()).rotate_left(13).wrapping_mul(0x9e37_79b1);
        product ^ product >> 15
    };
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        lanes.iter_mut().zip(row).for_each(|(lane, &value)| *lane = mix(*lane, value));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &value)| *lane = mix(*lane, value));
    lanes.iter().fold(values.len() as u64, |hash, &lane| {
        (hash ^ u64::from(lane)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::quantise::{Encoded, Norm};

    fn normal(seed: u64, count: usize) -> Vec<f32> {
        let mut values = vec![0.0; count];
        Generator::new(seed).fill_normal(&mut values);
        values
    }

    fn both() -> [Box<dyn Quantiser>; 2] {
        let qsgd = Qsgd::new(7, 512, Norm::Largest, 0);
        [Box::new(Seeded(qsgd)), Box::new(Seeded(Ternary::halved(0)))]
    }

    #[test]
    fn hashes_see_each_bit_each_place_and_the_length() {
        for count in [1, 15, 16, 17, 100] {
            let values = normal(1, count);
            let mut hashes = BTreeSet::from([hash(&values), hash(&[values.as_slice(), &[0.0]].concat())]);
            for (place, bit) in (0..count).flat_map(|place| (0..32).map(move |bit| (place, bit))) {
                let mut other = values.clone();
                other[place] = f32::from_bits(other[place].to_bits() ^ 1 << bit);
                hashes.insert(hash(&other));
                // Two in one lane: the same change again does not undo the first.
                if place >= LANES {
                    other[place - LANES] = f32::from_bits(other[place - LANES].to_bits() ^ 1 << bit);
                    hashes.insert(hash(&other));
                }
            }
            assert_eq!(hashes.len(), 2 + 32 * (count + count.saturating_sub(LANES)), "{count} values");
        }
        assert_ne!(hash(&[1.0, 2.0]), hash(&[2.0, 1.0]));
        assert_ne!(hash(&normal(1, 16)), hash(&[&normal(1, 16)[1..], &normal(1, 16)[..1]].concat()));
    }

    /// The rule is part of what a restart repeats. The numbers are those of the rule in Python.
    #[test]
    fn the_hash_does_not_change() {
        assert_eq!([hash(&[]), hash(&[1.0, -2.5])], [0x4362_db53_be21_7a8d, 0x9138_5d23_78e9_2b69]);
    }

    #[test]
    fn equal_values_give_equal_bytes_whatever_came_before() {
        for (mut one, mut other) in both().into_iter().zip(both()) {
            let (values, mut bytes, mut again) = (normal(2, 3000), Vec::new(), Vec::new());
            one.encode(&values, &mut bytes).unwrap();
            other.encode(&normal(3, 700), &mut again).unwrap();
            other.encode(&values, &mut again).unwrap();
            assert_eq!(bytes, again);
            let mut changed = values.clone();
            changed[2999] = -changed[2999];
            other.encode(&changed, &mut again).unwrap();
            let differing = bytes.iter().zip(&again).filter(|(a, b)| a != b).count();
            assert!(differing > bytes.len() / 4, "{differing} of {} bytes", bytes.len());
        }
    }

    /// Over many messages, errors average out.
    #[test]
    fn rounding_has_no_bias_over_messages() {
        let mut quantiser = Seeded(Qsgd::new(2, 512, Norm::Largest, 0));
        let (mut sum, mut bytes, mut decoded) = (0.0_f64, Vec::new(), [0.0; 3]);
        for step in 0..10_000 {
            quantiser.encode(&[0.3, 1.0, step as f32 * 1e-5], &mut bytes).unwrap();
            Encoded::new(Format::Qsgd, 3, &bytes).unwrap().decode_into(&mut decoded).unwrap();
            sum += f64::from(decoded[0]);
        }
        // A standard deviation of the mean is 0.0025.
        assert!((sum / 10_000.0 - 0.3).abs() < 0.0125, "{}", sum / 10_000.0);
    }
}
