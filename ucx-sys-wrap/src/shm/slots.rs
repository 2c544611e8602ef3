//! Slots: memory in which the ranks of one host publish bytes for each other, step by step.
//!
//! A *step* is an action that all local ranks take in the same order: each may publish bytes in its own slot
//! of the step, reads what others have published, and says when it has finished the step. Steps are numbered
//! from 1, and step `s` uses slot `s mod` [`DEPTH`], so a rank may publish in step `s` once all others have
//! finished step `s - DEPTH`. A step needs no lock, no cache line that two ranks write, and no system call.
//!
//! | bytes of the slots | content |
//! | --- | --- |
//! | 0..64 | the last step that the rank has finished |
//! | 128.. | 768 bytes of control for each slot |
//! | 4096.. | the rank's last calls, a cache line each ([`Records`](super::Records)) |
//! | 8192.. | [`CHUNK_BYTES`] of payload for each slot |
//!
//! Control: word 0 is twice the step, plus one if there is a mark; words 1 and 2 are the signature, followed
//! by up to [`INLINE_BYTES`] of payload; at 576 the mark; at 640 the step whose second part is published.
//!
//! Nothing that a peer writes is trusted; a step from the future is an error.

mod reducing;
mod step;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::blocks;
use super::local_group::LocalGroup;
use super::store_policy::StorePolicy;
use crate::{Error, Mark, Rank, Result, Signature};

use reducing::Reductions;
pub use reducing::{Fold, Part};
use step::LAST_STEP;
pub use step::{MAX_GENERATIONS, SlotSet, Step};

/// Steps that may be in progress at once.
pub const DEPTH: u64 = 4;

/// Most bytes that are published inside a slot's control.
pub const INLINE_BYTES: usize = 512;

/// Most bytes that a slot takes.
pub const CHUNK_BYTES: usize = 512 << 10;

const FINISHED_AT: usize = 0;
const CONTROL_AT: usize = 128;
const CONTROL_BYTES: usize = 768;
const PAYLOAD_AT: usize = 24;
const MARK_AT: usize = 576;
const SECOND_AT: usize = 640;
pub(super) const RECORDS_AT: usize = 4096;
const CHUNKS_AT: usize = 8192;

const PAGE_BYTES: usize = 4096;

const _: () = assert!(PAYLOAD_AT + INLINE_BYTES <= MARK_AT);

/// Bytes of payload in the cache line of a slot's flag.
const FIRST_BYTES: usize = LINE_BYTES - PAYLOAD_AT;

/// The header of what is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The signature of the call.
    pub signature: Signature,
    /// The sender's mark.
    pub mark: Mark,
}

/// The slots of the local ranks: one rank's view, which writes its own and reads the others'.
///
/// They belong to some of the ranks of a [`LocalGroup`], its members, which are named by their position among
/// them; a position outside is a bug of the caller, and panics.
pub struct Slots {
    local_group: Arc<LocalGroup>,
    own: OwnArea,
    own_place: usize,
    set: SlotSet,
    /// The members' places in the local group.
    members: Box<[usize]>,
    /// `None` at this rank's own position.
    peers: Box<[Option<PeerArea>]>,
    step: u64,
    /// The last step that each rank is known to have finished.
    finished: Box<[u64]>,
    store_policy: StorePolicy,
    reductions: Reductions,
    /// Bytes put into slots since the start; only this rank counts.
    written: Arc<AtomicU64>,
    is_unfenced: bool,
    /// Whether all pages of this rank's slots exist.
    is_touched: bool,
    /// Whether nothing was published since sleepers were last woken.
    is_quiet: bool,
}

impl Slots {
    /// The first slots of all ranks of a local group. A rank may make them once.
    #[must_use]
    pub fn new(local_group: &Arc<LocalGroup>) -> Self {
        let everyone: Vec<usize> = (0..local_group.ranks().len()).collect();
        Self::over(local_group, SlotSet::default(), &everyone)
    }

