//! The steps that an exchange has made, and what changes with them.

use brevity_compress::schedule::Schedule;

use super::parts::Parts;

/// How far an exchange has come, and the entries that a rank selects of each tensor.
#[derive(Default)]
pub(super) struct Course {
    /// The steps that were done.
    pub(super) steps: u64,
    /// Density by period, and how many steps a period has.
    pub(super) schedule: Option<(Schedule, u64)>,
    /// By each tensor's own density; 0 for tensors that are not sparse.
    pub(super) own: Vec<usize>,
}

impl Course {
    /// The entries of a tensor of `count` elements in the next step.
    fn entries(&self, tensor: usize, count: usize) -> usize {
        let scheduled = self
            .schedule
            .as_ref()
            .map_or(0, |(schedule, steps)| schedule.density_at_step(self.steps, *steps).entries(count));
        self.own[tensor].max(scheduled)
    }

    /// The most entries of a tensor of `count` elements in any step, of which `own` by its own density.
    pub(super) fn most(&self, own: usize, count: usize) -> usize {
        let scheduled = self.schedule.as_ref().map_or(0, |(schedule, _)| schedule.largest().entries(count));
        own.max(scheduled)
    }
}

impl Parts {
    /// Counts a step that was done. All ranks count alike, because a step is done on all of them, or left out
    /// on all, or it has failed: then the group is closed.
    pub(super) fn count_step(&mut self) {
        self.course.steps = self.course.steps.saturating_add(1);
        self.follow_course();
    }

    /// Lets all tensors select what the course says.
    pub(super) fn follow_course(&mut self) {
        let Self { tensors, buckets, course, .. } = self;
        let mut has_changed = false;
        for (position, tensor) in tensors.iter().enumerate().filter(|(position, _)| course.own[*position] > 0)
        {
            let k = course.entries(position, tensor.count);
            let bucket = buckets.iter_mut().find_map(|bucket| bucket.as_sparse_mut(position));
            has_changed |= bucket.is_some_and(|bucket| bucket.set_entries(position, k));
        }
        if has_changed {
            self.describe_anew();
        }
    }
}
