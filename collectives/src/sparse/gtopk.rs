//! gTop-k all-reduce: the `k` largest entries of the sum of all ranks' sparse vectors.
//!
//! Shi et al., "A distributed synchronous SGD algorithm with global top-k sparsification for low bandwidth
//! networks", ICDCS 2019. A binomial tree merges towards rank 0, where the merge of `a` and `b` is the `k`
//! largest entries of `a + b`; then follows a broadcast: `2 ceil(log2 P)` rounds of at most `8 k` bytes each
//! as pairs. On a coded wire contributions have the wire's format, sums its [format of
//! sums](brevity_compress::quantise::Values::of_sums), and the result is coded once, by the root.
//!
//! Coded entries are decoded straight into the merge. Long messages go in segments of at most
//! [`segment_bytes`](crate::Settings::segment_bytes), unless their values share a scale: a segment is merged,
//! or passed on, while the next one arrives. The `k` largest are cut off when all are merged, so the result
//! has the same bits whatever the segments are.
//!
//! An index that one subtree drops can survive through another. A [`PutBack`] rule determines which rank
//! keeps the dropped part. What a message's rounding takes away is kept by its sender where the index is in
//! the result; elsewhere it comes back with the contributions, or with the rest of what the sender drops.

use std::mem;

use brevity_compress::merge::{self, MergeScratch, PiecewiseSum};
use brevity_compress::{Error as Compress, SparseVec, SparseView, in_standard_float_mode};

use super::message::{Message, Room, invalid};
use super::segments::{self, Pieces, Segments};
use super::tensors::Tensors;
use super::wire::{Coder, Wire, finite_or_poison};
use crate::call::Call;
use crate::data::Element;
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::pattern::{Binomial, doubling_rounds};
use crate::plan::{Algorithm, Estimate, Row, always};

/// Which part of a rank's contribution and merges goes back to its residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PutBack {
    /// A contributor gets back its entries that are not in the result. A merging rank keeps what its merges
    /// dropped at indices that are in the result. Nothing is lost, and residuals stay with the ranks of their
    /// gradients.
    #[default]
    Conserving,
    /// As published: a contributor gets back its entries that are not in the result. What a merge drops at an
    /// index in the result is lost.
    Published,
    /// A merging rank keeps all that its merges drop, and contributors get nothing back. Nothing is lost, but
    /// residuals gather at merging ranks.
    MergerKeeps,
}

impl PutBack {
    /// The rule's number on the wire. Ranks with different rules would put some entries back twice and lose
    /// others.
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Conserving => 1,
            Self::Published => 2,
            Self::MergerKeeps => 3,
        }
    }
}

/// The result of a gTop-k all-reduce.
#[derive(Clone, Debug)]
pub struct Gtopk {
    /// The `k` largest entries of the sum, undivided. All ranks get the same bits.
    pub result: SparseVec,
    /// What this rank must add to its residual.
    pub put_back: SparseVec,
}

/// Whether sums are finite.
type Added = std::result::Result<(), Compress>;

/// The bits of a rule's number in a description; the wire's has those above.
pub(super) const RULE_BITS: u32 = 2;

/// What ranks of a gTop-k all-reduce must agree on.
#[must_use]
pub fn describe(dim: usize, k: usize, rule: PutBack, wire: Wire) -> Description {
    let description =
        wire.describe(Description::sparse(Operation::GTOPK_ALL_REDUCE, f32::TYPE.number(), dim, k));
    Description { reduction: rule.number() | description.reduction << RULE_BITS, ..description }
}

/// The algorithm.
pub(crate) const ROWS: &[Row] = &[Row {
    algorithm: Algorithm::Binomial,
    fits: always,
    estimate: |work, ground| {
        let rounds = ground.rounds();
        let entries = 2.0 * work.entries as f64;
        let (adding, cutting) = (ground.adding(entries), ground.cutting(entries));
        // The first merges are of contributions, all others of sums.
        let [first, sum] = [work.bytes, work.wide_bytes].map(|bytes| Pieces::new(bytes, work, ground));
        let merged = |pieces: Pieces<'_>, rounds| pieces.merged(adding, cutting).times(rounds);
        let up = merged(first, rounds.min(1)).then(merged(sum, rounds.saturating_sub(1)));
        let down = sum.passed_down(rounds);
        // Each rank on the way writes a message, the root that of the result.
        let coding = ground.encoding(entries / 2.0, work.wire) + ground.decoding(entries / 2.0, work.wire);
        // The root sends to its children alone, and nobody sends more.
        Estimate { bytes: down.bytes, ..up.then(down) }.computing(coding * f64::from(rounds + 1))
    },
}];