    /// The slots of a set for these `members`, places in the local group, in this order. A rank may make them
    /// once for each generation, when those of the generation before are [at rest](Self::is_at_rest) on all
    /// members.
    ///
    /// # Panics
    /// When this rank is no member, or a place is outside the group.
    #[must_use]
    pub fn over(local_group: &Arc<LocalGroup>, set: SlotSet, members: &[usize]) -> Self {
        let own_place = members.iter().position(|place| *place == local_group.own_place());
        let own_place = own_place.unwrap_or_else(|| panic!("the slots of others: {members:?}"));
        let own = local_group.own_slots(set.index);
        // Peers may not publish before this rank is here.
        own.word(FINISHED_AT).store(set.start(), Ordering::Release);
        Self {
            own,
            own_place,
            set,
            members: members.into(),
            peers: members.iter().map(|place| local_group.peer_slots(*place, set.index)).collect(),
            step: set.start(),
            finished: vec![0; members.len()].into(),
            reductions: Reductions::new(members.len(), own_place),
            store_policy: StorePolicy::new(DEPTH as usize * CHUNK_BYTES),
            written: Arc::default(),
            is_unfenced: false,
            is_touched: false,
            is_quiet: true,
            local_group: Arc::clone(local_group),
        }
    }

    /// How many ranks.
    #[inline]
    #[must_use]
    pub fn places(&self) -> usize {
        self.peers.len()
    }

    /// This rank's place.
    #[inline]
    #[must_use]
    pub fn own_place(&self) -> usize {
        self.own_place
    }

    /// The rank at a place.
    #[must_use]
    pub fn rank_at(&self, place: usize) -> Rank {
        self.local_group.ranks()[self.members[place]]
    }

    /// Says that this rank reads no slot of this generation any more, whatever others publish.
    pub fn end(&mut self) {
        self.own.word(FINISHED_AT).store(self.set.start() + LAST_STEP, Ordering::Release);
        self.local_group.wake_all();
    }

    /// Whether all members but the `lost` have finished the steps that this rank has published: the set may
    /// be used by another group.
    #[must_use]
    pub fn is_at_rest(&mut self, lost: &[Rank]) -> bool {
        let Self { local_group, members, peers, finished, step, .. } = self;
        members.iter().zip(peers.iter()).zip(finished.iter_mut()).all(|((place, peer), finished)| {
            let Some(peer) = peer else { return true };
            *finished = (*finished).max(peer.load(FINISHED_AT));
            *finished >= *step || lost.contains(&local_group.ranks()[*place])
        })
    }

    /// The count of bytes that this rank has put into its slots.
    #[must_use]
    pub fn written(&self) -> &Arc<AtomicU64> {
        &self.written
    }

    /// The step that is taken next.
    #[inline]
    #[must_use]
    pub fn next_step(&self) -> Step {
        Step(self.step + 1)
    }

    /// Takes the next `count` steps; returns the first of them.
    #[inline]
    pub fn take_steps(&mut self, count: u64) -> Step {
        let first = self.next_step();
        self.step += count;
        first
    }

    /// A rank that still uses the slot that `step` would overwrite, if there is one.
    #[inline]
    pub fn in_the_way(&mut self, step: Step) -> Option<usize> {
        let needed = step.0.saturating_sub(DEPTH);
        for (place, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            if self.finished[place] < needed {
                self.finished[place] = peer.load(FINISHED_AT);
                if self.finished[place] < needed {
                    return Some(place);
                }
            }
        }
        None
    }

    /// Publishes up to [`INLINE_BYTES`] at once: the cheapest step.
    ///
    /// # Panics
    /// When there are more.
    #[inline]
    pub fn publish_inline(&mut self, step: Step, header: Header, bytes: &[u8]) {
        check_inline(bytes.len());
        self.count(bytes.len());
        self.own.write_block(step.control() + PAYLOAD_AT, bytes);
        self.publish(step, header);
    }

