//! The ranks of one host and what they share.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::bell::{Bell, Cord};
use super::copying;
use super::layout::{Layout, MAX_NEIGHBOURS, SLEEP_AT};
use super::process::{Process, why_unreadable};
use super::segment::{OwnBlock, OwnSegment, PeerSegment, peer_block};
use crate::{Error, Rank, Result};

/// The ranks of this rank's host, its own segment and the segments of the others, and a block each way
/// between it and each of them.
///
/// Ranks of the host are numbered by *places*, from 0, in the order of ranks.
///
/// **Sleeping.** A rank that is about to sleep calls [`begin_sleep`](Self::begin_sleep), *then* looks once
/// more for news in its neighbours' segments and blocks, and then waits for [`bell`](Self::bell) to be
/// readable. A rank that has published something calls [`wake`](Self::wake). Between them no wake-up is lost:
/// both have a full fence between their store and their load, so that either the sleeper sees the news or the
/// publisher sees that it sleeps. A ring stays until somebody [`hear`](Self::hear)s it, who then looks at
/// *all* that neighbours ring for, messages and slots: whoever looks only at a part of it must leave the ring
/// to the others.
pub struct Neighbourhood {
    ranks: Box<[Rank]>,
    own_place: usize,
    layout: Layout,
    segment: OwnSegment,
    bell: Bell,
    sleep: OwnArea,
    neighbours: Box<[Option<Neighbour>]>,
}

/// What another rank of the host has given to this one.
struct Neighbour {
    segment: PeerSegment,
    own_block: OwnArea,
    peer_block: PeerArea,
    cord: Cord,
    sleep: PeerArea,
    /// Its process, if this one can read its memory.
    process: Option<Process>,
    /// Which of its sleeps this rank has ended.
    woken: AtomicU64,
}

/// What a rank has made for its neighbours.
pub(crate) struct Prepared {
    own: Rank,
    ranks: Box<[Rank]>,
    segment: OwnSegment,
    bell: Bell,
    /// By place; none for itself.
    blocks: Box<[Option<OwnBlock>]>,
}

/// What a rank has been given by a neighbour.
pub(crate) struct Gift {
    /// Its segment, its block for this rank, and what its bell is rung by.
    pub(crate) descriptors: [OwnedFd; GIVEN],
    /// The process that gave it, by the word of the kernel; `None` if it is not visible from here.
    pub(crate) process: Option<i32>,
}

/// Descriptors that a rank gives to a neighbour.
pub(crate) const GIVEN: usize = 3;

impl Neighbourhood {
    /// The most ranks of one host that share memory.
    pub const MAX_RANKS: usize = MAX_NEIGHBOURS;

    /// What `own` gives to the other `ranks` of its host, which rise and contain it.
    ///
    /// # Errors
    /// As [`OwnSegment::new`] and [`Bell::new`].
    pub(crate) fn prepare(own: Rank, ranks: &[Rank]) -> Result<Prepared> {
        let layout = Layout::new(ranks.len());
        let block = |rank: &Rank| (*rank != own).then(|| OwnBlock::new(layout)).transpose();
        let blocks = ranks.iter().map(block).collect::<Result<_>>()?;
        Ok(Prepared {
            own,
            ranks: ranks.into(),
            segment: OwnSegment::new(own, layout)?,
            bell: Bell::new()?,
            blocks,
        })
    }

    /// Puts together what was prepared and what the neighbours have given, one gift of each.
    ///
    /// # Errors
    /// As [`PeerSegment::new`]; [`Error::Protocol`] when what it was given is no cord of a bell;
    /// [`Error::Unavailable`] when a gift is missing.
    pub(crate) fn new(prepared: Prepared, gifts: Vec<(Rank, Gift)>) -> Result<Self> {
        let Prepared { own, ranks, segment, bell, blocks } = prepared;
        let layout = Layout::new(ranks.len());
        let missing = |rank: Rank| missing(own, rank);
        let own_place = ranks.binary_search(&own).map_err(|_| missing(own))?;
        let mut neighbours: Vec<Option<Neighbour>> = ranks.iter().map(|_| None).collect();
        for (rank, gift) in gifts {
            let place = ranks.binary_search(&rank).map_err(|_| missing(rank))?;
            let block = blocks.get(place).and_then(Option::as_ref).ok_or_else(|| missing(rank))?;
            neighbours[place] = Some(Neighbour::new(rank, gift, block, layout)?);
        }
        if let Some(place) = (0..ranks.len()).find(|&place| place != own_place && neighbours[place].is_none())
        {
            return Err(missing(ranks[place]));
        }
        let sleep = segment.area(SLEEP_AT..SLEEP_AT + LINE_BYTES);
        Ok(Self { ranks, own_place, layout, segment, bell, sleep, neighbours: neighbours.into() })
    }

