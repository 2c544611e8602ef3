//! Sparse tensors: only some entries travel. Those that travel the same way share a bucket, which is one
//! vector, with one collective.

mod method;
mod part;
mod whole;

use brevity_collectives::dense::describe_all_reduce;
use brevity_collectives::sparse::{Coder, Draw, TensorEnd, Wire};
use brevity_collectives::{Call, Description, Group, Operation, ReduceOp, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::quantise::Values;
use brevity_compress::select::BLOCK_PLACES;
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Density, Error as Compress, SparseVec};

use super::bucket::CHOSEN_WORDS;
use super::gradient::GradientMut;
use super::participants::Shares;
use super::room::Lacking;
use super::select::{Scratch, Selector};
use super::taking::Taking;
use super::{Ending, room};
use crate::policy::{Momentum, Scope, SparseMethod, SparsePolicy, Threshold, has_scales};
use method::{Delivered, Method};
use part::{Part, take};
use whole::Whole;

/// What tensors of one bucket have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) method: SparseMethod,
    /// `None` leaves it to the estimates.
    pub(super) wire: Option<Wire>,
    pub(super) threshold: Threshold,
    pub(super) scope: Scope,
    /// The first steps, in which everything travels.
    pub(super) dense_steps: u64,
    /// Whether hosts sum what their ranks have first.
    pub(super) hierarchical: bool,
    /// The tensor, if it travels alone: where several values share a scale, it must be of one tensor.
    pub(super) alone: Option<usize>,
}

impl Way {
    /// That of a tensor with this policy.
    pub(super) fn of(policy: &SparsePolicy, tensor: usize) -> Self {
        let SparsePolicy { method, wire, scope, dense_steps, hierarchical, .. } = *policy;
        let (threshold, alone) = (policy.threshold(), has_scales(wire).then_some(tensor));
        Self { method, wire, threshold, scope, dense_steps, hierarchical, alone }
    }

    /// The wire of a bucket in a group, of so many elements, of which a rank selects so many entries.
    pub(super) fn wire_in(&self, group: &Group, elements: usize, entries: usize) -> Wire {
        let operation = match self.method {
            _ if self.hierarchical => Operation::HIERARCHICAL_ALL_REDUCE,
            SparseMethod::Union => Operation::TOPK_ALL_REDUCE,
            SparseMethod::Global(_) => Operation::GTOPK_ALL_REDUCE,
            SparseMethod::OkTopk => Operation::OK_TOPK_ALL_REDUCE,
            // They write no entries on a wire.
            SparseMethod::Random(_) | SparseMethod::Blocks => return Wire::Pairs,
        };
        self.wire.unwrap_or_else(|| group.exact_wire(operation, elements, entries))
    }

    /// The wire that takes the most memory, in any group.
    pub(super) fn largest_wire(&self) -> Wire {
        self.wire.unwrap_or(if self.method.has_entries() { Wire::Coded(Values::F32) } else { Wire::Pairs })
    }

    /// The wire in words, unless it is left open: then it is the same on all ranks of a group, but may be
    /// another one in the next.
    pub(super) fn words(&self) -> String {
        match self.wire {
            None => String::new(),
            Some(Wire::Pairs) => ", pairs".into(),
            Some(Wire::Coded(values)) => format!(", {values} values"),
        }
    }
}

/// A tensor for a bucket.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) tensor: usize,
    pub(super) count: usize,
    /// How many entries, or blocks, a rank selects of it.
    pub(super) k: usize,
    /// The same by the density of its policy, without a schedule.
    pub(super) own_k: usize,
    pub(super) momentum: Momentum,
    /// The seed of random places.
    pub(super) seed: u64,
}

/// Sparse tensors that travel together, as one vector of their elements.
pub(super) struct SparseBucket {
    way: Way,
    method: Method,
    parts: Vec<Part>,
    /// Where each of them ends in the vector.
    ends: Vec<TensorEnd>,
    limits: Limits,
    /// The entries that a rank selects by the densities of the policies.
    own_k: usize,
    world_size: u32,
    /// The entries taken out of the residuals in this step, tensor after tensor.
    selected: SparseVec,
    whole: Whole,
    /// What the collective has delivered and returned, once it has succeeded.
    delivered: Delivered,
    coder: Coder,
    scratch: Scratch,
}

