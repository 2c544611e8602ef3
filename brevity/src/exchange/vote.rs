//! Tensors of which the signs of a momentum are put to the vote (Signum): all in one call.

use std::ops::Range;

use brevity_collectives::vote::{describe, vote_all_reduce};
use brevity_collectives::{Call, Description, Result};
use brevity_compress::state::{Reader, Writer};

use super::room::Lacking;
use super::{Ending, room};

/// All tensors of an exchange whose signs are voted on.
#[derive(Default)]
pub(super) struct VoteLane {
    tensors: Vec<Place>,
    /// The momentum of earlier steps. A step does not change it before it ends.
    momentum: Vec<f32>,
    /// The momentum with this step's gradients, then the majority of its signs.
    votes: Vec<f32>,
}

struct Place {
    tensor: usize,
    range: Range<usize>,
    /// The share of the momentum that stays in a step.
    factor: f32,
}

impl VoteLane {
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
        // Messages of up to two bits a value, out and in.
        room::check(self.count() / 2)
    }

    fn count(&self) -> usize {
        self.tensors.last().map_or(0, |place| place.range.end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    pub(super) fn accumulate(&mut self, gradients: &[&mut [f32]]) -> Option<u32> {
        self.votes.clear();
        let mut bad = None;
        for place in &self.tensors {
            let momentum = self.momentum[place.range.clone()].iter();
            let gradient = gradients[place.tensor].iter();
            self.votes.extend(momentum.zip(gradient).map(|(m, g)| place.next(*m, *g)));
            if !self.votes[place.range.clone()].iter().all(|value| value.is_finite()) {
                bad = bad.or(Some(place.tensor as u32));
            }
        }
        bad
    }

    pub(super) fn describe(&self) -> Description {
        describe(self.count())
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        if poisoned {
            self.votes.fill(0.0);
        }
        let first = self.tensors.first().map_or(0, |place| place.tensor as u32);
        vote_all_reduce(call, &mut self.votes, first).await
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [&mut [f32]]) {
        match ending {
            Ending::Done => {
                for place in &self.tensors {
                    let (range, gradient) = (place.range.clone(), &mut *gradients[place.tensor]);
                    for (momentum, gradient) in self.momentum[range.clone()].iter_mut().zip(&*gradient) {
                        *momentum = place.next(*momentum, *gradient);
                    }
                    gradient.copy_from_slice(&self.votes[range]);
                }
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

    pub(super) fn write_state(&self, contents: &mut Writer) {
        contents.f32s(&self.momentum);
    }

    pub(super) fn read_state(
        &mut self,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        contents.f32s(&mut self.momentum)
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

    fn lane() -> VoteLane {
        let mut lane = VoteLane::default();
        lane.add(0, 2, 0.5);
        lane.add(1, 1, 0.0);
        lane.allocate().unwrap();
        lane
    }

    #[test]
    fn only_a_step_that_is_done_changes_the_momentum() {
        let mut lane = lane();
        for (ending, expected) in [
            (Ending::Failed, [0.0, 0.0, 0.0]),
            (Ending::Done, [1.0, -2.0, 3.0]),
            (Ending::Poisoned, [1.0, -2.0, 3.0]),
            (Ending::Done, [1.5, -3.0, 3.0]),
        ] {
            let (mut first, mut second) = ([2.0, -4.0], [3.0]);
            assert_eq!(lane.accumulate(&[&mut first, &mut second]), None);
            lane.finish(ending, &mut [&mut first, &mut second]);
            assert_eq!(lane.momentum, expected);
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_told_by_its_tensor() {
        let mut lane = lane();
        assert_eq!(lane.accumulate(&[&mut [1.0, 2.0], &mut [f32::INFINITY]]), Some(1));
        assert_eq!(lane.accumulate(&[&mut [1.0, f32::NAN], &mut [f32::NAN]]), Some(0));
        assert_eq!(lane.accumulate(&[&mut [f32::MAX, f32::MIN], &mut [f32::MAX]]), None);
    }
}
