//! One collective call of one rank. Its messages carry its number and description.

mod operations;
mod shared;
mod traffic;

use std::sync::Arc;

use bytemuck::Pod;
use ucx_sys_wrap::buffer::{Chunk, Comm, PoolBuffer, RecvBuffer, SendBuffer};
use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag};

use crate::buffers::{Buffers, Memory};
use crate::calls::Numbered;
use crate::context::Ranks;
use crate::data::Element;
use crate::dense::{Collective, Place, suits_slots};
use crate::description::{Description, digest};
use crate::error::{CallSite, Error, Result};
use crate::host::{InsideTicket, SlotTurn, Terms};
use crate::plan::{Algorithm, Plan};
use crate::poison::Poison;

pub use operations::{Receiving, ReceivingUpTo, Sending};
use shared::Marked;
pub(crate) use shared::Shared;
pub use traffic::Traffic;

/// The interface of algorithms to their group: the ranks, and sends and receives that belong to this call.
///
/// Several collectives may run in sequence inside one call ([`describe`](Self::describe)): their messages
/// match in order.
pub struct Call<'comm, 'env> {
    comm: &'comm Comm<'env>,
    ranks: &'comm Ranks,
    numbered: Numbered,
    site: CallSite<'comm>,
    signature: Signature,
    shared: &'comm Shared,
    marked: &'comm Marked,
    /// Whether it runs beside other parts of one call.
    is_part: bool,
    lane: u32,
    /// The ranks that take part, if they are not all of the group.
    among: Option<Among>,
}

/// Some ranks of a group, which a part of an algorithm is for.
#[derive(Clone)]
struct Among {
    /// Their ranks in the group.
    ranks: Arc<[u32]>,
    /// This rank's place among them.
    own: u32,
}

/// The parts of a call that tags tell apart in every round. A round that wraps around keeps its lane.
pub(crate) const LANES: u32 = 4;

impl<'comm, 'env> Call<'comm, 'env> {
    pub(crate) fn new(
        comm: &'comm Comm<'env>,
        ranks: &'comm Ranks,
        numbered: Numbered,
        description: Description,
        shared: &'comm Shared,
    ) -> Self {
        let site = CallSite { description, sequence: numbered.number, difference: &ranks.difference };
        let signature = description.sign(ranks.epoch, numbered.digest);
        let marked = shared.marked();
        Self { comm, ranks, numbered, site, signature, shared, marked, is_part: false, lane: 0, among: None }
    }

    /// A collective inside this call, whose messages carry `description`.
    #[must_use]
    pub fn describe(&self, description: Description) -> Call<'comm, 'env> {
        // Inverted: the next call of the group has another digest.
        let numbered =
            Numbered { digest: digest(!self.numbered.digest, description.hash()), ..self.numbered };
        let inside = Call::new(self.comm, self.ranks, numbered, description, self.shared);
        Call {
            marked: self.marked,
            is_part: self.is_part,
            lane: self.lane,
            among: self.among.clone(),
            ..inside
        }
    }

    /// Part `index` of this call, which has a number of its own: several parts may run at the same time. The
    /// call was made with more than `index` parts ([`Group::run_with_parts`](crate::Group::run_with_parts)).
    ///
    /// Collectives inside a part go by messages. Poison is of a part alone: only who waits for a part learns
    /// of it.
    ///
    /// # Panics
    /// If the call was made with fewer parts.
    #[must_use]
    pub fn part(&self, index: u32) -> Call<'comm, 'env> {
        let number = self.numbered.number.wrapping_add(1).wrapping_add(index);
        let numbered = Numbered { number, digest: self.numbered.digest ^ index.wrapping_add(1) };
        let marked = self.shared.part(index);
        let marked = marked.unwrap_or_else(|| panic!("part {index} of a call that was made with fewer"));
        let part = Call::new(self.comm, self.ranks, numbered, self.site.description, self.shared);
        Call { marked, is_part: true, ..part }
    }

