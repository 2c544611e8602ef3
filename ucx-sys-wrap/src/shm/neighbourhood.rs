//! The local group: the ranks of one host and what they share.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::bell::{Bell, Cord};
use super::copying;
use super::layout::{Layout, MAX_NEIGHBOURS, SLEEP_AT};
use super::process::{Process, why_unreadable};
use super::segment::{OwnSegment, PeerSegment, peer_channel};
use crate::{Error, Rank, Result};

/// The local group: the ranks of this host, their segments, and the channels between this rank and each
/// other.
///
/// Ranks of the host are numbered by *places*, from 0, in the order of ranks.
///
/// **Sleeping.** A rank that is about to sleep calls [`begin_sleep`](Self::begin_sleep), *then* polls
/// segments and channels once more, and then waits for [`bell`](Self::bell) to be readable. A rank that has
/// published something calls [`wake`](Self::wake). No wake-up is lost: both have a full fence between their
/// store and their load, so either the sleeper sees what was published or the publisher sees that it sleeps.
/// A wake-up stays pending until [`hear`](Self::hear) discards it; the caller must then poll *everything*
/// that peers send wake-ups for, messages and slots.
pub struct Neighbourhood {
    ranks: Box<[Rank]>,
    own_place: usize,
    layout: Layout,
    segment: OwnSegment,
    bell: Bell,
    sleep: OwnArea,
    neighbours: Box<[Option<Neighbour>]>,
}

/// What another local rank has given to this one.
struct Neighbour {
    segment: PeerSegment,
    own_channel: OwnArea,
    peer_channel: PeerArea,
    cord: Cord,
    sleep: PeerArea,
    /// Its process, if this rank can read its memory.
    process: Option<Process>,
    /// The last value of its sleep word for which this rank sent a wake-up.
    woken: AtomicU64,
}

/// What a rank has made for its local peers.
pub(crate) struct Prepared {
    own: Rank,
    ranks: Box<[Rank]>,
    segment: OwnSegment,
    bell: Bell,
    /// By place; `None` at its own.
    channels: Box<[Option<OwnSegment>]>,
}

/// What a local peer has given to this rank.
pub(crate) struct Gift {
    /// Its segment, its channel for this rank, and its wake sender.
    pub(crate) descriptors: [OwnedFd; GIVEN],
    /// Its process, as the kernel reports it; `None` if it is not visible from here.
    pub(crate) process: Option<i32>,
}

/// Descriptors that a rank gives to a local peer.
pub(crate) const GIVEN: usize = 3;

impl Neighbourhood {
    /// The most ranks of one host that share memory.
    pub const MAX_RANKS: usize = MAX_NEIGHBOURS;

    /// Makes what `own` gives to the other `ranks` of its host, which rise and contain it.
    ///
    /// # Errors
    /// As [`OwnSegment::new`] and [`Bell::new`].
    pub(crate) fn prepare(own: Rank, ranks: &[Rank]) -> Result<Prepared> {
        let layout = Layout::new(ranks.len());
        let channel = |rank: &Rank| (*rank != own).then(|| OwnSegment::new_channel(layout)).transpose();
        let channels = ranks.iter().map(channel).collect::<Result<_>>()?;
        Ok(Prepared {
            own,
            ranks: ranks.into(),
            segment: OwnSegment::new(own, layout)?,
            bell: Bell::new()?,
            channels,
        })
    }

