//! Tensors of which the signs of a momentum are put to the vote (Signum).

use std::ops::{ControlFlow, Range};

use brevity_collectives::vote::{describe, vote_all_reduce};
use brevity_collectives::{Call, Description, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::state::{Reader, Writer};

use super::gradient::{GradientMut, for_blocks};
use super::room::Lacking;
use super::taking::Taking;
use super::{Ending, room};

/// Tensors whose signs are voted on together.
#[derive(Default)]
pub(super) struct VoteBucket {
    tensors: Vec<Place>,
    /// The momentum of earlier steps. A step does not change it before it ends.
    momentum: Vec<f32>,
    /// The momentum with this step's gradients.
    next: Vec<f32>,
    /// The majority of its signs, once the vote has succeeded.
    votes: Vec<f32>,
}

struct Place {
    tensor: usize,
    range: Range<usize>,
    /// The share of the momentum that stays in a step.
    factor: f32,
}

impl VoteBucket {
    /// Adds a tensor. [`allocate`](Self::allocate) makes room for it.
    pub(super) fn add(&mut self, tensor: usize, count: usize, factor: f32) {
        let start = self.count();
        self.tensors.push(Place { tensor, range: start..start.saturating_add(count), factor });
    }

    /// Makes room for all tensors, and checks that there is as much to work with.
    pub(super) fn allocate(&mut self) -> std::result::Result<(), Lacking> {
        // Asked for first, because zeros take memory at once.
        self.votes = room::with_room(self.count())?;
        self.momentum = room::zeros(self.count())?;
        self.next = room::zeros(self.count())?;
        // Messages of up to two bits a value, out and in.
        room::check(self.count() / 2)
    }

    fn count(&self) -> usize {
        self.tensors.last().map_or(0, |place| place.range.end)
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.tensors.iter().map(|place| place.tensor)
    }

    /// Adds the gradient of a tensor of the bucket. Returns whether all of the momentum is finite.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let Self { tensors, momentum, next, .. } = self;
        let Some(place) = tensors.iter().find(|place| place.tensor == tensor) else { return true };
        let (momentum, next) = (&momentum[place.range.clone()], &mut next[place.range.clone()]);
        let _ = for_blocks(gradient, |first, block| {
            let all = next[first..].iter_mut().zip(&momentum[first..]).zip(block);
            all.for_each(|((next, m), g)| *next = place.next(*m, *g));
            ControlFlow::Continue(())
        });
        next.iter().all(|value| value.is_finite())
    }

    pub(super) fn describe(&self) -> Description {
        describe(self.count())
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        self.votes.clear();
        self.votes.extend_from_slice(&self.next);
        if poisoned {
            self.votes.fill(0.0);
        }
        let first = self.tensors.first().map_or(0, |place| place.tensor as u32);
        vote_all_reduce(call, &mut self.votes, first).await
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>]) {
        match ending {
            Ending::Done => {
                for place in &self.tensors {
                    gradients[place.tensor].write(&self.votes[place.range.clone()], |vote| vote);
                }
                std::mem::swap(&mut self.momentum, &mut self.next);
            }
            // The momentum is still that before the step.
            Ending::Failed | Ending::Poisoned => {}
        }
    }

    /// How a tensor travels, with all settings.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        Some(format!("vote of signs, momentum {}", self.place(tensor)?.factor))
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        self.place(tensor).is_some()
    }

    fn place(&self, tensor: usize) -> Option<&Place> {
        self.tensors.iter().find(|place| place.tensor == tensor)
    }

    pub(super) fn write_state(&self, tensor: usize, contents: &mut Writer) {
        if let Some(place) = self.place(tensor) {
            contents.f32s(&self.momentum[place.range.clone()]);
        }
    }

    pub(super) fn read_state(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        let Self { tensors, momentum, .. } = self;
        let place = tensors.iter().find(|place| place.tensor == tensor);
        place.map_or(Ok(()), |place| contents.f32s(&mut momentum[place.range.clone()]))
    }

    /// Passes over what another rank has saved of a tensor: this rank's momentum stays.
    pub(super) fn take(
        &self,
        tensor: usize,
        from: &mut Taking<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        self.place(tensor).map_or(Ok(()), |place| from.pass_over(place.range.len()))
    }

    /// A vote leaves no residual.
    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if self.holds(tensor) {
            out.fill(0.0);
        }
    }
}

impl Place {
    /// The momentum `m` after a step with gradient `g`.
    fn next(&self, m: f32, g: f32) -> f32 {
        self.factor * m + (1.0 - self.factor) * g
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> VoteBucket {
        let mut bucket = VoteBucket::default();
        bucket.add(0, 2, 0.5);
        bucket.add(1, 1, 0.0);
        bucket.allocate().unwrap();
        bucket
    }

    #[test]
    fn only_a_step_that_is_done_changes_the_momentum() {
        let mut bucket = bucket();
        bucket.votes = vec![1.0; 3];
        for (ending, expected) in [
            (Ending::Failed, [0.0, 0.0, 0.0]),
            (Ending::Done, [1.0, -2.0, 3.0]),
            (Ending::Poisoned, [1.0, -2.0, 3.0]),
            (Ending::Done, [1.5, -3.0, 3.0]),
        ] {
            let (mut first, mut second) = ([2.0, -4.0], [3.0]);
            assert!(
                bucket.accumulate(0, Gradient::F32(&first)) && bucket.accumulate(1, Gradient::F32(&second))
            );
            bucket.finish(ending, &mut [GradientMut::F32(&mut first), GradientMut::F32(&mut second)]);
            assert_eq!(bucket.momentum, expected);
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_found_in_its_tensor() {
        let mut bucket = bucket();
        assert!(
            bucket.accumulate(0, Gradient::F32(&[1.0, 2.0]))
                && !bucket.accumulate(1, Gradient::F32(&[f32::INFINITY]))
        );
        assert!(
            !bucket.accumulate(0, Gradient::F32(&[1.0, f32::NAN]))
                && !bucket.accumulate(1, Gradient::F32(&[f32::NAN]))
        );
        assert!(
            bucket.accumulate(0, Gradient::F32(&[f32::MAX, f32::MIN]))
                && bucket.accumulate(1, Gradient::F32(&[f32::MAX]))
        );
    }
}