/// The names of rule and wire in the `reduction` of a description; no name for pairs.
pub(crate) fn names(reduction: u8) -> (Option<&'static str>, Option<&'static str>) {
    let rule = match reduction & ((1 << RULE_BITS) - 1) {
        1 => Some("conserving"),
        2 => Some("published"),
        3 => Some("merger keeps"),
        _ => None,
    };
    (rule, Wire::name(reduction >> RULE_BITS))
}

/// Sums the sparse vectors of all ranks and keeps the `k` entries of largest magnitude; on ties, the lower
/// index.
///
/// `local` has at most `k` entries. `k`, `rule` and the coder's wire are equal on all ranks. The order of
/// merges depends only on the number of ranks. A value of `local` that is not finite poisons the call as its
/// tensor's, and so does a merge with such a sum.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`](crate::Error::Payload) for an invalid vector of a peer;
/// `local` is unchanged.
pub async fn gtopk_all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    k: usize,
    rule: PutBack,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
) -> Result<Gtopk> {
    reduce(call, local, k, rule, coder, tensors.into(), |_| Ok(())).await
}

/// Like [`gtopk_all_reduce`], for entries that were selected from a residual and are zero there.
///
/// Poisons the call also if the residual has no room for what this rank's merges drop and its messages round
/// away, because a sum would not be finite: `check_room` says so
/// ([`Residual::check_put_back`](brevity_compress::feedback::Residual::check_put_back)). Later, when the
/// result shows which of it [comes back](Gtopk::put_back), the other ranks could not be told any more. So if
/// no rank has poisoned the call, the residual can take all that comes back.
///
/// # Errors
/// As for [`gtopk_all_reduce`].
pub async fn gtopk_all_reduce_with_feedback(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    k: usize,
    rule: PutBack,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
    check_room: impl FnOnce(SparseView<'_>) -> Added,
) -> Result<Gtopk> {
    reduce(call, local, k, rule, coder, tensors.into(), check_room).await
}

/// Poisons the call unless this rank has room for what its merges drop and its messages round away, as far as
/// it may have to keep that.
async fn reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    k: usize,
    rule: PutBack,
    coder: &mut Coder,
    tensors: Tensors<'_>,
    check_room: impl FnOnce(SparseView<'_>) -> Added,
) -> Result<Gtopk> {
    call.check_open()?;
    let local = finite_or_poison(call, local, tensors);
    let dim = local.dim();
    // No vector has more entries than elements.
    let (wire, limit) = (coder.wire(), k.min(dim));
    let contribution = Room { dim, limit, wire };
    let sum = Room { wire: wire.of_sums(), ..contribution };
    let tree = Binomial::new(call.rank(), 0, call.world_size());
    let cut = |room| Segments::new(room, call.slice_bytes());
    let mut merger = Merger::new(local, limit);
    for (child, round) in tree.children() {
        let has_merged = Binomial::new(child, 0, call.world_size()).children().next().is_some();
        let segments = cut(if has_merged { sum } else { contribution });
        if let Err(error) = merger.merge(call, (child, round), segments, coder).await? {
            call.set_poison(tensors.of(&error));
        }
    }
    let own = cut(if merger.has_merged { sum } else { contribution });
    let (mut messages, rounded) = call.computed(own.messages(coder, mem::take(&mut merger.kept)))?;
    let kept = in_standard_float_mode(|| Kept::new(rule, merger.dropped, rounded));
    let kept = kept.and_then(|kept| in_standard_float_mode(|| check_room(kept.most.view())).map(|()| kept));
    let kept = kept.unwrap_or_else(|error| {
        call.set_poison(tensors.of(&error));
        Kept { rule, most: SparseVec::new(dim) }
    });
    let (mut from, mut segments) = (call.rank(), own);
    if let Some((parent, round)) = tree.parent() {
        messages = segments::send(call, parent, round, messages).await?;
        // Of two ranks and more it is a sum.
        (from, segments) = (parent, cut(sum));
    }
    let messages = segments.hand_down(call, tree, doubling_rounds(call.world_size()), messages).await?;
    let result = segments.read(call, from, messages, coder)?;
    let put_back = in_standard_float_mode(|| kept.put_back(local, &result))?;
    Ok(Gtopk { result, put_back })
}

/// What a rank may have to keep, by its rule.
pub(super) struct Kept {
    pub(super) rule: PutBack,
    /// What its merges have dropped and its message has rounded away; the latter alone as published.
    pub(super) most: SparseVec,
}

impl Kept {
    fn new(rule: PutBack, dropped: SparseVec, rounded: SparseVec) -> std::result::Result<Self, Compress> {
        let most = match rule {
            PutBack::Published => rounded,
            _ if rounded.is_empty() => dropped,
            _ => {
                let mut both = SparseVec::new(dropped.dim());
                merge::add(dropped.view(), rounded.view(), &mut both)?;
                both
            }
        };
        Ok(Self { rule, most })
    }

    /// What this rank adds to its residual.
    pub(super) fn put_back(self, local: SparseView<'_>, result: &SparseVec) -> Result<SparseVec> {
        let dim = local.dim();
        if self.rule == PutBack::MergerKeeps {
            return Ok(self.most);
        }
        let (mut sent, mut others) = (SparseVec::new(dim), SparseVec::new(dim));
        merge::split_by(local, result.indices(), &mut sent, &mut others);
        if self.most.is_empty() {
            return Ok(others);
        }
        // The two parts are disjoint: indices outside and inside the result.
        let (mut among, mut sum) = (SparseVec::new(dim), SparseVec::new(dim));
        merge::split_by(self.most.view(), result.indices(), &mut among, &mut sent);
        merge::add(others.view(), among.view(), &mut sum)?;
        Ok(sum)
    }
}

/// The running merge of one rank.
struct Merger {
    k: usize,
    kept: SparseVec,
    has_merged: bool,
    /// All that this rank's merges have dropped.
    dropped: SparseVec,
    sums: SparseVec,
    next_kept: SparseVec,
    next_dropped: SparseVec,
    spare: SparseVec,
    scratch: MergeScratch,
}

impl Merger {
    fn new(local: SparseView<'_>, k: usize) -> Self {
        let empty = || SparseVec::new(local.dim());
        Self {
            k,
            kept: local.to_owned(),
            has_merged: false,
            dropped: empty(),
            sums: empty(),
            next_kept: empty(),
            next_dropped: empty(),
            spare: empty(),
            scratch: MergeScratch::new(),
        }
    }

    /// Receives the entries of a child and merges them, each segment while the next one arrives.
    async fn merge(
        &mut self,
        call: &Call<'_, '_>,
        (child, round): (u32, u32),
        segments: Segments,
        coder: &mut Coder,
    ) -> Result<Added> {
        self.has_merged = true;
        // Into the memory of an earlier message.
        let memory = coder.memory().unwrap_or_else(|| Message::Pairs(mem::take(&mut self.spare)));
        let mut sum = PiecewiseSum::new(self.kept.view(), &mut self.sums);
        let mut entries = 0;
        let used = segments.receive(call, (child, round), memory, |message| {
            let added: Added = in_standard_float_mode(|| {
                let mut reader = coder.reader(&message, segments.room())?;
                entries += reader.remaining();
                while let Some(block) = reader.next_block()? {
                    sum.add(block)?;
                }
                Ok(())
            });
            added.map_err(|error| invalid(call, child, error))?;
            segments.check(call, child, entries)?;
            Ok(message)
        });
        match used.await? {
            Message::Pairs(entries) => self.spare = entries,
            coded => coder.keep(coded),
        }
        let summed = in_standard_float_mode(|| sum.finish());
        Ok(summed.and_then(|()| in_standard_float_mode(|| self.cut())))
    }

    /// Keeps the largest entries of the sum, and adds the others to what has been dropped.
    fn cut(&mut self) -> Added {
        let Self { k, kept, dropped, sums, next_kept, next_dropped, scratch, .. } = self;
        merge::split_largest(sums.view(), *k, next_kept, next_dropped, scratch);
        mem::swap(kept, next_kept);
        if dropped.is_empty() {
            mem::swap(dropped, next_dropped);
        } else if !next_dropped.is_empty() {
            merge::add(dropped.view(), next_dropped.view(), next_kept)?;
            mem::swap(dropped, next_kept);
        }
        Ok(())
    }
}