    /// Builds the local group from what was prepared and what each peer has given.
    ///
    /// # Errors
    /// As [`PeerSegment::new`]; [`Error::Protocol`] for a wrong wake sender; [`Error::Unavailable`] when a
    /// peer's descriptors are missing.
    pub(crate) fn new(prepared: Prepared, gifts: Vec<(Rank, Gift)>) -> Result<Self> {
        let Prepared { own, ranks, segment, bell, channels } = prepared;
        let layout = Layout::new(ranks.len());
        let missing = |rank: Rank| missing(own, rank);
        let own_place = ranks.binary_search(&own).map_err(|_| missing(own))?;
        let mut neighbours: Vec<Option<Neighbour>> = ranks.iter().map(|_| None).collect();
        for (rank, gift) in gifts {
            let place = ranks.binary_search(&rank).map_err(|_| missing(rank))?;
            let channel = channels.get(place).and_then(Option::as_ref).ok_or_else(|| missing(rank))?;
            neighbours[place] = Some(Neighbour::new(rank, gift, channel, layout)?);
        }
        if let Some(place) = (0..ranks.len()).find(|&place| place != own_place && neighbours[place].is_none())
        {
            return Err(missing(ranks[place]));
        }
        let sleep = segment.area(SLEEP_AT..SLEEP_AT + LINE_BYTES);
        Ok(Self { ranks, own_place, layout, segment, bell, sleep, neighbours: neighbours.into() })
    }

    /// The local groups of `world_size` ranks that are threads of this process, in the order of ranks.
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

    /// The ranks of this host, rising, this rank included.
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

    /// The layout of segments and channels of this host.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The slots that this rank writes.
    #[must_use]
    pub fn own_slots(&self) -> OwnArea {
        self.segment.area(self.layout.slots())
    }

    /// The slots that the rank at `place` writes; `None` at this rank's own place, or outside the group.
    #[must_use]
    pub fn peer_slots(&self, place: usize) -> Option<PeerArea> {
        Some(self.neighbour(place)?.segment.area(self.layout.slots()))
    }

    /// The channel that this rank writes for the rank at `place`; `None` at this rank's own place, or outside
    /// the group.
    #[must_use]
    pub fn own_channel(&self, place: usize) -> Option<OwnArea> {
        Some(self.neighbour(place)?.own_channel.clone())
    }

    /// The channel that the rank at `place` writes for this rank; `None` likewise.
    #[must_use]
    pub fn peer_channel(&self, place: usize) -> Option<PeerArea> {
        Some(self.neighbour(place)?.peer_channel.clone())
    }

    /// Whether the system lets this rank read the memory of the rank at `place`.
    #[must_use]
    pub fn can_read(&self, place: usize) -> bool {
        self.neighbour(place).is_some_and(|neighbour| neighbour.process.is_some())
    }

