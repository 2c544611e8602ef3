//! The local group: the ranks of one host and what they share.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::copying;
use super::layout::{Layout, MAX_LOCAL_PEERS, SLEEP_AT};
use super::process::{Process, why_unreadable};
use super::segment::{OwnSegment, PeerSegment, peer_channel};
use super::wake_receiver::{WakeReceiver, WakeSender};
use crate::{Error, Rank, Result};

/// The local group: the ranks of this host, their segments, and the channels between this rank and each
/// other.
///
/// Ranks of the host are numbered by *places*, from 0, in the order of ranks.
///
/// **Sleeping.** A rank that is about to sleep calls [`begin_sleep`](Self::begin_sleep), *then* polls
/// segments and channels once more, and then waits for [`wake_receiver`](Self::wake_receiver) to be readable.
/// A rank that has published something calls [`wake`](Self::wake). No wake-up is lost: both have a full fence
/// between their store and their load, so either the sleeper sees what was published or the publisher sees
/// that it sleeps. A wake-up stays pending until [`hear`](Self::hear) discards it; the caller must then poll
/// *everything* that peers send wake-ups for, messages and slots.
pub struct LocalGroup {
    ranks: Box<[Rank]>,
    own_place: usize,
    layout: Layout,
    segment: OwnSegment,
    wake_receiver: WakeReceiver,
    sleep: OwnArea,
    local_peers: Box<[Option<LocalPeer>]>,
}

/// What another local rank has given to this one.
struct LocalPeer {
    segment: PeerSegment,
    own_channel: OwnArea,
    peer_channel: PeerArea,
    wake_sender: WakeSender,
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
    wake_receiver: WakeReceiver,
    /// By place; `None` at its own.
    channels: Box<[Option<OwnSegment>]>,
}

/// What a local peer has given to this rank.
pub(crate) struct PassedDescriptors {
    /// Its segment, its channel for this rank, and its wake sender.
    pub(crate) descriptors: [OwnedFd; PASSED],
    /// Its process, as the kernel reports it; `None` if it is not visible from here.
    pub(crate) process: Option<i32>,
}

/// Descriptors that a rank gives to a local peer.
pub(crate) const PASSED: usize = 3;

impl LocalGroup {
    /// The most ranks of one host that share memory.
    pub const MAX_RANKS: usize = MAX_LOCAL_PEERS;

    /// Makes what `own` gives to the other `ranks` of its host, which rise and contain it.
    ///
    /// # Errors
    /// As [`OwnSegment::new`] and [`WakeReceiver::new`].
    pub(crate) fn prepare(own: Rank, ranks: &[Rank]) -> Result<Prepared> {
        let layout = Layout::new(ranks.len());
        let channel = |rank: &Rank| (*rank != own).then(|| OwnSegment::new_channel(layout)).transpose();
        let channels = ranks.iter().map(channel).collect::<Result<_>>()?;
        Ok(Prepared {
            own,
            ranks: ranks.into(),
            segment: OwnSegment::new(own, layout)?,
            wake_receiver: WakeReceiver::new()?,
            channels,
        })
    }

    /// Builds the local group from what was prepared and what each peer has given.
    ///
    /// # Errors
    /// As [`PeerSegment::new`]; [`Error::Protocol`] for a wrong wake sender; [`Error::Unavailable`] when a
    /// peer's descriptors are missing.
    pub(crate) fn new(prepared: Prepared, gifts: Vec<(Rank, PassedDescriptors)>) -> Result<Self> {
        let Prepared { own, ranks, segment, wake_receiver, channels } = prepared;
        let layout = Layout::new(ranks.len());
        let missing = |rank: Rank| missing(own, rank);
        let own_place = ranks.binary_search(&own).map_err(|_| missing(own))?;
        let mut local_peers: Vec<Option<LocalPeer>> = ranks.iter().map(|_| None).collect();
        for (rank, passed) in gifts {
            let place = ranks.binary_search(&rank).map_err(|_| missing(rank))?;
            let channel = channels.get(place).and_then(Option::as_ref).ok_or_else(|| missing(rank))?;
            local_peers[place] = Some(LocalPeer::new(rank, passed, channel, layout)?);
        }
        if let Some(place) =
            (0..ranks.len()).find(|&place| place != own_place && local_peers[place].is_none())
        {
            return Err(missing(ranks[place]));
        }
        let sleep = segment.area(SLEEP_AT..SLEEP_AT + LINE_BYTES);
        Ok(Self { ranks, own_place, layout, segment, wake_receiver, sleep, local_peers: local_peers.into() })
    }

