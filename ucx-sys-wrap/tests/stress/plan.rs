//! The plan of a round of the stress test; both ranks draw the same.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// How an operation is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Drop,
    Forget,
    Panic,
    /// Only when it is complete. A receive is awaited for a limited number of turns, since its message may
    /// have been canceled.
    Await,
}

/// A message, and how each side leaves its operation.
#[derive(Clone, Debug)]
pub struct Message {
    pub length: usize,
    seed: u8,
    pub sent: Way,
    pub received: Way,
    /// Turns before each side leaves.
    pub send_turns: u32,
    pub recv_turns: u32,
}

impl Message {
    pub fn bytes(&self) -> Vec<u8> {
        (0..self.length).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ self.seed).collect()
    }

    /// Whether `bytes` are those of the message, without generating them.
    pub fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.length
            && bytes
                .iter()
                .enumerate()
                .all(|(at, &byte)| byte == (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ self.seed)
    }
}

/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A different sequence every time.
    pub fn fresh() -> Self {
        Self(RandomState::new().hash_one(std::process::id()) >> 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// The messages of a round, in groups that are posted together.
    pub fn groups(&mut self) -> Vec<Vec<Message>> {
        let groups = 1 + self.below(4);
        (0..groups).map(|_| (0..=self.below(3)).map(|_| self.message()).collect()).collect()
    }

    fn message(&mut self) -> Message {
        const LENGTHS: [u64; 6] = [1, 200, 5000, 70_000, 600_000, 3_000_000];
        let most = LENGTHS[self.below(LENGTHS.len() as u64) as usize];
        let length = self.below(most + 1) as usize;
        self.message_of(length)
    }

    /// A message of `length` bytes.
    pub fn message_of(&mut self, length: usize) -> Message {
        Message {
            length,
            seed: self.next() as u8,
            sent: self.way(),
            received: self.way(),
            send_turns: self.turns(),
            recv_turns: self.turns(),
        }
    }

    fn way(&mut self) -> Way {
        [Way::Drop, Way::Forget, Way::Panic, Way::Await][self.below(4) as usize]
    }

    fn turns(&mut self) -> u32 {
        [0, 1, 3, 10, 100][self.below(5) as usize]
    }
}