    /// The neighbourhoods of `world_size` ranks that are threads of this process, in the order of ranks.
    ///
    /// # Errors
    /// As [`OwnSegment::new`] and [`Bell::new`]; [`Error::Unavailable`] for more than
    /// [`MAX_RANKS`](Self::MAX_RANKS).
    pub fn in_process(world_size: u32) -> Result<Vec<Arc<Self>>> {
        if world_size as usize > Self::MAX_RANKS {
            let why = format!("{world_size} ranks, expected at most {}", Self::MAX_RANKS);
            return Err(Error::Unavailable { name: "shared memory", why });
        }
        let ranks: Vec<Rank> = Rank::all(world_size).collect();
        let prepare = |&rank: &Rank| Self::prepare(rank, &ranks);
        let prepared = ranks.iter().map(prepare).collect::<Result<Vec<_>>>()?;
        let own_process = i32::try_from(std::process::id()).ok();
        let gifts_for = |own: Rank| {
            let others = prepared.iter().filter(move |prepared| prepared.own != own);
            let gift = |prepared: &Prepared| Ok((prepared.own, prepared.copy_for(own, own_process)?));
            others.map(gift).collect::<Result<Vec<_>>>()
        };
        let gifts = ranks.iter().map(|own| gifts_for(*own)).collect::<Result<Vec<_>>>()?;
        prepared
            .into_iter()
            .zip(gifts)
            .map(|(prepared, gifts)| Self::new(prepared, gifts).map(Arc::new))
            .collect()
    }

    /// The ranks of this host, rising; this rank is one of them.
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// This rank's place among them.
    #[must_use]
    pub fn own_place(&self) -> usize {
        self.own_place
    }

    /// The place of a rank, if it is on this host.
    #[must_use]
    pub fn place_of(&self, rank: Rank) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    /// Where things lie in every segment and block of this host.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The slots that this rank writes.
    #[must_use]
    pub fn own_slots(&self) -> OwnArea {
        self.segment.area(self.layout.slots())
    }

    /// The slots that the rank at `place` writes; `None` at this rank's own place, or when there is no such
    /// place.
    #[must_use]
    pub fn peer_slots(&self, place: usize) -> Option<PeerArea> {
        Some(self.neighbour(place)?.segment.area(self.layout.slots()))
    }

    /// The block that this rank writes for the rank at `place`; `None` at this rank's own place, or when
    /// there is none.
    #[must_use]
    pub fn own_block(&self, place: usize) -> Option<OwnArea> {
        Some(self.neighbour(place)?.own_block.clone())
    }

    /// The block that the rank at `place` writes for this rank; `None` likewise.
    #[must_use]
    pub fn peer_block(&self, place: usize) -> Option<PeerArea> {
        Some(self.neighbour(place)?.peer_block.clone())
    }

    /// Whether this rank can read the memory of the rank at `place`, by the system's leave.
    #[must_use]
    pub fn can_read(&self, place: usize) -> bool {
        self.neighbour(place).is_some_and(|neighbour| neighbour.process.is_some())
    }

