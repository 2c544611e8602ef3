//! Momentum of the averages of a tensor, after aggregation: Vogels et al., NeurIPS 2019, algorithm 2.

use brevity_collectives::{Description, Operation};
use brevity_compress::in_standard_float_mode;
use brevity_compress::state::{Reader, Writer};

use super::Tensor;
use super::gradient::GradientMut;
use super::room::{self, Lacking};

/// The momentum of one tensor. It has the same bits on all ranks.
#[derive(Clone)]
pub(super) struct PostMomentum {
    factor: f32,
    momentum: Vec<f32>,
    /// How it began: 0 for zeros, otherwise a digest of what was loaded last. Ranks stay together only if
    /// they have the same origin.
    origin: u64,
}

impl PostMomentum {
    pub(super) fn new(factor: f32, count: usize) -> Result<Self, Lacking> {
        Ok(Self { factor, momentum: room::zeros(count)?, origin: 0 })
    }

    pub(super) fn len(&self) -> usize {
        self.momentum.len()
    }

    /// Starts again at 0.
    pub(super) fn restart(&mut self) {
        self.momentum.fill(0.0);
        self.origin = 0;
    }

    /// Replaces averages `a` by `a + m`, with the new momentum `m = factor * m + a`, up to the largest finite
    /// number.
    fn apply(&mut self, averages: &mut [f32]) {
        let finite = |value: f32| value.clamp(f32::MIN, f32::MAX);
        for (m, average) in self.momentum.iter_mut().zip(averages) {
            *m = finite(self.factor * *m + *average);
            *average = finite(*average + *m);
        }
    }

    /// What all ranks must have alike, in words that follow others.
    pub(super) fn travels(&self) -> String {
        let loaded = if self.origin == 0 { String::new() } else { format!(", loaded {:016x}", self.origin) };
        format!(", momentum {} of the averages{loaded}", self.factor)
    }

    /// What is kept, in words that follow others.
    pub(super) fn keeps(&self) -> &'static str {
        " with momentum of the averages"
    }

    pub(super) fn write_state(&self, contents: &mut Writer) {
        contents.f32s(&self.momentum);
    }

    pub(super) fn read_state(&mut self, contents: &mut Reader<'_>) -> Result<(), brevity_compress::Error> {
        contents.f32s(&mut self.momentum)?;
        let is_zero = self.momentum.iter().all(|&value| value == 0.0);
        let bytes: Vec<u8> = self.momentum.iter().flat_map(|value| value.to_le_bytes()).collect();
        let digest = || Description::of_plan(Operation::EXCHANGE, &bytes).count;
        self.origin = if is_zero { 0 } else { digest() };
        Ok(())
    }

    /// Writes the momentum and how it began, for ranks that go on with the same.
    pub(super) fn write_shared(&self, contents: &mut Writer) {
        self.write_state(contents);
        contents.u64(self.origin);
    }

    pub(super) fn read_shared(&mut self, contents: &mut Reader<'_>) -> Result<(), brevity_compress::Error> {
        contents.f32s(&mut self.momentum)?;
        self.origin = contents.u64()?;
        Ok(())
    }
}

/// Applies the momenta of all tensors that have one to the averages of a step that is done.
pub(super) fn apply(tensors: &mut [Tensor], averages: &mut [GradientMut<'_>]) {
    in_standard_float_mode(|| {
        for (tensor, averages) in tensors.iter_mut().zip(averages) {
            if let Some(momentum) = &mut tensor.momentum {
                averages.update(|averages| momentum.apply(averages));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stop_at_the_largest_number() {
        let mut momentum = PostMomentum::new(0.5, 3).unwrap();
        for expected in [[2.0, f32::MAX, f32::MIN], [2.5, f32::MAX, f32::MIN]] {
            let mut averages = [1.0, f32::MAX, f32::MIN];
            momentum.apply(&mut averages);
            assert_eq!(averages, expected);
        }
        momentum.restart();
        assert_eq!(momentum.momentum, [0.0; 3]);
    }
}