    /// The local groups of `world_size` ranks that are threads of this process, in the order of ranks.
    ///
    /// # Errors
    /// As [`OwnSegment::new`] and [`WakeReceiver::new`]; [`Error::Unavailable`] for more than
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
            let passed = |prepared: &Prepared| Ok((prepared.own, prepared.copy_for(own, own_process)?));
            others.map(passed).collect::<Result<Vec<_>>>()
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

    /// The slots of a set that this rank writes.
    ///
    /// # Panics
    /// As [`Layout::slots`].
    #[must_use]
    pub fn own_slots(&self, set: usize) -> OwnArea {
        self.segment.area(self.layout.slots(set))
    }

    /// The slots of a set that the rank at `place` writes; `None` at this rank's own place, or outside the
    /// group.
    ///
    /// # Panics
    /// As [`Layout::slots`].
    #[must_use]
    pub fn peer_slots(&self, place: usize, set: usize) -> Option<PeerArea> {
        Some(self.local_peer(place)?.segment.area(self.layout.slots(set)))
    }

    /// The channel that this rank writes for the rank at `place`; `None` at this rank's own place, or outside
    /// the group.
    #[must_use]
    pub fn own_channel(&self, place: usize) -> Option<OwnArea> {
        Some(self.local_peer(place)?.own_channel.clone())
    }

    /// The channel that the rank at `place` writes for this rank; `None` likewise.
    #[must_use]
    pub fn peer_channel(&self, place: usize) -> Option<PeerArea> {
        Some(self.local_peer(place)?.peer_channel.clone())
    }

    /// Whether the system lets this rank read the memory of the rank at `place`.
    #[must_use]
    pub fn can_read(&self, place: usize) -> bool {
        self.local_peer(place).is_some_and(|local_peer| local_peer.process.is_some())
    }

    /// Copies from the memory of the rank at `place`: `spans` (address and bytes) to `into`, which must have
    /// as many bytes in total. Returns whether all could be read. The caller must check afterwards whether
    /// the bytes were still valid.
    #[must_use]
    pub fn read_memory(&self, place: usize, spans: [(usize, usize); 3], into: &mut [IoSliceMut<'_>]) -> bool {
        let process = self.local_peer(place).and_then(|local_peer| local_peer.process.as_ref());
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
        if let Some(local_peer) = self.local_peer(place) {
            local_peer.wake();
        }
    }

    /// [`wake`](Self::wake)s all local peers that sleep, with one fence for all.
    #[inline]
    pub fn wake_all(&self) {
        copying::full_fence();
        self.local_peers.iter().flatten().for_each(LocalPeer::wake);
    }

    /// Discards pending wake-ups; call it before polling. Costs a system call.
    pub fn hear(&self) {
        self.wake_receiver.hear();
    }

    /// Readable while a wake-up is pending.
    #[must_use]
    pub fn wake_receiver(&self) -> BorrowedFd<'_> {
        self.wake_receiver.as_fd()
    }

    #[inline]
    fn local_peer(&self, place: usize) -> Option<&LocalPeer> {
        self.local_peers.get(place)?.as_ref()
    }
}

impl LocalPeer {
    /// Sends a wake-up unless this sleep had one. The caller has made a full fence.
    #[inline]
    fn wake(&self) {
        let sleep = self.sleep.load(0);
        if sleep != self.woken.load(Ordering::Relaxed) {
            self.woken.store(sleep, Ordering::Relaxed);
            self.wake_sender.ring();
        }
    }

    fn new(rank: Rank, passed: PassedDescriptors, channel: &OwnSegment, layout: Layout) -> Result<Self> {
        let [segment, theirs, wake_sender] = passed.descriptors;
        let segment = PeerSegment::new(rank, &segment, layout)?;
        let (own_channel, peer_channel) =
            (channel.area(0..layout.channel_bytes()), peer_channel(rank, &theirs, layout)?);
        let sleep = segment.area(SLEEP_AT..SLEEP_AT + LINE_BYTES);
        let process = passed.process.and_then(|number| Process::probe(number, &segment));
        if process.is_none() {
            let why =
                why_unreadable().unwrap_or_else(|| "its process is not visible or not traceable".into());
            tracing::debug!(%rank, why, "can't read a local peer's memory: long messages are copied twice");
        }
        let wake_sender = WakeSender::received(rank, wake_sender)?;
        Ok(Self { segment, own_channel, peer_channel, wake_sender, sleep, process, woken: AtomicU64::new(0) })
    }
}

