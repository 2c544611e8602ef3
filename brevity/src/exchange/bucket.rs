//! The buckets of an exchange: tensors that travel together, in one collective.

use brevity_collectives::sparse::Wire;
use brevity_collectives::{Call, Description, Error as Collective};
use brevity_compress::Density;
use brevity_compress::feedback::Gradient;
use brevity_compress::low_rank::Batch;
use brevity_compress::state::{Reader, Writer};

use super::Ending;
use super::dense::DenseBucket;
use super::gathered::GatheredBucket;
use super::gradient::GradientMut;
use super::hierarchical::HierarchicalBucket;
use super::low_rank::LowRankBucket;
use super::participants::Shares;
use super::room::Lacking;
use super::sparse::SparseBucket;
use super::taking::Taking;
use super::unbiased::UnbiasedBucket;
use super::vote::VoteBucket;

/// The words that are saved of a tensor whose way was chosen, behind its residual: those of Ok-Topk, or
/// zeros.
pub(super) const CHOSEN_WORDS: usize = 4;

/// Tensors that travel together.
pub(super) enum Bucket {
    Dense(DenseBucket),
    Sparse(Box<SparseBucket>),
    Hierarchical(Box<HierarchicalBucket>),
    LowRank(Box<LowRankBucket>),
    Vote(VoteBucket),
    Unbiased(UnbiasedBucket),
    Gathered(GatheredBucket),
}

impl Bucket {
    /// The numbers of its tensors.
    pub(super) fn tensors(&self) -> Vec<usize> {
        match self {
            Self::Dense(bucket) => bucket.tensors().collect(),
            Self::Sparse(bucket) => bucket.tensors().collect(),
            Self::Hierarchical(bucket) => bucket.tensors().collect(),
            Self::LowRank(bucket) => bucket.tensors(),
            Self::Vote(bucket) => bucket.tensors().collect(),
            Self::Unbiased(bucket) => bucket.tensors(),
            Self::Gathered(bucket) => bucket.tensors().collect(),
        }
    }

    /// Whether its collective may go over the slots of the host.
    pub(super) fn uses_slots(&self) -> bool {
        match self {
            Self::Dense(bucket) => bucket.uses_slots(),
            Self::Sparse(bucket) => bucket.uses_slots(),
            Self::LowRank(_) | Self::Unbiased(_) | Self::Gathered(_) | Self::Hierarchical(_) => true,
            Self::Vote(_) => false,
        }
    }

