//! Checks which data has arrived in lent memory, without touching it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use brevity::transport::buffer::Port;

use crate::{PATIENCE, SENT, turn};
use std::time::Instant;

/// The number of bytes checked, from the first to the last in equal steps.
const LOOKS: u64 = 16;

/// Memory of this process, read like that of another process: the system copies out of it, and nothing here
/// borrows it.
pub struct Place {
    memory: File,
    address: u64,
    bytes: u64,
}

impl Place {
    /// The address of `memory`.
    pub fn of(memory: &[u8]) -> Self {
        let own = File::open("/proc/self/mem").unwrap_or_else(|error| panic!("{error}"));
        Self { memory: own, address: memory.as_ptr() as u64, bytes: memory.len() as u64 }
    }

    /// How many of the checked bytes are as they were sent.
    fn landed(&self) -> u64 {
        let is_sent = |look: &u64| {
            let (mut byte, at) = ([0], (self.bytes - 1) * look / (LOOKS - 1));
            self.memory.read_exact_at(&mut byte, self.address + at).unwrap_or_else(|error| panic!("{error}"));
            byte == [SENT]
        };
        (0..LOOKS).filter(is_sent).count() as u64
    }

    /// Some of it has arrived, and some has not.
    pub fn is_halfway(&self) -> bool {
        (1..LOOKS).contains(&self.landed())
    }

    /// Makes progress until some of it has arrived.
    ///
    /// # Panics
    /// If nothing arrives, or everything at once.
    pub fn await_halfway(&self, port: &Port) {
        let start = Instant::now();
        while self.landed() == 0 {
            turn(port);
            assert!(start.elapsed() < PATIENCE, "nothing comes");
        }
        assert!(self.is_halfway(), "everything came in one turn");
    }
}