    /// This call for a segment of its vector: its messages do not meet those of other lanes, below [`LANES`].
    pub(crate) fn lane(&self, lane: u32) -> Call<'comm, 'env> {
        let numbered = self.numbered;
        let call = Call::new(self.comm, self.ranks, numbered, self.site.description, self.shared);
        // All ranks use slots in the same order; lanes are polled in any order.
        let Self { signature, marked, .. } = *self;
        Call { signature, marked, is_part: true, lane, among: self.among.clone(), ..call }
    }

    /// This call as some ranks of the group see it, which have numbers by their place among them. This rank
    /// is one of them. Messages meet those of the whole call, if they are between the same two ranks and of
    /// one round.
    pub(crate) fn among(&self, ranks: Arc<[u32]>) -> Call<'comm, 'env> {
        let own = ranks.iter().position(|rank| *rank == self.ranks.own);
        let own = own.unwrap_or_else(|| unreachable!("this rank is among them")) as u32;
        Call { is_part: true, among: Some(Among { ranks, own }), ..self.lane(self.lane) }
    }

    /// How algorithms are chosen in the group.
    pub(crate) fn plan(&self) -> &'comm Plan {
        self.ranks.plan()
    }

    /// The bytes of a message of a long vector.
    pub(crate) fn slice_bytes(&self) -> usize {
        self.plan().ground.slice_bytes
    }

    /// Runs a collective on dense vectors. Returns the output.
    ///
    /// # Errors
    /// Those of the collective's check, with which this rank leaves the call; errors of the transport. The
    /// memory is lost.
    pub async fn run<C: Collective>(&self, collective: &C, memory: Memory<'env>) -> Result<Chunk<'env, u8>> {
        let plan = self.ranks.plan();
        let wish = plan.wishes.of(C::OPERATION).filter(|_| self.world_size() > 1);
        // Only whole calls have a turn of the slots, and only where all ranks have them: all decide alike.
        let has_slots = || plan.ground.has_slots && self.may_use_slots(collective);
        match wish.filter(|wish| *wish != Algorithm::Slots || has_slots()) {
            Some(algorithm) => self.run_by(algorithm, collective, memory).await,
            None => {
                self.computed(collective.check(memory.sizes(), self.place()))?;
                self.run_checked(collective, memory, None).await
            }
        }
    }

    /// Likewise, by an algorithm of the caller's choice.
    ///
    /// # Errors
    /// As for [`run`](Self::run); [`Error::Algorithm`] if it does not fit, before anything is sent.
    pub async fn run_by<C: Collective>(
        &self,
        algorithm: Algorithm,
        collective: &C,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        self.computed(collective.check(memory.sizes(), self.place()))?;
        let work = collective.work(memory.sizes(), self.place());
        let work = (&work, self.may_use_slots(collective));
        self.ranks.plan().check(C::OPERATION, C::ROWS, work, algorithm)?;
        self.run_checked(collective, memory, Some(algorithm)).await
    }

    /// Runs a collective on dense vectors, where the input is in the output.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub async fn run_in_place<C: Collective, T: Pod>(
        &self,
        collective: &C,
        data: Chunk<'env, T>,
    ) -> Result<Chunk<'env, T>> {
        self.run(collective, Memory { input: None, output: data.cast() }).await.map(Chunk::cast)
    }

    /// Likewise, of a call whose arguments were checked, by this algorithm or the cheapest.
    pub(crate) async fn run_checked<C: Collective>(
        &self,
        collective: &C,
        mut memory: Memory<'env>,
        algorithm: Option<Algorithm>,
    ) -> Result<Chunk<'env, u8>> {
        self.check_open()?;
        if self.world_size() == 1 {
            return Ok(alone(memory));
        }
        let work = collective.work(memory.sizes(), self.place());
        let plan = self.ranks.plan();
        let is_over_slots = self.may_use_slots(collective)
            && match algorithm {
                Some(algorithm) => algorithm == Algorithm::Slots,
                None => plan.prefers_slots(C::OPERATION, C::ROWS, &work),
            };
        if is_over_slots && let Some((mut place, terms)) = self.host_turn() {
            let mut turn = SlotTurn::begin(&mut place, &terms).await?;
            let mut buffers = Buffers { input: memory.input, output: &mut memory.output };
            turn.run(collective, &mut buffers).await?;
            return Ok(memory.output);
        }
        let algorithm = algorithm.unwrap_or_else(|| plan.choose(C::OPERATION, C::ROWS, &work));
        collective.run(self, algorithm, memory).await
    }

    /// Whether a collective inside this call can go over slots, if there are any. All ranks agree.
    fn may_use_slots<C: Collective>(&self, collective: &C) -> bool {
        suits_slots(collective) && !self.is_part && self.shared.inside().is_some()
    }

    /// The place in the queue for the slots of this rank's host, and the terms of the turn, if ranks share
    /// memory there. All ranks of the host agree.
    pub(crate) fn host_turn(&self) -> Option<(InsideTicket<'_>, Terms<'_>)> {
        let inside = self.shared.inside().filter(|_| !self.is_part)?;
        Some(inside.turn(self.comm, (&self.site, self.signature), self.shared))
    }

    /// The result of a computation of this rank. If it has failed, this rank leaves the call.
    pub(crate) fn computed<R>(&self, result: Result<R>) -> Result<R> {
        if result.is_err() {
            self.shared.set_broken();
        }
        result
    }

    /// This rank, and the number of ranks.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { rank: self.rank(), world_size: self.world_size() }
    }

    /// This rank, in the group.
    #[inline]
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.among.as_ref().map_or(self.ranks.own, |among| among.own)
    }

    /// The number of ranks in the group.
    #[inline]
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.among.as_ref().map_or_else(|| self.ranks.size(), |among| among.ranks.len() as u32)
    }

    /// The rank in the world of a rank that takes part.
    #[inline]
    fn member(&self, rank: u32) -> Rank {
        match &self.among {
            None => self.ranks.member(rank),
            Some(among) => self.ranks.member(among.ranks.get(rank as usize).copied().unwrap_or(u32::MAX)),
        }
    }

    /// The description of this call.
    #[must_use]
    pub fn description(&self) -> Description {
        self.site.description
    }

    /// What this rank has sent and received for this call so far, for all collectives and parts inside it.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.counters().traffic()
    }

    /// Reports a value of this rank that is not finite, in tensor `tensor` of the call. This spreads with the
    /// call's messages, so the rank must still take part in the call, with neutral data.
    pub fn set_poison(&self, tensor: u32) {
        let poison = Poison { rank: self.comm.port().rank().0, tensor };
        self.marked.hear(poison.mark());
    }

    /// The poison of any rank, as far as this rank knows. After a collective whose result depends on every
    /// rank, all ranks get the same answer.
    #[must_use]
    pub fn poison(&self) -> Option<Poison> {
        Poison::from_mark(self.mark())
    }

    /// Fails if any rank has set poison, as far as this rank knows.
    ///
    /// # Errors
    /// [`Error::NonFinite`].
    pub fn check_poison(&self) -> Result<()> {
        self.poison().map_or(Ok(()), |poison| Err(poison.into()))
    }

    /// The error of a peer that has violated the call's protocol. It closes the group when the call ends,
    /// because this rank leaves early.
    pub(crate) fn refuse(&self, rank: u32, what: String) -> Error {
        self.shared.refuse(self.member(rank), what)
    }

    /// Fails if a group of one rank is closed, since no message can fail there.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.world_size() > 1 {
            return Ok(());
        }
        let failure = self.comm.port().failure(self.ranks.number);
        failure.map_or(Ok(()), |failure| Err(self.shared.error(&self.site, failure.into())))
    }

    /// Allocates `count` elements to receive into.
    ///
    /// Without memory, this rank leaves the call. The group is closed when the call ends, because others may
    /// have enough.
    pub(crate) fn zeros<T: Element>(&self, count: usize) -> Result<Vec<T>> {
        bytemuck::allocation::try_zeroed_vec(count).map_err(|()| self.lacks_memory::<T>(count))
    }

    /// Like [`zeros`](Self::zeros), for a vector that has been used: its first elements stay.
    pub(crate) fn resize<T: Element>(&self, vector: &mut Vec<T>, count: usize) -> Result<()> {
        let more = count.saturating_sub(vector.len());
        vector.try_reserve_exact(more).map_err(|_| self.lacks_memory::<T>(count))?;
        vector.resize(count, T::zeroed());
        Ok(())
    }

    /// Memory to receive `count` elements into, with unspecified values.
    pub(crate) fn scratch<T: Pod>(&self, count: usize) -> Result<PoolBuffer<T>> {
        self.ranks.scratch.take(count).map_err(|_| self.lacks_memory::<T>(count))
    }

    /// So many bytes of such memory in one chunk, aligned for elements of any type.
    pub(crate) fn scratch_chunk(&self, count: usize) -> Result<Chunk<'static, u8>> {
        let lines = Chunk::from(self.scratch::<u128>(count.div_ceil(size_of::<u128>()))?);
        Ok(lines.cast::<u8>().split_at(count).0)
    }

    fn lacks_memory<T>(&self, count: usize) -> Error {
        self.shared.set_broken();
        let size = size_of::<T>();
        let action = format!("can't get memory for {count} elements of {size} bytes: pass smaller vectors");
        Error::Transport(ucx_sys_wrap::Error::system(action, std::io::ErrorKind::OutOfMemory))
    }

    fn mark(&self) -> Mark {
        self.marked.mark()
    }

    /// Posts a message; the buffer comes back when it may be reused.
    pub fn send<B: SendBuffer + 'env>(&self, to: u32, round: u32, buffer: B) -> Sending<'_, 'env, B> {
        let own = self.comm.port().rank();
        let envelope = self.envelope(own, round, self.mark());
        let (leaf, bytes) = self.comm.send_with_length(self.member(to), envelope, buffer);
        self.shared.counters().count_sent(bytes);
        Sending { leaf, site: &self.site, shared: self.shared }
    }

    /// Posts a receive whose parts must fill their buffers.
    pub fn recv<B: RecvBuffer + 'env>(&self, from: u32, round: u32, buffer: B) -> Receiving<'_, 'env, B> {
        let from = self.member(from);
        let (leaf, expected) = self.comm.recv_with_room(from, self.envelope(from, round, Mark::NONE), buffer);
        Receiving {
            up_to: ReceivingUpTo { leaf, site: &self.site, shared: self.shared, marked: self.marked, from },
            expected,
        }
    }

    /// Posts a receive whose parts may be shorter than their buffers; also returns their lengths in bytes.
    pub fn recv_up_to<B: RecvBuffer + 'env>(
        &self,
        from: u32,
        round: u32,
        buffer: B,
    ) -> ReceivingUpTo<'_, 'env, B> {
        let from = self.member(from);
        let leaf = self.comm.recv(from, self.envelope(from, round, Mark::NONE), buffer);
        ReceivingUpTo { leaf, site: &self.site, shared: self.shared, marked: self.marked, from }
    }

    #[inline]
    fn envelope(&self, source: Rank, round: u32, mark: Mark) -> Envelope {
        let tag = Tag::new(source, self.ranks.number, self.numbered.number, round * LANES + self.lane);
        Envelope { tag, signature: self.signature, mark }
    }
}

/// A collective of a single rank: it gets what it gives.
fn alone(memory: Memory<'_>) -> Chunk<'_, u8> {
    let Memory { input, mut output } = memory;
    if let Some(input) = input {
        // A copy: the only rank's vector.
        output.copy_from_slice(input);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Operation;
    use crate::group::Group;

    #[test]
    fn memory_that_there_is_not_is_an_error_and_closes_the_group() {
        let group = Group::solo();
        let description = Description::new(Operation::BARRIER, 0, 0);
        for count in [1 << 45, usize::MAX] {
            let refused =
                group.run(description, async |call| call.zeros::<f64>(count).map(drop)).unwrap_err();
            assert!(refused.to_string().starts_with("can't get memory for"), "{refused}");
            assert!(matches!(group.barrier(), Err(Error::Aborted { rank: Rank(0) })), "others would wait");
        }
        assert_eq!(Group::solo().run(description, async |call| call.zeros::<u8>(3)).unwrap(), [0; 3]);
        let refused = Group::solo().run(description, async |call| call.scratch::<f64>(1 << 45).map(drop));
        assert!(refused.unwrap_err().to_string().starts_with("can't get memory for"));
    }
}
