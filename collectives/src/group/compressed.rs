//! The collectives of a group on sparse vectors and matrices, blocking and started.

use brevity_compress::low_rank::{Batch, Factors};
use brevity_compress::quantise::Values;
use brevity_compress::{SparseVec, SparseView, in_standard_float_mode};

use super::Group;
use crate::description::Operation;
use crate::engine::Handle;
use crate::error::Result;
use crate::low_rank::LowRankAllReduce;
use crate::plan::{Planned, Summand, block_ways, compare, exact_wire, low_rank_ways};
use crate::quantised::QuantisedAllReduce;
use crate::sparse::{
    BlockAllReduce, Coder, Gtopk, GtopkAllReduce, HierarchicalAllReduce, LeaderSum, OkTopk, OkTopkAllReduce,
    OkTopkSum, PutBack, RandomKAllReduce, RandomPlaces, Scattered, SparseAllGather, SparseReduceScatter,
    TopK, TopkAllReduce, Wire,
};
use crate::vote::VoteAllReduce;

impl Group {
    /// All ways to sum a vector over this group's ranks that fit, the fastest first: as
    /// [`compare`](crate::compare()) for its machine and its hosts. All ranks get the same: the speeds are
    /// those of rank 0.
    #[must_use]
    pub fn compare(&self, summand: &Summand) -> Vec<Planned> {
        in_standard_float_mode(|| compare(summand, &self.context.ranks.plan().ground))
    }

    /// Likewise, the ways to sum matrices of these rows and columns by factors of a rank, together, with
    /// `vectors` elements that travel in the message of the left factors as they are.
    #[must_use]
    pub fn compare_low_rank(&self, matrices: &[[usize; 2]], rank: usize, vectors: usize) -> Vec<Planned> {
        let ground = &self.context.ranks.plan().ground;
        in_standard_float_mode(|| low_rank_ways(matrices, rank, vectors, ground))
    }

    /// Likewise, the ways to sum vectors of which each rank gives `blocks` whole blocks of 256 elements, at
    /// random places.
    #[must_use]
    pub fn compare_blocks(&self, elements: usize, blocks: usize) -> Vec<Planned> {
        in_standard_float_mode(|| block_ways(elements, blocks, &self.context.ranks.plan().ground))
    }

    /// The [wire](Wire) on which a collective on sparse vectors is estimated to be the fastest among this
    /// group's ranks, of the two that are exact: pairs, or packed `f32`, which has fewer bytes and takes time
    /// to write and to read. The vectors have length `dim`, and up to `entries` entries each, at random
    /// places. Of a hierarchical sum, the wire between the hosts. Pairs for other operations. All ranks get
    /// the same, as from [`compare`](Self::compare).
    ///
    /// ```
    /// use brevity_collectives::sparse::Wire;
    /// use brevity_collectives::{Group, Operation};
    ///
    /// // Alone, nothing is gained.
    /// let wire = Group::solo().exact_wire(Operation::GTOPK_ALL_REDUCE, 1_000_000, 1000);
    /// assert_eq!(wire, Wire::Pairs);
    /// ```
    #[must_use]
    pub fn exact_wire(&self, operation: Operation, dim: usize, entries: usize) -> Wire {
        let plan = self.context.ranks.plan();
        let wish = plan.wishes.of(operation);
        in_standard_float_mode(|| exact_wire(operation, (dim, entries), &plan.ground, wish))
    }

    /// Gathers the sparse vectors of all ranks, in rank order, whatever their values are. `local` has at most
    /// `limit` entries, and `limit` is equal on all ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if `local` has more.
    pub fn sparse_all_gather(&self, local: SparseView<'_>, limit: usize) -> Result<Vec<SparseVec>> {
        self.sparse_all_gather_by(local, limit, &mut Coder::pairs())
    }

    /// Likewise, on the coder's wire, which is equal on all ranks: every rank gets the rounded values, those
    /// of its own vector too.
    ///
    /// # Errors
    /// As for [`sparse_all_gather`](Self::sparse_all_gather); [`Error::NonFinite`](crate::Error::NonFinite)
    /// on all ranks if a value is not finite, unless the wire is [`Wire::Pairs`](crate::sparse::Wire::Pairs).
    pub fn sparse_all_gather_by(
        &self,
        local: SparseView<'_>,
        limit: usize,
        coder: &mut Coder,
    ) -> Result<Vec<SparseVec>> {
        self.call_compressed(&mut SparseAllGather { local, limit, coder })
    }

