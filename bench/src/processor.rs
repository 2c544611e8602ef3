//! Pins each rank to a processor.
//!
//! Two processes that have just been woken may share a processor until the system moves one of them, which
//! takes longer than a slice. So every measured process of both sides is pinned to a processor, if there are
//! enough. If ranks outnumber processors, the assignment matters more than anything else: then the conductor
//! decides it, by the same rule for both sides.

use std::os::fd::AsFd;

use rustix::net::sockopt::socket_peercred;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The placement of ranks that outnumber their two processors. Ranks 2i and 2i+1 are a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The two of a pair on different processors, with as many ranks on one as on the other.
    Apart,
    /// The two of a pair on one processor, with as many pairs on one as on the other.
    Together,
    /// Where the system puts them.
    Free,
}

impl Placement {
    /// All placements.
    pub const ALL: [Self; 3] = [Self::Apart, Self::Together, Self::Free];

    /// Whether a rank may run on each of the two processors.
    fn allows(self, rank: usize) -> [bool; 2] {
        let of = |number: usize| [number.is_multiple_of(2), !number.is_multiple_of(2)];
        match self {
            Self::Apart => of(rank),
            Self::Together => of(rank / 2),
            Self::Free => [true; 2],
        }
    }
}

/// Restricts the calling thread, and everything it starts, to two processors while this value lives.
pub struct TwoProcessors {
    before: CpuSet,
    two: [usize; 2],
}

impl TwoProcessors {
    /// The first two of the allowed processors; `None` if there are not two, or if the system refuses.
    #[must_use]
    pub fn hold() -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let &[first, second, ..] = &allowed()[..] else { return None };
        let held = Self { before, two: [first, second] };
        sched_setaffinity(None, &held.set([true; 2])).ok()?;
        Some(held)
    }

    /// Pins the process at the other end of a local socket as `placement` says for its rank.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn place(&self, placement: Placement, rank: usize, socket: impl AsFd) -> std::io::Result<()> {
        let process = socket_peercred(socket)?.pid;
        Ok(sched_setaffinity(Some(process), &self.set(placement.allows(rank)))?)
    }

    fn set(&self, allows: [bool; 2]) -> CpuSet {
        let mut set = CpuSet::new();
        self.two
            .iter()
            .zip(allows)
            .filter(|(_, allows)| *allows)
            .for_each(|(processor, _)| set.set(*processor));
        set
    }
}

impl Drop for TwoProcessors {
    fn drop(&mut self) {
        // On failure, the thread stays on fewer processors than it might use.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// The processors that this process may use, rising.
#[must_use]
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// Pins the calling thread to the processor number `place`, modulo the allowed ones. Does nothing if the
/// system does not allow it: figures spread more then, but are still correct.
pub fn pin(place: usize) {
    let processors = allowed();
    if processors.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    set.set(processors[place % processors.len()]);
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("bench: a process is not kept on its processor: {error}");
    }
}

/// [`pin`] if each of `ranks` ranks has a processor of its own.
pub fn pin_rank(rank: u32, ranks: u32) {
    if ranks as usize <= allowed().len() {
        pin(rank as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_processor() {
        let before = allowed();
        let inside = std::thread::spawn(|| {
            pin(1);
            allowed()
        });
        assert_eq!(inside.join().unwrap(), [before[1 % before.len()]]);
        assert_eq!(allowed(), before);
    }

    #[test]
    fn eight_ranks_are_four_on_each_of_two() {
        let on_first = |placement: Placement| -> Vec<usize> {
            (0..8).filter(|rank| placement.allows(*rank) == [true, false]).collect()
        };
        assert_eq!(on_first(Placement::Apart), [0, 2, 4, 6]);
        assert_eq!(on_first(Placement::Together), [0, 1, 4, 5]);
        assert!(on_first(Placement::Free).is_empty());
    }

    #[test]
    fn who_is_placed_stays_there_and_who_places_does_not() {
        std::thread::spawn(|| {
            let before = allowed();
            let Some(two) = TwoProcessors::hold() else { return };
            // Both ends are this process, whose main thread is placed.
            let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let main = rustix::process::getpid();
            let main_before = sched_getaffinity(Some(main)).unwrap();
            two.place(Placement::Apart, 3, &socket).unwrap();
            let placed = sched_getaffinity(Some(main)).unwrap();
            sched_setaffinity(Some(main), &main_before).unwrap();
            assert!(placed.count() == 1 && placed.is_set(before[1]));
            assert_eq!(allowed(), before[..2]);
            drop(two);
            assert_eq!(allowed(), before);
        })
        .join()
        .unwrap();
    }
}