impl Prepared {
    /// The descriptors for `rank`, in the order of [`PassedDescriptors`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] when that is no local peer.
    pub(crate) fn passed(&self, rank: Rank) -> Result<[BorrowedFd<'_>; PASSED]> {
        let place = self.ranks.binary_search(&rank).ok();
        let channel = place
            .and_then(|place| self.channels.get(place)?.as_ref())
            .ok_or_else(|| missing(rank, self.own))?;
        Ok([self.segment.descriptor(), channel.descriptor(), self.wake_receiver.wake_sender()])
    }

    fn copy_for(&self, rank: Rank, process: Option<i32>) -> Result<PassedDescriptors> {
        let copy = |descriptor: BorrowedFd<'_>| {
            descriptor.try_clone_to_owned().map_err(|error| Error::system("can't copy a descriptor", error))
        };
        let [segment, channel, wake_sender] = self.passed(rank)?;
        Ok(PassedDescriptors { descriptors: [copy(segment)?, copy(channel)?, copy(wake_sender)?], process })
    }
}

fn missing(own: Rank, rank: Rank) -> Error {
    Error::Unavailable { name: "shared memory", why: format!("rank {rank} has given none to rank {own}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_woken(local_group: &LocalGroup) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(local_group.wake_receiver(), PollFlags::IN)], Some(&now)).unwrap()
            > 0
    }

    #[test]
    fn what_a_rank_writes_its_peers_read() {
        let world = LocalGroup::in_process(3).unwrap();
        for (place, local_group) in world.iter().enumerate() {
            assert_eq!(
                (local_group.own_place(), local_group.place_of(Rank(place as u32))),
                (place, Some(place))
            );
            assert!(local_group.peer_slots(place, 0).is_none() && local_group.own_channel(place).is_none());
            assert!(local_group.peer_slots(3, 0).is_none() && local_group.place_of(Rank(3)).is_none());
            let slots = local_group.own_slots(0);
            slots.write(64, &[place as u8; 100]);
            slots.stream(4096, &[place as u8 + 10; 1000]);
            slots.word(0).store(place as u64 + 1, Ordering::Release);
            for peer in (0..3).filter(|peer| *peer != place) {
                local_group
                    .own_channel(peer)
                    .unwrap()
                    .word(8)
                    .store((10 * place + peer) as u64, Ordering::Release);
            }
        }
        for (own, local_group) in world.iter().enumerate() {
            for peer in (0..3).filter(|peer| *peer != own) {
                let slots = local_group.peer_slots(peer, 0).unwrap();
                assert_eq!((slots.load(0), slots.bytes()), (peer as u64 + 1, super::super::SLOTS_BYTES));
                let mut bytes = [0; 100];
                slots.read(64, &mut bytes);
                assert_eq!(bytes, [peer as u8; 100]);
                let mut bytes = [0; 1000];
                slots.area(4096..8192).read(0, &mut bytes);
                assert_eq!(bytes, [peer as u8 + 10; 1000]);
                assert_eq!(local_group.peer_channel(peer).unwrap().load(8), (10 * peer + own) as u64);
            }
        }
    }

    #[test]
    fn a_sleeper_gets_one_wake_up_from_each_peer() {
        let world = LocalGroup::in_process(3).unwrap();
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
        let world = LocalGroup::in_process(2).unwrap();
        let play = |own: usize| {
            let (local_group, peer) = (&world[own], 1 - own);
            let (mine, theirs) = (local_group.own_slots(0), local_group.peer_slots(peer, 0).unwrap());
            for turn in 1..=TURNS {
                if own == 0 {
                    mine.word(0).store(turn, Ordering::Release);
                    local_group.wake(peer);
                }
                while theirs.load(0) < turn {
                    local_group.hear();
                    local_group.begin_sleep();
                    if theirs.load(0) < turn {
                        let longest = Timespec { tv_sec: 20, tv_nsec: 0 };
                        let fds = &mut [PollFd::from_borrowed_fd(local_group.wake_receiver(), PollFlags::IN)];
                        assert!(
                            poll(fds, Some(&longest)).unwrap() > 0,
                            "rank {own} was not woken in turn {turn}"
                        );
                    }
                }
                if own == 1 {
                    mine.word(0).store(turn, Ordering::Release);
                    local_group.wake(peer);
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
        let prepared = LocalGroup::prepare(Rank(0), &[Rank(0), Rank(4)]).unwrap();
        assert!(
            prepared.passed(Rank(0)).is_err()
                && prepared.passed(Rank(1)).is_err()
                && prepared.passed(Rank(4)).is_ok()
        );
        let error = LocalGroup::new(prepared, Vec::new()).err().unwrap();
        assert!(error.to_string().contains("rank 4 has given none to rank 0"), "{error}");
        assert!(LocalGroup::in_process(257).is_err());
    }
}