    /// Starts a [`sparse_all_gather_by`](Self::sparse_all_gather_by).
    pub fn start_sparse_all_gather(
        &self,
        local: SparseVec,
        limit: usize,
        coder: Coder,
    ) -> Handle<(SparseAllGather, Result<Vec<SparseVec>>)> {
        self.start_compressed(SparseAllGather { local, limit, coder })
    }

    /// Sums the sparse vectors of all ranks. `local` has at most `limit` entries, and `limit` is equal on all
    /// ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if `local` has more;
    /// [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a value is not finite, and
    /// [`Error::Overflow`](crate::Error::Overflow) if a sum is not.
    pub fn topk_all_reduce(&self, local: SparseView<'_>, limit: usize) -> Result<SparseVec> {
        self.topk_all_reduce_by(local, limit, &mut Coder::pairs()).map(|outcome| outcome.sum)
    }

    /// Likewise, on the coder's wire, which is equal on all ranks. Also returns what its rounding takes away.
    ///
    /// # Errors
    /// As for [`topk_all_reduce`](Self::topk_all_reduce).
    pub fn topk_all_reduce_by(&self, local: SparseView<'_>, limit: usize, coder: &mut Coder) -> Result<TopK> {
        self.call_compressed(&mut TopkAllReduce { local, limit, coder })
    }

    /// Starts a [`topk_all_reduce_by`](Self::topk_all_reduce_by).
    pub fn start_topk_all_reduce(
        &self,
        local: SparseVec,
        limit: usize,
        coder: Coder,
    ) -> Handle<(TopkAllReduce, Result<TopK>)> {
        self.start_compressed(TopkAllReduce { local, limit, coder })
    }

    /// Sums the sparse vectors of all ranks; each rank gets the sum at the indices that it
    /// [owns](crate::sparse::owned), and what the rounding of the coder's wire takes away. `local` has at
    /// most `limit` entries; limit and wire are equal on all ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if `local` has more;
    /// [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a value or a sum is not finite.
    pub fn sparse_reduce_scatter(
        &self,
        local: SparseView<'_>,
        limit: usize,
        coder: &mut Coder,
    ) -> Result<Scattered> {
        self.call_compressed(&mut SparseReduceScatter { local, limit, coder })
    }

    /// Starts a [`sparse_reduce_scatter`](Self::sparse_reduce_scatter).
    pub fn start_sparse_reduce_scatter(
        &self,
        local: SparseVec,
        limit: usize,
        coder: Coder,
    ) -> Handle<(SparseReduceScatter, Result<Scattered>)> {
        self.start_compressed(SparseReduceScatter { local, limit, coder })
    }

    /// Sums the sparse vectors of all ranks and keeps the `k` largest entries. Also returns what goes back to
    /// the residual.
    ///
    /// `local` has at most `k` entries. `k` and `rule` are equal on all ranks; other ones are a mismatch.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if `local` has more;
    /// [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a value or a sum is not finite.
    pub fn gtopk_all_reduce(&self, local: SparseView<'_>, k: usize, rule: PutBack) -> Result<Gtopk> {
        self.gtopk_all_reduce_by(local, k, rule, &mut Coder::pairs())
    }

    /// Likewise, on the coder's wire, which is equal on all ranks. What rounding takes away goes back to the
    /// residual, too.
    ///
    /// # Errors
    /// As for [`gtopk_all_reduce`](Self::gtopk_all_reduce).
    pub fn gtopk_all_reduce_by(
        &self,
        local: SparseView<'_>,
        k: usize,
        rule: PutBack,
        coder: &mut Coder,
    ) -> Result<Gtopk> {
        self.call_compressed(&mut GtopkAllReduce { local, k, rule, coder })
    }

    /// Starts a [`gtopk_all_reduce_by`](Self::gtopk_all_reduce_by).
    pub fn start_gtopk_all_reduce(
        &self,
        local: SparseVec,
        k: usize,
        rule: PutBack,
        coder: Coder,
    ) -> Handle<(GtopkAllReduce, Result<Gtopk>)> {
        self.start_compressed(GtopkAllReduce { local, k, rule, coder })
    }

