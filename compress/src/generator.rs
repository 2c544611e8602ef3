//! Random numbers that are the same on every rank and platform.
//!
//! Integers come from xoshiro256++ (Blackman and Vigna, 2019), seeded through SplitMix64. Normal deviates
//! come from Marsaglia's polar method with a logarithm implemented here. It uses only IEEE 754 additions,
//! multiplications, divisions and square roots, each correctly rounded, in a fixed order. The `ln` and `cos`
//! of the standard library depend on the platform in their last bits.
//!
//! Not for cryptography.

use crate::Error;
use crate::state::{Fault, Reader, State, Writer};

/// A seeded generator of pseudo-random numbers. Equal seeds and equal calls give equal bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generator {
    state: [u64; 4],
}

impl Generator {
    /// A generator for `seed`, which may have any value.
    pub fn new(seed: u64) -> Self {
        Self::for_stream(seed, 0)
    }

    /// One of many generators for the same seed, for instance one for each tensor or step.
    pub fn for_stream(seed: u64, stream: u64) -> Self {
        let mut counter = split_mix(seed).wrapping_add(split_mix(!stream));
        let state = [(); 4].map(|()| {
            counter = counter.wrapping_add(GOLDEN);
            split_mix(counter)
        });
        // The all-zero state would never change. It can't occur: the four words are outputs of a bijection
        // for distinct inputs, so at most one is zero.
        Self { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A key for [`dither`].
    pub(crate) fn next_key(&mut self) -> [u32; 2] {
        let bits = self.next_u64();
        [bits as u32, (bits >> 32) as u32]
    }

    /// A uniform number from 0 (inclusive) to 1 (exclusive), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A uniform integer below `bound`, without bias; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // Lemire's method: the high half of the product is the result; a low half below the remainder is
        // drawn again.
        let excess = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= excess {
                return (product >> 64) as u64;
            }
        }
    }

    /// A standard normal deviate.
    pub fn normal(&mut self) -> f32 {
        self.normal_pair().0
    }

    /// Fills `values` with standard normal deviates, two from each pair drawn.
    pub fn fill_normal(&mut self, values: &mut [f32]) {
        for pair in values.chunks_mut(2) {
            let (first, second) = self.normal_pair();
            pair[0] = first;
            if let Some(last) = pair.get_mut(1) {
                *last = second;
            }
        }
    }

    /// Two independent deviates from a point of the unit disc.
    fn normal_pair(&mut self) -> (f32, f32) {
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let stretch = (-2.0 * natural_logarithm(square) / square).sqrt();
                return ((x * stretch) as f32, (y * stretch) as f32);
            }
        }
    }
}

impl State for Generator {
    fn kind(&self) -> [u8; 4] {
        *b"rand"
    }

    fn shape(&self) -> Vec<u64> {
        Vec::new()
    }

    fn write_contents(&self, contents: &mut Writer) {
        self.state.iter().for_each(|&word| contents.u64(word));
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        let state = [contents.u64()?, contents.u64()?, contents.u64()?, contents.u64()?];
        if state == [0; 4] {
            return Err(Fault::Contents { what: "a generator of all zeros" }.into());
        }
        self.state = state;
        Ok(())
    }
}

