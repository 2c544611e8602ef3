//! A copy in memory: the least that a message between processes that share memory can cost.

use std::hint::black_box;
use std::time::Instant;

use crate::compare::Contestant;
use crate::memory::PageAligned;
use crate::order::{Order, Over};
use crate::{Error, Result};

/// `memcpy` by one processor, from one message to the places that a receiver of a stream has posted, in turn.
pub struct MemoryCopy;

impl Contestant for MemoryCopy {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        let from = PageAligned::new(order.bytes, |_| 1);
        let mut places: Vec<PageAligned> =
            (0..Over::Memory.depth(order.bytes)).map(|_| PageAligned::new(order.bytes, |_| 0)).collect();
        let mut copy = |count| {
            let depth = places.len();
            (0..count)
                .for_each(|index| black_box(&mut places[index % depth]).copy_from_slice(black_box(&from)));
        };
        copy(order.warmup + 1);
        let start = Instant::now();
        copy(order.iterations);
        let time = start.elapsed();
        if places[0][..] != from[..] {
            return Err(Error::contestant(self.name(), "a copy differs from its source"));
        }
        Ok(time.as_secs_f64() * 1e6 / order.iterations as f64)
    }
}