    /// Publishes the step, with what was written to its slot before.
    #[inline]
    pub fn publish(&mut self, step: Step, Header { signature, mark }: Header) {
        self.fence();
        let control = step.control();
        let line = self.own.line(control);
        let [low, high] = signature.words();
        line[1].store(low, Ordering::Relaxed);
        line[2].store(high, Ordering::Relaxed);
        let is_marked = mark != Mark::NONE;
        if is_marked {
            self.own.word(control + MARK_AT).store(mark.0, Ordering::Relaxed);
        }
        line[0].store(step.0 << 1 | u64::from(is_marked), Ordering::Release);
        self.is_quiet = false;
    }

    /// Prefetches what follows the flag of a step that the rank at `place` is about to publish with `bytes`
    /// bytes, if that is one cache line: more would slow the writer.
    #[inline]
    pub fn ask_for_inline(&self, place: usize, step: Step, bytes: usize) {
        let rest = bytes.saturating_sub(FIRST_BYTES);
        if rest <= LINE_BYTES {
            blocks::prefetch_to_read(self.peer(place), step.control() + LINE_BYTES, rest);
        }
    }

    /// The header of the step that the rank at `place` has published; `None` before.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the slot holds a later step, which is impossible while this one is not
    /// finished.
    #[inline(always)]
    pub fn published(&self, place: usize, step: Step) -> Result<Option<Header>> {
        let peer = self.peer(place);
        let control = step.control();
        let found = peer.load(control);
        if found >> 1 != step.0 {
            return if found >> 1 < step.0 {
                Ok(None)
            } else {
                Err(self.step_error(place, found >> 1, step))
            };
        }
        let line = peer.line(control);
        let signature = Signature::from_words([line[1], line[2]]);
        let mark = if found & 1 == 0 { Mark::NONE } else { Mark(peer.load(control + MARK_AT)) };
        Ok(Some(Header { signature, mark }))
    }

    /// Copies what was published by [`publish_inline`](Self::publish_inline), from `offset` on, to `into`.
    ///
    /// # Panics
    /// When that ends after [`INLINE_BYTES`].
    #[inline]
    pub fn read_inline(&self, place: usize, step: Step, offset: usize, into: &mut [u8]) {
        check_inline(offset.saturating_add(into.len()));
        self.peer(place).read_block(step.control() + PAYLOAD_AT + offset, into);
    }

    /// Copies `bytes` into this rank's slot of the step at `offset`, to be published later.
    ///
    /// # Panics
    /// When they do not fit into [`CHUNK_BYTES`].
    pub fn write(&mut self, step: Step, offset: usize, bytes: &[u8]) {
        check_chunk(offset, bytes.len());
        self.count(bytes.len());
        let at = step.chunk() + offset;
        if !self.is_touched {
            self.touch();
        }
        self.is_unfenced |= self.store_policy.is_slow();
        self.store_policy.write_timed(bytes.len(), |streams| blocks::write(&self.own, at, bytes, streams));
    }

    /// Copies what the rank at `place` has published in its slot at `offset`.
    ///
    /// # Panics
    /// When `into` is longer than the slot.
    pub fn read(&self, place: usize, step: Step, offset: usize, into: &mut [u8]) {
        check_chunk(offset, into.len());
        blocks::read(self.peer(place), step.chunk() + offset, into);
    }

