//! Dense collectives.

use brevity::{Element, Group, ReduceOp};

use super::oracle;
use super::workload::{Difference, Workload};

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllReduce,
    Broadcast,
    AllGather,
}

/// Vectors of one length, and their expected result.
pub struct Dense<T> {
    kind: Kind,
    input: Vec<T>,
    data: Vec<T>,
    expected: Vec<T>,
}

/// A type that represents small integers exactly.
pub trait Number: Element {
    /// The value of an integer that an `f32` holds exactly.
    fn of(integer: f32) -> Self;
}

impl Number for f32 {
    fn of(integer: f32) -> Self {
        integer
    }
}

impl Number for f64 {
    fn of(integer: f32) -> Self {
        integer.into()
    }
}

impl<T: Number> Dense<T> {
    /// The sum of the vectors of all ranks, `count` elements each.
    #[must_use]
    pub fn all_reduce(group: &Group, count: usize) -> Self {
        let expected = numbers(&oracle::sum(group.world_size(), count, oracle::EXACT));
        Self::new(Kind::AllReduce, own(group, count), expected)
    }

    /// Rank 0's vector of `count` elements to all ranks.
    #[must_use]
    pub fn broadcast(group: &Group, count: usize) -> Self {
        Self::new(Kind::Broadcast, own(group, count), numbers(&oracle::vector(0, count, oracle::EXACT)))
    }

    /// The vectors of all ranks, `count` elements each, to all ranks.
    #[must_use]
    pub fn all_gather(group: &Group, count: usize) -> Self {
        let all = (0..group.world_size()).flat_map(|rank| oracle::vector(rank, count, oracle::EXACT));
        let expected: Vec<T> = all.map(T::of).collect();
        Self { data: expected.clone(), ..Self::new(Kind::AllGather, own(group, count), expected) }
    }

    fn new(kind: Kind, input: Vec<T>, expected: Vec<T>) -> Self {
        Self { kind, data: input.clone(), input, expected }
    }
}

impl<T: Number> Workload for Dense<T> {
    fn prepare(&mut self) {
        if self.kind == Kind::AllGather {
            self.data.fill(T::of(0.0));
        } else {
            self.data.copy_from_slice(&self.input);
        }
    }

    fn run(&mut self, group: &Group) -> brevity::collectives::Result<()> {
        match self.kind {
            Kind::AllReduce => group.all_reduce(&mut self.data, ReduceOp::Sum),
            Kind::Broadcast => group.broadcast(&mut self.data, 0),
            Kind::AllGather => group.all_gather(&self.input, &mut self.data),
        }
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.data, &self.expected)
    }
}

fn own<T: Number>(group: &Group, count: usize) -> Vec<T> {
    numbers(&oracle::vector(group.rank(), count, oracle::EXACT))
}

fn numbers<T: Number>(integers: &[f32]) -> Vec<T> {
    integers.iter().map(|&integer| T::of(integer)).collect()
}