/// The size of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limits {
    /// The elements of all tensors.
    count: usize,
    /// The entries, or blocks, of all tensors together that a rank selects, or about so many; gTop-k and
    /// Ok-Topk deliver as many.
    k: usize,
    /// The most entries that a rank selects.
    most: usize,
}

impl Limits {
    fn of(parts: &[Part], whole: &Whole) -> Self {
        let most = |part: &Part| part.kept.selector().most(part.range.len());
        let count = parts.last().map_or(0, |part| part.range.end);
        let k = parts.iter().map(|part| part.kept.selector().k()).sum();
        let of_whole = whole.selector.as_ref().map(|selector| selector.most(count));
        Self { count, k, most: of_whole.unwrap_or_else(|| parts.iter().map(most).sum()) }
    }
}

impl SparseBucket {
    pub(super) fn new(way: Way, members: &[Member], group: &Group) -> std::result::Result<Self, Lacking> {
        let world_size = group.world_size();
        let (mut parts, mut ends, mut end) = (Vec::new(), Vec::new(), 0);
        // gTop-k takes at most as many entries as it delivers.
        let may_exceed = !matches!(way.method, SparseMethod::Global(_));
        let rule = Method::rule(way.method, way.threshold);
        for member in members {
            let range = end..end + member.count;
            end = range.end;
            ends.push(TensorEnd { end, tensor: member.tensor as u32 });
            let selector = Selector::new(rule, may_exceed, member.k, member.seed);
            parts.push(Part::new(member, range, selector, world_size)?);
        }
        let whole = Whole::new((way.scope, way.dense_steps), rule, may_exceed, members)?;
        let limits = Limits::of(&parts, &whole);
        let own_k = members.iter().map(|member| member.own_k).sum();
        let bucket = Self {
            way,
            method: Method::new(way.method, members, limits, world_size)?,
            parts,
            ends,
            limits,
            own_k,
            world_size,
            selected: SparseVec::new(end),
            whole,
            delivered: Delivered { sum: SparseVec::new(end), put_back: SparseVec::new(end) },
            coder: Coder::new(way.wire_in(group, end, own_k)),
            scratch: Scratch::default(),
        };
        room::check(bucket.working_bytes(limits))?;
        Ok(bucket)
    }

