//! Random plans, which a seed repeats.

use std::hash::{BuildHasher, RandomState};

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
pub struct Random(u64);

impl Random {
    /// The sequence of this seed, which is not 0.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// The seconds of a stress test (`BREVITY_STRESS_SECONDS`, or `otherwise`) and its seed
/// (`BREVITY_STRESS_SEED`, or another one each time), which it prints.
///
/// # Panics
/// For a variable that is no number.
#[must_use]
pub fn seconds_and_seed(name: &str, otherwise: u64) -> (u64, u64) {
    let seconds = number("BREVITY_STRESS_SECONDS").unwrap_or(otherwise);
    let seed = number("BREVITY_STRESS_SEED").unwrap_or_else(|| RandomState::new().hash_one(name)).max(1);
    println!("{name}: BREVITY_STRESS_SEED={seed}");
    (seconds, seed)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}