    /// Sums the sparse vectors of all ranks and keeps about `k` of the largest entries. Also returns what
    /// goes back to the residual.
    ///
    /// `local` has at most [`limit`](OkTopk::limit) entries, such as the state [selects](OkTopk::select). The
    /// states of all ranks have equal settings and have taken the same steps; other ones are a mismatch. A
    /// call that fails may leave them a step apart: then all ranks begin with new states, or load those of
    /// one step.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if `local` has more, or the
    /// state is of another length or number of ranks; [`Error::NonFinite`](crate::Error::NonFinite) on all
    /// ranks if a value or a sum is not finite. The state is unchanged then.
    pub fn ok_topk_all_reduce(&self, local: SparseView<'_>, state: &mut OkTopk) -> Result<OkTopkSum> {
        self.ok_topk_all_reduce_by(local, state, &mut Coder::pairs())
    }

    /// Likewise, on the coder's wire, which is equal on all ranks. What rounding takes away goes back to the
    /// residual, too.
    ///
    /// # Errors
    /// As for [`ok_topk_all_reduce`](Self::ok_topk_all_reduce).
    pub fn ok_topk_all_reduce_by(
        &self,
        local: SparseView<'_>,
        state: &mut OkTopk,
        coder: &mut Coder,
    ) -> Result<OkTopkSum> {
        state.check_world_size(self.world_size())?;
        self.call_compressed(&mut OkTopkAllReduce { local, state, coder })
    }

    /// Starts an [`ok_topk_all_reduce_by`](Self::ok_topk_all_reduce_by).
    pub fn start_ok_topk_all_reduce(
        &self,
        local: SparseVec,
        state: OkTopk,
        coder: Coder,
    ) -> Handle<(OkTopkAllReduce, Result<OkTopkSum>)> {
        let checked = state.check_world_size(self.world_size());
        let collective = OkTopkAllReduce { local, state, coder };
        match checked {
            Ok(()) => self.start_compressed(collective),
            Err(error) => self.ended((collective, Err(error))),
        }
    }

    /// Sums the vectors of all ranks at random places, which all ranks draw alike: only the values travel.
    /// The sum has an entry for each place. What is left for later steps is the vector with zeros at the
    /// indices of the sum.
    ///
    /// ```
    /// use brevity_collectives::Group;
    /// use brevity_collectives::sparse::{Draw, RandomPlaces};
    /// use brevity_compress::feedback::Residual;
    ///
    /// let (group, mut residual) = (Group::solo(), Residual::new(4));
    /// for step in 0..3 {
    ///     residual.accumulate(&[1.0, -2.0, 0.0, 4.0])?;
    ///     let places = RandomPlaces { draw: Draw::Block, k: 2, seed: 7, step };
    ///     let sum = group.random_k_all_reduce(residual.values(), places)?;
    ///     residual.clear_at(sum.indices())?;
    ///     assert_eq!(sum.len(), 2);
    /// }
    /// # Ok::<(), brevity_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a
    /// value is not finite, and [`Error::Overflow`](crate::Error::Overflow) if a sum is not;
    /// [`Error::Compress`](crate::Error::Compress) for more than 2^32 elements. Other
    /// [places](RandomPlaces) on another rank are a mismatch.
    pub fn random_k_all_reduce(&self, vector: &[f32], places: RandomPlaces) -> Result<SparseVec> {
        self.call_compressed(&mut RandomKAllReduce { vector, places })
    }

    /// Starts a [`random_k_all_reduce`](Self::random_k_all_reduce).
    pub fn start_random_k_all_reduce(
        &self,
        vector: Vec<f32>,
        places: RandomPlaces,
    ) -> Handle<(RandomKAllReduce, Result<SparseVec>)> {
        self.start_compressed(RandomKAllReduce { vector, places })
    }

    /// Sums the vectors of all ranks in place. Blocks of `block` values that are entirely zero do not travel;
    /// `block` is at least 1 and equal on all ranks. The sum has the bits of the dense one, except that a
    /// zero may have the other sign.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a
    /// value is not finite, and [`Error::Overflow`](crate::Error::Overflow) if a sum is not; the vector is
    /// unspecified then. [`Error::Length`](crate::Error::Length) for a `block` of 0;
    /// [`Error::Compress`](crate::Error::Compress) for 2^32 blocks and more.
    pub fn block_all_reduce(&self, vector: &mut [f32], block: usize) -> Result<()> {
        self.call_compressed(&mut BlockAllReduce { vector, block })
    }