/// A uniform number from 0 (inclusive) to 1 (exclusive), a multiple of 2^-24, for one place of a vector.
/// Quantisers use it for random rounding.
///
/// It depends on key and place alone, so any number of lanes or threads draws the same. Two rounds of a
/// 32-bit mixer (multiplications and shifts, each a bijection); half of the key is added before each round.
/// Weaker than Philox, and cheaper. Each key, drawn from a [`Generator`], serves one vector.
#[inline(always)]
pub(crate) fn dither(key: [u32; 2], place: u32) -> f32 {
    let bits = mix(mix(place.wrapping_add(key[0])).wrapping_add(key[1]));
    (bits >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// A bijection of 32 bits. Flipping any bit of the argument flips each bit of the result with probability one
/// half.
#[inline(always)]
fn mix(bits: u32) -> u32 {
    let mixed = (bits ^ (bits >> 16)).wrapping_mul(0x21f0_aaad);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x735a_2d97);
    mixed ^ (mixed >> 15)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64, a bijection.
fn split_mix(counter: u64) -> u64 {
    let mixed = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// ln of a positive normal number, to about 1e-16: the exponent is separated, and for a mantissa `m` near 1
/// the series of `2 artanh((m - 1) / (m + 1))` is summed.
fn natural_logarithm(x: f64) -> f64 {
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((x.to_bits() & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let mut series = 0.0;
    for odd in (1..=23).rev().step_by(2) {
        series = series * square + 1.0 / f64::from(odd);
    }
    2.0 * ratio * series + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_xoshiro256_plus_plus() {
        let mut generator = Generator { state: [1, 2, 3, 4] };
        let published = [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205];
        assert_eq!([(); 5].map(|()| generator.next_u64()), published);
    }

    #[test]
    fn logarithm_is_accurate() {
        let mut generator = Generator::new(1);
        for _ in 0..10_000 {
            let x = generator.uniform().powi(3).max(f64::MIN_POSITIVE);
            let (ours, theirs) = (natural_logarithm(x), x.ln());
            assert!((ours - theirs).abs() <= 4e-16 * theirs.abs().max(1.0), "ln {x}: {ours}, {theirs}");
        }
    }

    #[test]
    fn normal_deviates_have_the_moments_and_tails_of_the_normal_law() {
        let mut values = vec![0.0; 1_000_001];
        Generator::new(7).fill_normal(&mut values);
        let moment = |p: i32| values.iter().map(|&v| f64::from(v).powi(p)).sum::<f64>() / values.len() as f64;
        // Standard errors at a million: 0.001, 0.0014, 0.0039, 0.0098.
        for (p, expected, error) in [(1, 0.0, 0.005), (2, 1.0, 0.007), (3, 0.0, 0.02), (4, 3.0, 0.05)] {
            assert!((moment(p) - expected).abs() < error, "moment {p}: {}", moment(p));
        }
        let beyond = values.iter().filter(|v| v.abs() > 3.0).count() as f64 / values.len() as f64;
        assert!((beyond - 0.0027).abs() < 0.0003, "{beyond}");
    }

    #[test]
    fn dithers_are_uniform_and_independent_of_their_neighbours() {
        let n = 1 << 20;
        for key in [[0, 0], [1, 0], [0, 1], [0xdead_beef, 0x1234_5678]] {
            let draw = |place: u32| f64::from(dither(key, place)) - 0.5;
            let mean_of = |product: &dyn Fn(u32) -> f64| (0..n).map(product).sum::<f64>() / f64::from(n);
            // Five standard errors: of the mean sqrt(1/12/n), of a product of two sqrt(1/144/n), of the
            // square sqrt(1/180/n).
            let error = |variance: f64| 5.0 * (variance / f64::from(n)).sqrt();
            assert!(mean_of(&draw).abs() < error(1.0 / 12.0), "{key:?}: {}", mean_of(&draw));
            let square = mean_of(&|place| draw(place) * draw(place)) - 1.0 / 12.0;
            assert!(square.abs() < error(1.0 / 180.0), "{key:?}: {square}");
            for lag in [1, 2, 16, 64, 512, 65536] {
                let together = mean_of(&|place| draw(place) * draw(place.wrapping_add(lag)));
                assert!(together.abs() < error(1.0 / 144.0), "{key:?}, lag {lag}: {together}");
            }
        }
        let across = (0..n).map(|place| {
            let one = f64::from(dither([7, 8], place)) - 0.5;
            one * (f64::from(dither([7, 9], place)) - 0.5)
        });
        let across = across.sum::<f64>() / f64::from(n);
        assert!(across.abs() < 5.0 * (1.0 / 144.0 / f64::from(n)).sqrt(), "two keys: {across}");
    }

    #[test]
    fn bits_are_pinned() {
        // A change of these values would make ranks of different builds diverge.
        let mut values = [0.0; 3];
        Generator::new(42).fill_normal(&mut values);
        assert_eq!(values.map(f32::to_bits), [0x3f70_dee3, 0xbfc6_3db7, 0xbf34_fd3f]);
    }

    #[test]
    fn streams_differ_and_bounds_hold() {
        let draw = |seed, stream| Generator::for_stream(seed, stream).next_u64();
        let all = [draw(0, 0), draw(0, 1), draw(1, 0), draw(1, 1)];
        assert!((0..4).all(|i| (0..i).all(|j| all[i] != all[j])), "{all:?}");
        let mut generator = Generator::new(3);
        let mut seen = [0_usize; 5];
        (0..10_000).for_each(|_| seen[generator.below(5) as usize] += 1);
        assert!(seen.iter().all(|&count| (1800..2200).contains(&count)), "{seen:?}");
        assert_eq!((generator.below(0), generator.below(1)), (0, 0));
    }
}
