//! A rank of the stress test, and the buffers of its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brevity::collectives::Result;
use brevity::transport::buffer::{Region, RemoteRegion};
use brevity::{Group, Handle, ReduceOp};
use brevity_tests::oracle;
use brevity_tests::random::Random;

use super::regions::{self, REGION};
use super::{RANKS, seeds};

/// Whether a result was wrong, in a task of which nobody knows the panic.
pub static WRONG: AtomicBool = AtomicBool::new(false);

const LENGTHS: [usize; 5] = [1, 100, 3000, 20_000, 200_000];

/// One rank.
pub struct Member {
    pub group: Group,
    /// What all ranks draw alike.
    pub common: Random,
    pub own: Random,
    pub region: Region<Vec<u32>>,
    /// The regions of all ranks, this one's too.
    pub opened: Vec<RemoteRegion>,
    live: Live,
}

impl Member {
    pub fn new(group: Group, seed: u64, live: Live) -> Self {
        let (common, own) = seeds(seed, group.rank());
        let region = group.register(vec![0u32; REGION]).unwrap();
        let opened = regions::open_all(&group, &region);
        Self { group, common, own, region, opened, live }
    }

    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    /// The lengths of some calls.
    pub fn lengths(&mut self) -> Vec<usize> {
        (0..=self.common.below(4)).map(|_| LENGTHS[self.common.below(LENGTHS.len())]).collect()
    }

    /// A group of the same ranks.
    pub fn twin(&self) -> Group {
        self.group.duplicate().unwrap()
    }

    /// A buffer that is counted as long as it lives.
    pub fn buffer<T>(&self, elements: Vec<T>) -> Buffer<T> {
        Buffer { elements, _live: self.live.clone() }
    }

    pub fn start(&self, group: &Group, length: usize) -> Call {
        group.start_all_reduce(self.buffer(oracle::vector(self.rank(), length)), ReduceOp::Sum)
    }
}

/// A sum that was started, and what it gives.
pub type Call = Handle<Reduced>;
pub type Reduced = (Buffer<f32>, Result<()>);

/// Checks a sum of this length.
pub fn check(reduced: &Reduced, length: usize) {
    let vectors: Vec<_> = (0..RANKS).map(|rank| oracle::vector(rank, length)).collect();
    let is_right = reduced.1.is_ok() && reduced.0.elements == oracle::sum(&vectors);
    WRONG.fetch_or(!is_right, Ordering::Relaxed);
    assert!(is_right, "a sum of {length} elements: {:?}", reduced.1);
}

/// Counts buffers.
#[derive(Clone, Default)]
pub struct Live(Arc<()>);

impl Live {
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// The elements of a call.
pub struct Buffer<T> {
    pub elements: Vec<T>,
    _live: Live,
}

impl<T> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}

impl<T> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        &self.elements
    }
}
