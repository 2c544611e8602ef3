//! The steps that an exchange has made, and what changes with them.

use brevity_compress::Density;
use brevity_compress::schedule::Schedule;

use super::bucket::Bucket;
use super::parts::Parts;
use crate::error::Error;

/// How far an exchange has come, and the densities of its tensors.
#[derive(Default)]
pub(super) struct Course {
    /// The steps that were done.
    pub(super) steps: u64,
    /// Density by period, and how many steps a period has.
    pub(super) schedule: Option<(Schedule, u64)>,
    /// The first steps, in which everything of some tensors travels.
    pub(super) dense_steps: u64,
    /// Each tensor's own density; none of tensors that are not sparse.
    pub(super) own: Vec<Option<Density>>,
}

impl Course {
    /// The density of a tensor in the next step.
    fn density(&self, tensor: usize) -> Option<Density> {
        let own = self.own[tensor]?;
        let scheduled = self.schedule.as_ref();
        let scheduled = scheduled.map(|(schedule, steps)| schedule.density_at_step(self.steps, *steps));
        Some(scheduled.filter(|scheduled| *scheduled > own).unwrap_or(own))
    }

    /// The largest density of a tensor in any step, with this one of its own.
    pub(super) fn most(&self, own: Density) -> Density {
        let scheduled = self.schedule.as_ref().map(|(schedule, _)| schedule.largest());
        scheduled.filter(|scheduled| *scheduled > own).unwrap_or(own)
    }
}

impl Parts {
    /// Counts a step that was done. All ranks count alike, because a step is done on all of them, or left out
    /// on all, or it has failed: then the group is closed.
    pub(super) fn count_step(&mut self) {
        self.course.steps = self.course.steps.saturating_add(1);
        if self.course.schedule.is_some() || self.course.steps <= self.course.dense_steps {
            self.follow_course();
        }
    }

    /// Checks that there is memory to select by these densities.
    pub(super) fn check_room(&self, densities: &[Option<Density>]) -> Result<(), Error> {
        for (position, tensor) in self.tensors.iter().enumerate() {
            let Some(density) = densities[position] else { continue };
            let room = self.buckets.iter().find_map(|bucket| bucket.check_room(position, density));
            let what = || format!("tensor {:?}", tensor.name);
            room.unwrap_or(Ok(())).map_err(|bytes| Error::Memory { what: what(), bytes })?;
        }
        Ok(())
    }

    /// Lets all tensors select, or travel whole, as the course says.
    pub(super) fn follow_course(&mut self) {
        let Self { tensors, buckets, course, .. } = self;
        let mut has_changed = false;
        for position in 0..tensors.len() {
            let Some(density) = course.density(position) else { continue };
            has_changed |= buckets.iter_mut().any(|bucket| bucket.set_density(position, density));
        }
        for bucket in buckets {
            has_changed |= match bucket {
                Bucket::Sparse(bucket) => bucket.follow_steps(course.steps),
                Bucket::LowRank(bucket) => bucket.follow_steps(course.steps),
                _ => false,
            };
        }
        if has_changed {
            self.describe_anew();
        }
    }
}

/// How a tensor travels, in words around others, where it travels whole in so many first steps.
pub(super) fn after_dense_steps(words: String, is_dense: bool, steps: u64) -> String {
    match (is_dense, steps) {
        (_, 0) => words,
        (true, steps) => format!("dense for {steps} steps, then {words}"),
        (false, steps) => format!("{words}, after {steps} dense steps"),
    }
}
