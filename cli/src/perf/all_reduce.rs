//! The dense all-reduce.

use brevity::{Group, Reduction};

use super::measure::{Difference, Workload};
use super::oracle;

/// A sum of vectors of one length.
pub struct AllReduce {
    input: Vec<f32>,
    data: Vec<f32>,
    expected: Vec<f32>,
}

impl AllReduce {
    /// The vectors of this rank; `count` elements each.
    pub fn new(group: &Group, count: usize) -> Self {
        let input = oracle::vector(group.rank(), count, oracle::EXACT);
        let expected = oracle::sum(group.world_size(), count, oracle::EXACT);
        Self { data: input.clone(), input, expected }
    }
}

impl Workload for AllReduce {
    fn prepare(&mut self) {
        self.data.copy_from_slice(&self.input);
    }

    fn run(&mut self, group: &Group) -> brevity::collectives::Result<()> {
        group.all_reduce(&mut self.data, Reduction::Sum)
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.data, &self.expected)
    }
}