    fn part(&self, tensor: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.tensor == tensor)
    }

    /// Whether its collective may go over the slots of the host.
    pub(super) fn uses_slots(&self) -> bool {
        self.whole.is_dense || self.method.uses_slots()
    }

    /// The exchange has made so many steps. Returns whether something else travels from now on.
    pub(super) fn follow_steps(&mut self, steps: u64) -> bool {
        self.whole.follow(steps)
    }

    /// Goes on in another group. What all ranks must have alike begins anew.
    pub(super) fn rejoin(&mut self, group: &Group) {
        let world_size = group.world_size();
        self.parts.iter_mut().for_each(|part| part.kept.rejoin(part.momentum, world_size));
        self.whole.restart();
        self.world_size = world_size;
        self.method.restart(self.limits, world_size);
        let wire = self.way.wire_in(group, self.limits.count, self.own_k);
        if wire != self.coder.wire() {
            self.coder = Coder::new(wire);
        }
    }

    /// How entries of its tensors are written, if they are.
    pub(super) fn wire(&self) -> Option<Wire> {
        self.way.method.has_entries().then_some(self.coder.wire())
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.tensor)
    }

    /// Checks that there is memory to select by this density of a tensor.
    pub(super) fn check_room(&self, tensor: usize, density: Density) -> std::result::Result<(), Lacking> {
        let Some(part) = self.part(tensor) else { return Ok(()) };
        let (before, length) = (part.kept.selector(), part.range.len());
        let k = self.way.method.selected(density, length);
        let most = match &self.whole.selector {
            Some(selector) => selector.clone().with_k(selector.k() - before.k() + k).most(self.limits.count),
            None => self.limits.most - before.most(length) + before.clone().with_k(k).most(length),
        };
        if most > self.limits.most {
            room::check(self.working_bytes(Limits { most, ..self.limits }))
        } else {
            Ok(())
        }
    }

    /// Changes a tensor's density, from the next step on. Returns whether another number is selected.
    pub(super) fn set_density(&mut self, tensor: usize, density: Density) -> bool {
        let Some(part) = self.parts.iter_mut().find(|part| part.tensor == tensor) else { return false };
        let k = self.way.method.selected(density, part.range.len());
        if part.kept.selector().k() == k {
            return false;
        }
        part.kept.selector_mut().set_k(k);
        self.whole.follow_parts(&mut self.parts);
        self.limits = Limits::of(&self.parts, &self.whole);
        self.method.restart(self.limits, self.world_size);
        true
    }

    /// Adds the gradient of a tensor of the bucket and selects: from all tensors together after the last one,
    /// if they have one threshold. Returns whether all sums are finite.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let Self { parts, scratch, whole, selected, .. } = self;
        let Some(part) = parts.iter_mut().find(|part| part.tensor == tensor) else { return true };
        if whole.leaves_selecting() {
            return part.accumulate(gradient, scratch);
        }
        if !part.add(gradient) {
            return false;
        }
        let is_complete = !whole.is_dense && parts.iter().all(|part| part.added);
        !is_complete || whole.select(parts, selected, scratch)
    }

    pub(super) fn describe(&self) -> Description {
        if self.whole.is_dense {
            return describe_all_reduce::<f32>(self.limits.count, ReduceOp::Sum);
        }
        self.method.describe(self.limits, self.coder.wire(), &self.parts)
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        if self.whole.is_dense {
            return self.whole.all_reduce(call, poisoned, &self.parts).await;
        }
        self.selected.clear();
        for part in self.parts.iter().filter(|_| !poisoned) {
            let start = part.range.start as u32;
            part.selected.iter().for_each(|(index, value)| self.selected.push(start + index, value));
        }
        let (local, of) = (self.selected.view(), (&self.parts[..], &self.ends[..]));
        self.delivered = self.method.run(call, local, self.limits, &mut self.coder, of).await?;
        Ok(())
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        let (mut own, mut result) = (SparseVec::new(0), SparseVec::new(0));
        let delivers_all = self.method.delivers_all();
        let is_dense = self.whole.is_dense;
        self.method.end(matches!(ending, Ending::Done));
        for part in &mut self.parts {
            match ending {
                Ending::Done if is_dense => {
                    part.kept.deliver();
                    gradients[part.tensor].write(self.whole.sums(part), |sum| shares.average(sum));
                }
                Ending::Done => {
                    take(self.delivered.put_back.view(), &part.range, &mut own);
                    take(self.delivered.sum.view(), &part.range, &mut result);
                    part.settle(&own, Some(&result).filter(|_| !delivers_all));
                    let averages = result.iter().map(|(index, sum)| (index, shares.average(sum)));
                    gradients[part.tensor].write_entries(averages);
                }
                Ending::Failed => part.restore(),
                Ending::Poisoned => {
                    part.restore();
                    if part.added {
                        part.withdraw(gradients[part.tensor].read());
                    }
                }
            }
            part.selected.clear();
            part.added = false;
        }
        if matches!(ending, Ending::Done) && !is_dense {
            self.whole.commit(&mut self.parts);
        }
    }

    /// How a tensor of the bucket travels.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let part = self.part(tensor)?;
        let (momentum, selector) = (part.momentum, part.kept.selector());
        let k = selector.k();
        let values = self.way.words();
        let threshold = match (self.way.threshold, self.way.method) {
            (threshold, method) if threshold == method.own_threshold() => String::new(),
            (Threshold::Fixed(tau), _) => format!(", threshold {tau}"),
            (threshold, _) => format!(", {threshold} threshold"),
        };
        let words = match self.way.method {
            SparseMethod::Union => format!("top {k} entries{threshold}{values}{momentum}"),
            SparseMethod::Global(rule) => format!("gtop {k} entries, {rule:?}{threshold}{values}{momentum}"),
            SparseMethod::OkTopk => format!("Ok-Topk of {k} entries{threshold}{values}{momentum}"),
            SparseMethod::Random(draw) => {
                let places = match draw {
                    Draw::Scattered => "random entries",
                    Draw::Block => "consecutive entries",
                };
                format!("{k} {places}, seed {}{momentum}", selector.places().0)
            }
            SparseMethod::Blocks => format!("top {k} blocks of {BLOCK_PLACES}{momentum}"),
        };
        Some(self.whole.travels(self.way.scope, words))
    }

    /// What is kept of a tensor of the bucket, in words.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        let part = self.part(tensor)?;
        let (own, momentum) = (part.kept.selector().kept(), part.momentum.kept());
        Some(format!("sparse{}{own}{momentum}", self.method.kept()))
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        self.part(tensor).is_some()
    }

    pub(super) fn write_state(&self, tensor: usize, contents: &mut Writer) {
        if let Some(part) = self.part(tensor) {
            part.kept.write_state(contents);
            self.method.write_state(contents);
        }
    }

    pub(super) fn read_state(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), Compress> {
        let Some(place) = self.parts.iter().position(|part| part.tensor == tensor) else { return Ok(()) };
        self.parts[place].kept.read_state(contents)?;
        self.whole.load(&self.parts);
        self.method.read_state(place == 0, contents)
    }

    /// Writes what is kept of a tensor whose way was chosen, if it is of this bucket, as long for all methods
    /// that may be: of these Ok-Topk alone keeps more than the residual.
    pub(super) fn write_chosen(&self, tensor: usize, contents: &mut Writer) {
        if !self.holds(tensor) {
            return;
        }
        self.write_state(tensor, contents);
        if !self.is_ok_topk() {
            (0..CHOSEN_WORDS).for_each(|_| contents.u64(0));
        }
    }

    pub(super) fn read_chosen(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), Compress> {
        if !self.holds(tensor) {
            return Ok(());
        }
        self.read_state(tensor, contents)?;
        let words = if self.is_ok_topk() { 0 } else { CHOSEN_WORDS };
        (0..words).try_for_each(|_| contents.u64().map(drop))
    }

    /// Adds what another rank has saved of a tensor. Thresholds and draws stay.
    pub(super) fn take(&mut self, tensor: usize, from: &mut Taking<'_>) -> std::result::Result<(), Compress> {
        let Some(part) = self.parts.iter_mut().find(|part| part.tensor == tensor) else { return Ok(()) };
        part.kept.take_over(from)?;
        self.method.pass_over(from.contents())
    }

    /// The same of a tensor whose way was chosen.
    pub(super) fn take_chosen(
        &mut self,
        tensor: usize,
        from: &mut Taking<'_>,
    ) -> std::result::Result<(), Compress> {
        if !self.holds(tensor) {
            return Ok(());
        }
        self.take(tensor, from)?;
        let words = if self.is_ok_topk() { 0 } else { CHOSEN_WORDS };
        (0..words).try_for_each(|_| from.contents().u64().map(drop))
    }

    fn is_ok_topk(&self) -> bool {
        self.way.method == SparseMethod::OkTopk
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(part) = self.part(tensor) {
            out.copy_from_slice(part.kept.values());
        }
    }

    /// The least bytes of memory that a full step needs beside the residuals: the vectors of entries that the
    /// collective holds at the same time, and the space for selecting.
    fn working_bytes(&self, Limits { count, most, .. }: Limits) -> usize {
        let wire = self.way.largest_wire();
        let (vectors, messages, others) = self.method.working(wire, self.world_size);
        let messages = wire.most_bytes(count, most).saturating_mul(messages);
        let selecting = 24_usize.saturating_mul(most).min(8 * count);
        let vectors = (8 * vectors).saturating_mul(most);
        let sparse = vectors.saturating_add(messages).saturating_add(selecting).saturating_add(others);
        if self.way.dense_steps > 0 { sparse.max(count.saturating_mul(4)) } else { sparse }
    }
}
