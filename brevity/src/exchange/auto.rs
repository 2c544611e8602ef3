//! Tensors whose way to travel is chosen by what it is estimated to take.

use std::fmt;

use brevity_collectives::sparse::Wire;
use brevity_collectives::{Group, Operation, Planned, Summand};
use brevity_compress::quantise::Values;
use brevity_compress::{Density, in_standard_float_mode};

use super::GradientExchange;
use super::bucket::in_buckets;
use super::builder::MOST_INDICES;
use crate::error::Result;
use crate::policy::{AutoPolicy, Policy, SparseMethod};

/// How a tensor with the policy [`auto`](Policy::auto) travels, and why.
///
/// As text, the reason in a sentence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// The policy that was chosen: [`dense`](Policy::dense), [`topk`](Policy::topk),
    /// [`gtopk`](Policy::gtopk), perhaps by [hosts](Policy::hierarchical), or [`oktopk`](Policy::oktopk),
    /// with [pairs](Policy::pairs) or packed `f32`; or what [`auto`](Policy::auto) was allowed beside.
    pub policy: Policy,
    /// The elements of all tensors that were chosen for together.
    pub elements: usize,
    /// The fastest dense sum of these.
    pub dense: Planned,
    /// The fastest compressed one, if there is one: more than 2^32 elements have none.
    pub compressed: Option<Planned>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, elements, dense, compressed } = self;
        let takes = |way: &Planned| format!("the {way} is estimated to take {:.1} us", way.seconds() * 1e6);
        write!(f, "{policy}: of {elements} elements, {}", takes(dense))?;
        let Some(compressed) = compressed else { return Ok(()) };
        let own = compressed.own_seconds * 1e6;
        let takes = takes(compressed);
        write!(f, ", and {takes}, of which a rank compresses and writes the sum for {own:.1} us")
    }
}

impl GradientExchange {
    /// What was chosen for a tensor with the policy [`auto`](Policy::auto), and why; `None` for tensors with
    /// another policy. The same on all ranks.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`](crate::Error::NoSuchTensor).
    pub fn choice(&self, tensor: &str) -> Result<Option<&Choice>> {
        let (position, _) = self.position(tensor)?;
        Ok(self.parts.tensors[position].choice.as_ref())
    }
}

/// A tensor that a way is to be chosen for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) tensor: usize,
    pub(super) count: usize,
    pub(super) density: Density,
    pub(super) allowed: AutoPolicy,
    /// The rows and columns of a matrix that may be of low rank.
    pub(super) matrix: Option<[usize; 2]>,
}

impl Candidate {
    /// Candidates with the same key are looked at together.
    fn key(&self) -> (Option<Values>, Option<usize>, bool) {
        let AutoPolicy { values, rank, blocks, .. } = self.allowed;
        (values, rank, blocks)
    }
}

/// Chooses for buckets of at most `most` elements. Sums by hosts must know how a step has ended elsewhere, as
/// an exchange does that keeps going: they are left out otherwise.
pub(super) fn choose(
    group: &Group,
    candidates: Vec<Candidate>,
    most: usize,
    keeps_going: bool,
) -> Vec<(Candidate, Choice)> {
    let candidates = candidates.into_iter().map(|candidate| (candidate.key(), candidate)).collect();
    let buckets = in_buckets(candidates, |candidate: &Candidate| candidate.count, most).into_iter();
    let chosen = buckets.flat_map(|(_, members)| {
        let elements = members.iter().map(|member| member.count).sum::<usize>();
        let mut ways = ways(group, &members, elements);
        ways.retain(|way| keeps_going || way.operation != Operation::HIERARCHICAL_ALL_REDUCE);
        members.into_iter().map(move |member| (member, fastest(&ways, elements, &member)))
    });
    in_standard_float_mode(|| chosen.collect())
}

/// All ways that the members of a bucket allow, the fastest first.
fn ways(group: &Group, members: &[Candidate], elements: usize) -> Vec<Planned> {
    let Some(AutoPolicy { values, rank, blocks, .. }) = members.first().map(|member| member.allowed) else {
        return Vec::new();
    };
    let sum = |of: fn(&Candidate) -> usize| members.iter().map(of).sum::<usize>();
    let entries = Some(sum(|member| member.density.entries(member.count)));
    let entries = entries.filter(|_| elements <= MOST_INDICES);
    // Those that are exact, with both of their wires. What they say of blocks is of entries anywhere.
    let summand = Summand { elements, entries, ..Summand::default() };
    let mut ways = group.compare(&summand);
    ways.retain(|way| way.operation != Operation::BLOCK_ALL_REDUCE);
    if let Some(values) = values {
        let rounded = Summand { wire: Some(Wire::Coded(values)), values: Some(values), ..summand };
        let is_rounded =
            |way: &Planned| way.wire.is_some() || way.operation == Operation::QUANTISED_ALL_REDUCE;
        ways.extend(group.compare(&rounded).into_iter().filter(is_rounded));
    }
    if blocks && entries.is_some() {
        let count = sum(|member| SparseMethod::Blocks.selected(member.density, member.count));
        ways.extend(group.compare_blocks(elements, count));
    }
    let matrices: Vec<_> = members.iter().filter_map(|member| member.matrix).collect();
    if let Some(rank) = rank.filter(|_| !matrices.is_empty()) {
        let vectors = sum(|member| if member.matrix.is_none() { member.count } else { 0 });
        ways.extend(group.compare_low_rank(&matrices, rank, vectors));
    }
    ways.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    ways
}

/// The fastest of the ways that a tensor may take.
fn fastest(ways: &[Planned], elements: usize, member: &Candidate) -> Choice {
    let policy = |way: &Planned| member.allowed.chosen(way, member.density.share());
    let find = |is_dense| ways.iter().find(|way| policy(way).is_some() && way.is_dense() == is_dense);
    let dense = *find(true).unwrap_or_else(|| unreachable!("every vector can be summed as it is"));
    let compressed = find(false).copied();
    let pays = compressed.filter(|compressed| compressed.seconds() < dense.seconds());
    let policy = pays.and_then(|compressed| policy(&compressed)).unwrap_or(Policy::dense());
    Choice { policy, elements, dense, compressed }
}