    /// Adds the gradient of one of its tensors to what is kept of it. Returns whether all sums are finite.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        match self {
            Self::Dense(bucket) => bucket.accumulate(tensor, gradient),
            Self::Sparse(bucket) => bucket.accumulate(tensor, gradient),
            Self::Hierarchical(bucket) => bucket.accumulate(tensor, gradient),
            Self::LowRank(bucket) => bucket.accumulate(tensor, gradient),
            Self::Vote(bucket) => bucket.accumulate(tensor, gradient),
            Self::Unbiased(bucket) => bucket.accumulate(tensor, gradient),
            Self::Gathered(bucket) => bucket.accumulate(tensor, gradient),
        }
    }

    /// What all ranks must agree on for this bucket.
    pub(super) fn describe(&self) -> Description {
        match self {
            Self::Dense(bucket) => bucket.describe(),
            Self::Sparse(bucket) => bucket.describe(),
            Self::Hierarchical(bucket) => bucket.describe(),
            Self::LowRank(bucket) => bucket.describe(),
            Self::Vote(bucket) => bucket.describe(),
            Self::Unbiased(bucket) => bucket.describe(),
            Self::Gathered(bucket) => bucket.describe(),
        }
    }

    /// Runs the collective. A poisoned rank contributes nothing.
    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<(), Collective> {
        match self {
            Self::Dense(bucket) => bucket.exchange(call, poisoned).await?,
            Self::Sparse(bucket) => bucket.exchange(call, poisoned).await?,
            Self::Hierarchical(bucket) => bucket.exchange(call, poisoned).await?,
            Self::LowRank(bucket) => bucket.exchange(call, poisoned).await?,
            Self::Vote(bucket) => bucket.exchange(call, poisoned).await?,
            Self::Unbiased(bucket) => bucket.exchange(call, poisoned).await?,
            Self::Gathered(bucket) => bucket.exchange(call, poisoned).await?,
        }
        call.check_poison()
    }

    /// Updates what is kept, and the gradients, by the outcome. The gradients are read if the step is left
    /// out, and written if it is done.
    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        match self {
            Self::Dense(bucket) => bucket.finish(ending, gradients, shares),
            Self::Sparse(bucket) => bucket.finish(ending, gradients, shares),
            Self::Hierarchical(bucket) => bucket.finish(ending, gradients, shares),
            Self::LowRank(bucket) => bucket.finish(ending, gradients, shares),
            Self::Vote(bucket) => bucket.finish(ending, gradients),
            Self::Unbiased(bucket) => bucket.finish(ending, gradients, shares),
            Self::Gathered(bucket) => bucket.finish(ending, gradients, shares),
        }
    }

    /// How one of its tensors travels, with all settings.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        match self {
            Self::Dense(bucket) => bucket.travels(tensor),
            Self::Sparse(bucket) => bucket.travels(tensor),
            Self::Hierarchical(bucket) => bucket.travels(tensor),
            Self::LowRank(bucket) => bucket.travels(tensor),
            Self::Vote(bucket) => bucket.travels(tensor),
            Self::Unbiased(bucket) => bucket.travels(tensor),
            Self::Gathered(bucket) => bucket.travels(tensor),
        }
    }

    /// What is kept of one of its tensors from step to step: whatever has the same words can be loaded.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        match self {
            Self::Dense(bucket) => bucket.keeps(tensor),
            Self::Sparse(bucket) => bucket.keeps(tensor),
            Self::Hierarchical(bucket) => bucket.keeps(tensor),
            Self::LowRank(bucket) => bucket.keeps(tensor),
            Self::Vote(bucket) => bucket.holds(tensor).then(|| "vote of signs".into()),
            Self::Unbiased(bucket) => bucket.keeps(tensor),
            Self::Gathered(bucket) => bucket.keeps(tensor),
        }
    }

    /// How entries of a tensor are written, if it is a sparse one of this bucket and has some.
    pub(super) fn wire(&self, tensor: usize) -> Option<Wire> {
        match self {
            Self::Sparse(bucket) if bucket.holds(tensor) => bucket.wire(),
            Self::Hierarchical(bucket) if bucket.holds(tensor) => Some(bucket.wire()),
            _ => None,
        }
    }

    /// Checks that there is memory for another density of a tensor, if it is a sparse one of this bucket.
    pub(super) fn check_room(&self, tensor: usize, density: Density) -> Option<Result<(), Lacking>> {
        match self {
            Self::Sparse(bucket) if bucket.holds(tensor) => Some(bucket.check_room(tensor, density)),
            Self::Hierarchical(bucket) if bucket.holds(tensor) => Some(bucket.check_room(tensor, density)),
            _ => None,
        }
    }

    /// Changes the density of a tensor, if it is a sparse one of this bucket, from the next step on. Returns
    /// whether another number is selected.
    pub(super) fn set_density(&mut self, tensor: usize, density: Density) -> bool {
        match self {
            Self::Sparse(bucket) => bucket.set_density(tensor, density),
            Self::Hierarchical(bucket) => bucket.set_density(tensor, density),
            _ => false,
        }
    }

    /// The warm start of its matrices.
    pub(super) fn warm_start(&self) -> Option<&Batch> {
        if let Self::LowRank(bucket) = self { Some(bucket.batch()) } else { None }
    }

    /// The step of its projections, and the one that was loaded.
    pub(super) fn projection(&self) -> Option<(u64, u64)> {
        if let Self::Unbiased(bucket) = self { Some(bucket.projection()) } else { None }
    }

    /// Goes on from the next warm start or step of projections, if it has any.
    pub(super) fn resume(
        &mut self,
        mut warm_starts: impl Iterator<Item = Batch>,
        mut projections: impl Iterator<Item = (u64, u64)>,
    ) {
        match self {
            Self::LowRank(bucket) => warm_starts.next().into_iter().for_each(|start| bucket.set_batch(start)),
            Self::Unbiased(bucket) => projections.next().into_iter().for_each(|step| bucket.resume(step)),
            Self::Dense(_) | Self::Sparse(_) | Self::Hierarchical(_) | Self::Vote(_) | Self::Gathered(_) => {}
        }
    }

    /// Copies a tensor's residual to `out`, which is as long, if the tensor is of this bucket.
    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        match self {
            Self::Dense(bucket) => bucket.residual_to(tensor, out),
            Self::Sparse(bucket) => bucket.residual_to(tensor, out),
            Self::Hierarchical(bucket) => bucket.residual_to(tensor, out),
            Self::LowRank(bucket) => bucket.residual_to(tensor, out),
            Self::Vote(bucket) => bucket.residual_to(tensor, out),
            Self::Unbiased(bucket) => bucket.residual_to(tensor, out),
            Self::Gathered(bucket) => bucket.residual_to(tensor, out),
        }
    }

    /// Writes what is kept of a tensor that has a state of its own and is not sparse, if it is of this
    /// bucket.
    pub(super) fn write_whole(&self, tensor: usize, contents: &mut Writer) {
        match self {
            Self::Dense(bucket) => bucket.write_state(tensor, contents),
            Self::Hierarchical(bucket) => bucket.write_state(tensor, contents),
            Self::LowRank(bucket) => bucket.vectors().write_state(tensor, contents),
            Self::Vote(bucket) => bucket.write_state(tensor, contents),
            Self::Unbiased(bucket) => bucket.write_state(tensor, contents),
            Self::Gathered(bucket) => bucket.write_state(tensor, contents),
            Self::Sparse(_) => {}
        }
    }

    pub(super) fn read_whole(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> Result<(), brevity_compress::Error> {
        match self {
            Self::Dense(bucket) => bucket.read_state(tensor, contents),
            Self::Hierarchical(bucket) => bucket.read_state(tensor, contents),
            Self::LowRank(bucket) => bucket.vectors_mut().read_state(tensor, contents),
            Self::Vote(bucket) => bucket.read_state(tensor, contents),
            Self::Unbiased(bucket) => bucket.read_state(tensor, contents),
            Self::Gathered(bucket) => bucket.read_state(tensor, contents),
            Self::Sparse(_) => Ok(()),
        }
    }

    /// Writes what is kept of a sparse tensor, if it is of this bucket.
    pub(super) fn write_sparse(&self, tensor: usize, contents: &mut Writer) {
        if let Self::Sparse(bucket) = self {
            bucket.write_state(tensor, contents);
        }
    }

    pub(super) fn read_sparse(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> Result<(), brevity_compress::Error> {
        if let Self::Sparse(bucket) = self { bucket.read_state(tensor, contents) } else { Ok(()) }
    }

    /// Writes what is kept of a tensor whose way was chosen, if it is of this bucket: the residual, and
    /// [`CHOSEN_WORDS`] words that a sparse one may need, so that it fits every choice.
    pub(super) fn write_chosen(&self, tensor: usize, contents: &mut Writer) {
        match self {
            Self::Dense(bucket) if bucket.holds(tensor) => {
                bucket.write_state(tensor, contents);
                (0..CHOSEN_WORDS).for_each(|_| contents.u64(0));
            }
            Self::Hierarchical(bucket) if bucket.holds(tensor) => {
                bucket.write_state(tensor, contents);
                (0..CHOSEN_WORDS).for_each(|_| contents.u64(0));
            }
            Self::Sparse(bucket) => bucket.write_chosen(tensor, contents),
            _ => {}
        }
    }

    pub(super) fn read_chosen(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> Result<(), brevity_compress::Error> {
        match self {
            Self::Dense(bucket) if bucket.holds(tensor) => {
                bucket.read_state(tensor, contents)?;
                (0..CHOSEN_WORDS).try_for_each(|_| contents.u64().map(drop))
            }
            Self::Hierarchical(bucket) if bucket.holds(tensor) => {
                bucket.read_state(tensor, contents)?;
                (0..CHOSEN_WORDS).try_for_each(|_| contents.u64().map(drop))
            }
            Self::Sparse(bucket) => bucket.read_chosen(tensor, contents),
            _ => Ok(()),
        }
    }

    /// Adds what another rank has saved, as [`write_whole`](Self::write_whole) wrote it.
    pub(super) fn take_whole(
        &mut self,
        tensor: usize,
        from: &mut Taking<'_>,
    ) -> Result<(), brevity_compress::Error> {
        from.begin(tensor);
        match self {
            Self::Dense(bucket) => bucket.take(tensor, from),
            Self::Hierarchical(bucket) => bucket.take(tensor, from),
            Self::LowRank(bucket) => bucket.vectors_mut().take(tensor, from),
            Self::Vote(bucket) => bucket.take(tensor, from),
            Self::Unbiased(bucket) => bucket.take(tensor, from),
            Self::Gathered(bucket) => bucket.take(tensor, from),
            Self::Sparse(_) => Ok(()),
        }
    }

    /// The same of a sparse tensor.
    pub(super) fn take_sparse(
        &mut self,
        tensor: usize,
        from: &mut Taking<'_>,
    ) -> Result<(), brevity_compress::Error> {
        from.begin(tensor);
        if let Self::Sparse(bucket) = self { bucket.take(tensor, from) } else { Ok(()) }
    }

    /// The same of a tensor whose way was chosen, here and there perhaps otherwise.
    pub(super) fn take_chosen(
        &mut self,
        tensor: usize,
        from: &mut Taking<'_>,
    ) -> Result<(), brevity_compress::Error> {
        from.begin(tensor);
        match self {
            Self::Dense(bucket) if bucket.holds(tensor) => {
                bucket.take(tensor, from)?;
                (0..CHOSEN_WORDS).try_for_each(|_| from.contents().u64().map(drop))
            }
            Self::Hierarchical(bucket) if bucket.holds(tensor) => {
                bucket.take(tensor, from)?;
                (0..CHOSEN_WORDS).try_for_each(|_| from.contents().u64().map(drop))
            }
            Self::Sparse(bucket) => bucket.take_chosen(tensor, from),
            _ => Ok(()),
        }
    }

    /// The same of all its matrices.
    pub(super) fn take_matrices(&mut self, from: &mut Taking<'_>) -> Result<(), brevity_compress::Error> {
        if let Self::LowRank(bucket) = self { bucket.take(from) } else { Ok(()) }
    }

    /// Writes what is kept of all its matrices.
    pub(super) fn write_matrices(&self, contents: &mut Writer) {
        if let Self::LowRank(bucket) = self {
            bucket.write_state(contents);
        }
    }

    pub(super) fn read_matrices(&mut self, contents: &mut Reader<'_>) -> Result<(), brevity_compress::Error> {
        if let Self::LowRank(bucket) = self { bucket.read_state(contents) } else { Ok(()) }
    }
}

/// Puts tensors that have a key in common into buckets of at most `most` elements, from the last tensor on,
/// whose gradient is the first to be there. A longer tensor has a bucket of its own.
pub(super) fn in_buckets<K: Copy + PartialEq, T>(
    tensors: Vec<(K, T)>,
    count: impl Fn(&T) -> usize,
    most: usize,
) -> Vec<(K, Vec<T>)> {
    let mut buckets: Vec<(K, Vec<T>)> = Vec::new();
    for (key, tensor) in tensors.into_iter().rev() {
        let held = |tensors: &[T]| tensors.iter().map(&count).sum::<usize>();
        // Of the buckets of a key, only the last one takes more.
        match buckets.iter_mut().rfind(|(other, _)| *other == key) {
            Some((_, tensors)) if held(tensors).saturating_add(count(&tensor)) <= most => {
                tensors.push(tensor)
            }
            _ => buckets.push((key, vec![tensor])),
        }
    }
    buckets.iter_mut().for_each(|(_, tensors)| tensors.reverse());
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_formed_from_the_last_tensor_on() {
        let tensors = vec![('a', 3), ('b', 4), ('a', 9), ('a', 2), ('b', 1), ('a', 4)];
        let found = in_buckets(tensors, |&count| count, 6);
        assert_eq!(found, [('a', vec![2, 4]), ('b', vec![4, 1]), ('a', vec![9]), ('a', vec![3])]);
        let alone = in_buckets(vec![('a', 0), ('a', 0), ('a', 1)], |&count| count, 0);
        assert_eq!(alone, [('a', vec![1]), ('a', vec![0, 0])]);
    }
}