    /// Copies bytes from the memory of the rank at `place`: from all of `spans` (address and bytes) to all of
    /// `into`, which have as many. Says whether all could be read. What is read is what lies there at that
    /// moment, nothing more: whether it still means anything must be asked afterwards.
    #[must_use]
    pub fn read_memory(&self, place: usize, spans: [(usize, usize); 3], into: &mut [IoSliceMut<'_>]) -> bool {
        let process = self.neighbour(place).and_then(|neighbour| neighbour.process.as_ref());
        process.is_some_and(|process| process.read(spans, into))
    }

    /// Says that this rank is about to sleep: neighbours that publish something from now on ring its bell,
    /// once each. Look for news once more after this, and before sleeping. Earlier rings stay. Costs a fence.
    ///
    /// There is no end of a sleep to be told: who is awake is at worst rung once more by each neighbour.
    pub fn begin_sleep(&self) {
        self.sleep.word(0).fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Wakes the rank at `place` if it sleeps, for news that were published before this. Costs a fence, and a
    /// system call where it sleeps.
    #[inline]
    pub fn wake(&self, place: usize) {
        copying::full_fence();
        if let Some(neighbour) = self.neighbour(place) {
            neighbour.wake();
        }
    }

    /// [`wake`](Self::wake)s all neighbours that sleep. Costs one fence for all.
    #[inline]
    pub fn wake_all(&self) {
        copying::full_fence();
        self.neighbours.iter().flatten().for_each(Neighbour::wake);
    }

    /// Forgets the rings so far, before everything is looked at that they may be for. Costs a system call.
    pub fn hear(&self) {
        self.bell.hear();
    }

    /// Readable once this rank was rung, until that is heard.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    #[inline]
    fn neighbour(&self, place: usize) -> Option<&Neighbour> {
        self.neighbours.get(place)?.as_ref()
    }
}

impl Neighbour {
    /// Rings unless it has been for this sleep; after a fence.
    #[inline]
    fn wake(&self) {
        let sleep = self.sleep.load(0);
        if sleep != self.woken.load(Ordering::Relaxed) {
            self.woken.store(sleep, Ordering::Relaxed);
            self.cord.ring();
        }
    }

    fn new(rank: Rank, gift: Gift, block: &OwnBlock, layout: Layout) -> Result<Self> {
        let [segment, theirs, cord] = gift.descriptors;
        let segment = PeerSegment::new(rank, &segment, layout)?;
        let (own_block, peer_block) = (block.area(), peer_block(rank, &theirs, layout)?);
        let sleep = segment.area(SLEEP_AT..SLEEP_AT + LINE_BYTES);
        let process = gift.process.and_then(|number| Process::probe(number, &segment));
        if process.is_none() {
            let why =
                why_unreadable().unwrap_or_else(|| "its process is not visible or not traceable".into());
            tracing::debug!(%rank, why, "a neighbour's memory can't be read: long messages are copied twice");
        }
        let cord = Cord::received(rank, cord)?;
        Ok(Self { segment, own_block, peer_block, cord, sleep, process, woken: AtomicU64::new(0) })
    }
}

impl Prepared {
    /// The descriptors that are for `rank`, as in [`Gift`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] when that is no neighbour.
    pub(crate) fn gift(&self, rank: Rank) -> Result<[BorrowedFd<'_>; GIVEN]> {
        let place = self.ranks.binary_search(&rank).ok();
        let block = place
            .and_then(|place| self.blocks.get(place)?.as_ref())
            .ok_or_else(|| missing(rank, self.own))?;
        Ok([self.segment.descriptor(), block.descriptor(), self.bell.cord()])
    }

    /// The gift for a rank of this process.
    fn copy_for(&self, rank: Rank, process: Option<i32>) -> Result<Gift> {
        let copy = |descriptor: BorrowedFd<'_>| {
            descriptor.try_clone_to_owned().map_err(|error| Error::system("can't copy a descriptor", error))
        };
        let [segment, block, cord] = self.gift(rank)?;
        Ok(Gift { descriptors: [copy(segment)?, copy(block)?, copy(cord)?], process })
    }
}

fn missing(own: Rank, rank: Rank) -> Error {
    Error::Unavailable { name: "shared memory", why: format!("rank {rank} has given none to rank {own}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_rung(neighbourhood: &Neighbourhood) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(neighbourhood.bell(), PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn what_one_writes_the_others_read() {
        let world = Neighbourhood::in_process(3).unwrap();
        for (place, neighbourhood) in world.iter().enumerate() {
            assert_eq!(
                (neighbourhood.own_place(), neighbourhood.place_of(Rank(place as u32))),
                (place, Some(place))
            );
            assert!(neighbourhood.peer_slots(place).is_none() && neighbourhood.own_block(place).is_none());
            assert!(neighbourhood.peer_slots(3).is_none() && neighbourhood.place_of(Rank(3)).is_none());
            let slots = neighbourhood.own_slots();
            slots.write(64, &[place as u8; 100]);
            slots.stream(4096, &[place as u8 + 10; 1000]);
            slots.word(0).store(place as u64 + 1, Ordering::Release);
            for peer in (0..3).filter(|peer| *peer != place) {
                neighbourhood
                    .own_block(peer)
                    .unwrap()
                    .word(8)
                    .store((10 * place + peer) as u64, Ordering::Release);
            }
        }
        for (own, neighbourhood) in world.iter().enumerate() {
            for peer in (0..3).filter(|peer| *peer != own) {
                let slots = neighbourhood.peer_slots(peer).unwrap();
                assert_eq!((slots.load(0), slots.bytes()), (peer as u64 + 1, super::super::SLOTS_BYTES));
                let mut bytes = [0; 100];
                slots.read(64, &mut bytes);
                assert_eq!(bytes, [peer as u8; 100]);
                let mut bytes = [0; 1000];
                slots.area(4096..8192).read(0, &mut bytes);
                assert_eq!(bytes, [peer as u8 + 10; 1000]);
                assert_eq!(neighbourhood.peer_block(peer).unwrap().load(8), (10 * peer + own) as u64);
            }
        }
    }

    #[test]
    fn a_sleeper_is_rung_once_by_each() {
        let world = Neighbourhood::in_process(3).unwrap();
        world[0].wake(1);
        assert!(!is_rung(&world[1]), "nobody sleeps");
        for _ in 0..2 {
            world[1].begin_sleep();
            world[0].wake(1);
            assert!(is_rung(&world[1]));
            world[1].hear();
            world[0].wake(1);
            assert!(!is_rung(&world[1]), "once is enough");
            world[2].wake(1);
            assert!(is_rung(&world[1]), "each on its own account");
            world[1].begin_sleep();
            assert!(is_rung(&world[1]), "a ring stays until it is heard");
            world[1].hear();
            assert!(!is_rung(&world[1]));
        }
    }

    /// Two threads take turns, and each sleeps until the other has published: a lost wake-up would hang them.
    #[test]
    fn no_wake_up_is_lost() {
        const TURNS: u64 = 20_000;
        let world = Neighbourhood::in_process(2).unwrap();
        let play = |own: usize| {
            let (neighbourhood, peer) = (&world[own], 1 - own);
            let (mine, theirs) = (neighbourhood.own_slots(), neighbourhood.peer_slots(peer).unwrap());
            for turn in 1..=TURNS {
                if own == 0 {
                    mine.word(0).store(turn, Ordering::Release);
                    neighbourhood.wake(peer);
                }
                while theirs.load(0) < turn {
                    neighbourhood.hear();
                    neighbourhood.begin_sleep();
                    if theirs.load(0) < turn {
                        let longest = Timespec { tv_sec: 20, tv_nsec: 0 };
                        let fds = &mut [PollFd::from_borrowed_fd(neighbourhood.bell(), PollFlags::IN)];
                        assert!(
                            poll(fds, Some(&longest)).unwrap() > 0,
                            "rank {own} was not woken in turn {turn}"
                        );
                    }
                }
                if own == 1 {
                    mine.word(0).store(turn, Ordering::Release);
                    neighbourhood.wake(peer);
                }
            }
        };
        std::thread::scope(|scope| {
            [0, 1]
                .map(|rank| scope.spawn(move || play(rank)))
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn missing_gifts_are_named() {
        let prepared = Neighbourhood::prepare(Rank(0), &[Rank(0), Rank(4)]).unwrap();
        assert!(
            prepared.gift(Rank(0)).is_err()
                && prepared.gift(Rank(1)).is_err()
                && prepared.gift(Rank(4)).is_ok()
        );
        let error = Neighbourhood::new(prepared, Vec::new()).err().unwrap();
        assert!(error.to_string().contains("rank 4 has given none to rank 0"), "{error}");
        assert!(Neighbourhood::in_process(257).is_err());
    }
}