    /// Starts a [`block_all_reduce`](Self::block_all_reduce).
    pub fn start_block_all_reduce(
        &self,
        vector: Vec<f32>,
        block: usize,
    ) -> Handle<(BlockAllReduce, Result<()>)> {
        self.start_compressed(BlockAllReduce { vector, block })
    }

    /// Sums the vectors of all ranks: densely to the first rank of each host, its leader, and sparsely
    /// between leaders, of which each selects the `k` largest entries of its host's sum. The vector becomes
    /// what is left for later steps: on leaders what was not delivered of their hosts' vectors, on other
    /// ranks zeros. Returns the sum.
    ///
    /// ```
    /// use brevity_collectives::Group;
    /// use brevity_collectives::sparse::{Coder, LeaderSum, PutBack};
    ///
    /// let (group, mut vector) = (Group::solo(), [1.0, -4.0, 2.0]);
    /// let by = LeaderSum::Gtopk(PutBack::Conserving);
    /// let sum = group.hierarchical_all_reduce(&mut vector, 1, by, &mut Coder::pairs())?;
    /// assert_eq!((sum.indices(), sum.values(), vector), (&[1][..], &[-4.0][..], [1.0, 0.0, 2.0]));
    /// # Ok::<(), brevity_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a
    /// value or a sum is not finite, and [`Error::Overflow`](crate::Error::Overflow) for a sum of
    /// [top-k](LeaderSum::Topk); [`Error::Compress`](crate::Error::Compress) for more than 2^32 elements. The
    /// vector is unchanged then.
    pub fn hierarchical_all_reduce(
        &self,
        vector: &mut [f32],
        k: usize,
        by: LeaderSum,
        coder: &mut Coder,
    ) -> Result<SparseVec> {
        self.call_compressed(&mut HierarchicalAllReduce { vector, k, by, coder })
    }

    /// Starts a [`hierarchical_all_reduce`](Self::hierarchical_all_reduce).
    pub fn start_hierarchical_all_reduce(
        &self,
        vector: Vec<f32>,
        k: usize,
        by: LeaderSum,
        coder: Coder,
    ) -> Handle<(HierarchicalAllReduce, Result<SparseVec>)> {
        self.start_compressed(HierarchicalAllReduce { vector, k, by, coder })
    }

    /// Sums the vectors of all ranks in place, with values of this format on the wire. Returns what rounding
    /// has taken away on this rank. The format is equal on all ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a
    /// value or a sum is not finite. The vector is unspecified then.
    pub fn quantised_all_reduce(&self, vector: &mut [f32], values: Values) -> Result<Vec<f32>> {
        self.call_compressed(&mut QuantisedAllReduce { vector, values })
    }

    /// Starts a [`quantised_all_reduce`](Self::quantised_all_reduce).
    pub fn start_quantised_all_reduce(
        &self,
        vector: Vec<f32>,
        values: Values,
    ) -> Handle<(QuantisedAllReduce, Result<Vec<f32>>)> {
        self.start_compressed(QuantisedAllReduce { vector, values })
    }

    /// Replaces each value by the majority of all ranks' signs: 1, -1, or 0 for a tie and where all have
    /// zero.
    ///
    /// # Errors
    /// As for [`quantised_all_reduce`](Self::quantised_all_reduce).
    pub fn vote_all_reduce(&self, vector: &mut [f32]) -> Result<()> {
        self.call_compressed(&mut VoteAllReduce { vector })
    }

    /// Starts a [`vote_all_reduce`](Self::vote_all_reduce).
    pub fn start_vote_all_reduce(&self, vector: Vec<f32>) -> Handle<(VoteAllReduce, Result<()>)> {
        self.start_compressed(VoteAllReduce { vector })
    }

    /// Computes the low-rank factors of the mean of all ranks' matrices, one for each state of the batch.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if a matrix does not fit
    /// its state.
    pub fn low_rank_all_reduce(&self, batch: &mut Batch, matrices: &[&[f32]]) -> Result<Factors> {
        self.call_compressed(&mut LowRankAllReduce { batch, matrices: matrices.to_vec() })
    }

    /// Starts a [`low_rank_all_reduce`](Self::low_rank_all_reduce).
    pub fn start_low_rank_all_reduce(
        &self,
        batch: Batch,
        matrices: Vec<Vec<f32>>,
    ) -> Handle<(LowRankAllReduce, Result<Factors>)> {
        self.start_compressed(LowRankAllReduce { batch, matrices })
    }
}

#[cfg(test)]
#[path = "refused_tests.rs"]
mod refused_tests;