    /// Copies from the memory of the rank at `place`: `spans` (address and bytes) to `into`, which must have
    /// as many bytes in total. Returns whether all could be read. The caller must check afterwards whether
    /// the bytes were still valid.
    #[must_use]
    pub fn read_memory(&self, place: usize, spans: [(usize, usize); 3], into: &mut [IoSliceMut<'_>]) -> bool {
        let process = self.neighbour(place).and_then(|neighbour| neighbour.process.as_ref());
        process.is_some_and(|process| process.read(spans, into))
    }

    /// Announces that this rank is about to sleep: each peer that publishes something from now on sends it
    /// one wake-up. Poll once more after this, before sleeping. Costs a fence.
    ///
    /// The end of a sleep needs no call: a rank that is awake gets at worst one needless wake-up from each
    /// peer.
    pub fn begin_sleep(&self) {
        self.sleep.word(0).fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Wakes the rank at `place` if it sleeps, for what was published before. Costs a fence, and a system
    /// call if it sleeps.
    #[inline]
    pub fn wake(&self, place: usize) {
        copying::full_fence();
        if let Some(neighbour) = self.neighbour(place) {
            neighbour.wake();
        }
    }

    /// [`wake`](Self::wake)s all local peers that sleep, with one fence for all.
    #[inline]
    pub fn wake_all(&self) {
        copying::full_fence();
        self.neighbours.iter().flatten().for_each(Neighbour::wake);
    }

    /// Discards pending wake-ups; call it before polling. Costs a system call.
    pub fn hear(&self) {
        self.bell.hear();
    }

    /// Readable while a wake-up is pending.
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
    /// Sends a wake-up unless this sleep had one. The caller has made a full fence.
    #[inline]
    fn wake(&self) {
        let sleep = self.sleep.load(0);
        if sleep != self.woken.load(Ordering::Relaxed) {
            self.woken.store(sleep, Ordering::Relaxed);
            self.cord.ring();
        }
    }

    fn new(rank: Rank, gift: Gift, channel: &OwnSegment, layout: Layout) -> Result<Self> {
        let [segment, theirs, cord] = gift.descriptors;
        let segment = PeerSegment::new(rank, &segment, layout)?;
        let (own_channel, peer_channel) =
            (channel.area(0..layout.channel_bytes()), peer_channel(rank, &theirs, layout)?);
        let sleep = segment.area(SLEEP_AT..SLEEP_AT + LINE_BYTES);
        let process = gift.process.and_then(|number| Process::probe(number, &segment));
        if process.is_none() {
            let why =
                why_unreadable().unwrap_or_else(|| "its process is not visible or not traceable".into());
            tracing::debug!(%rank, why, "can't read a local peer's memory: long messages are copied twice");
        }
        let cord = Cord::received(rank, cord)?;
        Ok(Self { segment, own_channel, peer_channel, cord, sleep, process, woken: AtomicU64::new(0) })
    }
}

impl Prepared {
    /// The descriptors for `rank`, in the order of [`Gift`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] when that is no local peer.
    pub(crate) fn gift(&self, rank: Rank) -> Result<[BorrowedFd<'_>; GIVEN]> {
        let place = self.ranks.binary_search(&rank).ok();
        let channel = place
            .and_then(|place| self.channels.get(place)?.as_ref())
            .ok_or_else(|| missing(rank, self.own))?;
        Ok([self.segment.descriptor(), channel.descriptor(), self.bell.cord()])
    }

    fn copy_for(&self, rank: Rank, process: Option<i32>) -> Result<Gift> {
        let copy = |descriptor: BorrowedFd<'_>| {
            descriptor.try_clone_to_owned().map_err(|error| Error::system("can't copy a descriptor", error))
        };
        let [segment, channel, cord] = self.gift(rank)?;
        Ok(Gift { descriptors: [copy(segment)?, copy(channel)?, copy(cord)?], process })
    }
}

fn missing(own: Rank, rank: Rank) -> Error {
    Error::Unavailable { name: "shared memory", why: format!("rank {rank} has given none to rank {own}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_woken(neighbourhood: &Neighbourhood) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(neighbourhood.bell(), PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn what_a_rank_writes_its_peers_read() {
        let world = Neighbourhood::in_process(3).unwrap();
        for (place, neighbourhood) in world.iter().enumerate() {
            assert_eq!(
                (neighbourhood.own_place(), neighbourhood.place_of(Rank(place as u32))),
                (place, Some(place))
            );
            assert!(neighbourhood.peer_slots(place).is_none() && neighbourhood.own_channel(place).is_none());
            assert!(neighbourhood.peer_slots(3).is_none() && neighbourhood.place_of(Rank(3)).is_none());
            let slots = neighbourhood.own_slots();
            slots.write(64, &[place as u8; 100]);
            slots.stream(4096, &[place as u8 + 10; 1000]);
            slots.word(0).store(place as u64 + 1, Ordering::Release);
            for peer in (0..3).filter(|peer| *peer != place) {
                neighbourhood
                    .own_channel(peer)
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
                assert_eq!(neighbourhood.peer_channel(peer).unwrap().load(8), (10 * peer + own) as u64);
            }
        }
    }

    #[test]
    fn a_sleeper_gets_one_wake_up_from_each_peer() {
        let world = Neighbourhood::in_process(3).unwrap();
        world[0].wake(1);
        assert!(!is_woken(&world[1]), "nobody sleeps");
        for _ in 0..2 {
            world[1].begin_sleep();
            world[0].wake(1);
            assert!(is_woken(&world[1]));
            world[1].hear();
            world[0].wake(1);
            assert!(!is_woken(&world[1]), "once is enough");
            world[2].wake(1);
            assert!(is_woken(&world[1]), "one from each peer");
            world[1].begin_sleep();
            assert!(is_woken(&world[1]), "a wake-up stays until it is discarded");
            world[1].hear();
            assert!(!is_woken(&world[1]));
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
    fn missing_descriptors_are_named() {
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
