//! Dense collectives.

use std::mem;
use std::sync::Arc;

use brevity::Group;

use super::workload::{Difference, Going, Workload};
use crate::collective::{Collective, Entry, Number, Place, Started, Vectors, entry};
use crate::{Error, Result};

/// A dense collective on this rank, with its expected result.
pub struct Dense<T> {
    entry: Entry<T>,
    vectors: Vectors<T>,
    /// The output before the call, while results are checked.
    before: Vec<T>,
    expected: Arc<[T]>,
}

impl<T: Number> Dense<T> {
    /// The vectors of this rank for a row of `count` elements; see [`collective`](crate::collective) for what
    /// these are.
    ///
    /// # Errors
    /// [`Error::Arguments`] if Brevity does not have the collective.
    pub fn new(group: &Group, collective: Collective, count: usize) -> Result<Self> {
        Self::expecting(group, collective, count, collective.expected(place(group), count).into())
    }

    /// The same with what is [expected](Collective::expected), which ranks of one process may share.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn expecting(
        group: &Group,
        collective: Collective,
        count: usize,
        expected: Arc<[T]>,
    ) -> Result<Self> {
        let entry = entry(collective)
            .ok_or_else(|| Error::Arguments(format!("there is no {collective} to measure yet")))?;
        let vectors = collective.vectors(place(group), count);
        Ok(Self { entry, before: vectors.output.clone(), vectors, expected })
    }

    /// Starts the form that does not block, which has the memory until [`end`](Self::end).
    pub fn begin(&mut self, group: &Group) -> Started<T> {
        (self.entry.start)(group, mem::take(&mut self.vectors))
    }

    /// Takes back the memory of a call that has ended.
    ///
    /// # Errors
    /// That of the call.
    pub fn end(&mut self, (vectors, result): (Vectors<T>, brevity::collectives::Result<()>)) -> Result<()> {
        self.vectors = vectors;
        Ok(result?)
    }
}

fn place(group: &Group) -> Place {
    Place { rank: group.rank(), world_size: group.world_size() }
}

impl<T: Number> Workload for Dense<T> {
    fn prepare(&mut self) {
        if !self.before.is_empty() {
            self.vectors.output.copy_from_slice(&self.before);
        }
    }

    fn run(&mut self, group: &Group) -> brevity::collectives::Result<()> {
        (self.entry.run)(group, &mut self.vectors)
    }

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        let started = self.begin(group);
        Box::pin(async move {
            let (vectors, result) = started.ended().await;
            self.vectors = vectors;
            result
        })
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.vectors.output, &self.expected)
    }

    fn settle(&mut self) {
        (self.before, self.expected) = (Vec::new(), Arc::new([]));
        // A sum in place grows with every call; zeros stay zeros.
        if self.entry.collective == Collective::AllReduce {
            self.vectors.output.fill(T::of(0.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use brevity::Settings;
    use brevity::transport::local;

    use super::*;
    use crate::collective::measured;

    /// The started forms; the blocking ones are checked by what measures them.
    #[test]
    fn started_calls_give_what_is_expected() {
        for world_size in 1..=4 {
            thread::scope(|scope| {
                for rank in local::world(world_size) {
                    scope.spawn(move || {
                        let group = Group::new(Box::new(rank), Settings::default());
                        for (collective, count) in
                            measured().flat_map(|all| [(all, 0), (all, 12), (all, 500)])
                        {
                            let mut dense = Dense::<f64>::new(&group, collective, count).unwrap();
                            let started = dense.begin(&group);
                            dense.end(started.wait()).unwrap();
                            assert_eq!(dense.check(), Ok(()), "{collective} of {count}");
                        }
                    });
                }
            });
        }
    }
}