    /// Like [`read`](Self::read), but stores past the caches: for a part of something that no cache holds.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn read_past_caches(&self, place: usize, step: Step, offset: usize, into: &mut [u8]) {
        check_chunk(offset, into.len());
        blocks::read_past_caches(self.peer(place), step.chunk() + offset, into);
    }

    /// [`write`](Self::write)s and [`read`](Self::read)s at once, which is faster if both have about the same
    /// length.
    ///
    /// # Panics
    /// As they do.
    pub fn exchange(
        &mut self,
        (into, to, bytes): (Step, usize, &[u8]),
        from: (usize, Step, usize),
        read: &mut [u8],
    ) {
        check_chunk(to, bytes.len());
        self.count(bytes.len());
        let (place, step, offset) = from;
        check_chunk(offset, read.len());
        let Some(peer) = &self.peers[place] else { panic!("a rank reads its own slots") };
        let streams = self.store_policy.is_slow();
        self.is_unfenced |= streams;
        blocks::exchange((&self.own, into.chunk() + to, bytes), (peer, step.chunk() + offset, read), streams);
    }

    /// Publishes the second part of a step, written after the first.
    #[inline]
    pub fn publish_second(&mut self, step: Step) {
        self.fence();
        self.own.word(step.control() + SECOND_AT).store(step.0, Ordering::Release);
        self.is_quiet = false;
    }

    /// Whether the rank at `place` has published the second part of the step.
    ///
    /// # Errors
    /// As [`published`](Self::published).
    #[inline]
    pub fn has_second(&self, place: usize, step: Step) -> Result<bool> {
        let found = self.peer(place).load(step.control() + SECOND_AT);
        if found > step.0 { Err(self.step_error(place, found, step)) } else { Ok(found == step.0) }
    }

    /// Says that this rank has finished the steps up to this one: it no longer reads them.
    #[inline]
    pub fn acknowledge(&mut self, step: Step) {
        self.own.word(FINISHED_AT).store(step.0, Ordering::Release);
        self.is_quiet = false;
    }

    /// Notes that the rank at `place` has finished all steps before `step`, which saves a load.
    #[inline]
    pub fn has_come_to(&mut self, place: usize, step: Step) {
        let finished = &mut self.finished[place];
        *finished = (*finished).max(step.0 - 1);
    }

    /// Wakes the ranks that sleep if anything was published since the last call. Costs a fence, so call it
    /// when there is nothing else to do.
    #[inline]
    pub fn wake(&mut self) {
        if !std::mem::replace(&mut self.is_quiet, true) {
            self.local_group.wake_all();
        }
    }

    /// Prefetches the line in which the next step will be published, which peers have read.
    #[inline]
    pub fn prepare_next(&self) {
        blocks::prefetch_to_write(&self.own, self.next_step().control(), 2 * LINE_BYTES);
    }

    /// Makes all pages of this rank's slots, so that the first writes take no longer than later ones.
    #[cold]
    fn touch(&mut self) {
        self.is_touched = true;
        for at in (CHUNKS_AT..CHUNKS_AT + DEPTH as usize * CHUNK_BYTES).step_by(PAGE_BYTES) {
            let word = self.own.word(at);
            word.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts bytes put into a slot. Only this rank stores here, so nothing is lost between load and store.
    #[inline]
    fn count(&self, bytes: usize) {
        self.written.store(self.written.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    /// Orders what was written to slots before what is stored next.
    #[inline]
    fn fence(&mut self) {
        if std::mem::take(&mut self.is_unfenced) {
            blocks::fence();
        }
    }

    #[inline]
    fn peer(&self, place: usize) -> &PeerArea {
        match &self.peers[place] {
            Some(peer) => peer,
            None => panic!("a rank reads its own slots"),
        }
    }

    #[cold]
    fn step_error(&self, place: usize, found: u64, step: Step) -> Error {
        Error::Protocol {
            rank: self.rank_at(place),
            what: format!("a slot of step {found}, expected {}", step.0),
        }
    }
}

#[inline]
fn check_inline(bytes: usize) {
    assert!(bytes <= INLINE_BYTES, "{bytes} bytes in a line, expected at most {INLINE_BYTES}");
}

fn check_chunk(offset: usize, bytes: usize) {
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= CHUNK_BYTES);
    assert!(fits, "{bytes} bytes at {offset} of a slot of {CHUNK_BYTES}");
}
