//! Reading the memory of another process, where the kernel allows it.
//!
//! The kernel knows a process by its number, which another one may have after its death, and a process may
//! run another program. What it has offered in shared memory stays offered then: nobody is left to take it
//! back. So that the bytes of a stranger are not taken for a message, every segment has a random word, the
//! *mark*, and says where that lies in the memory of its process. It is read by the same call as the bytes,
//! for which the kernel takes all from one memory.
//!
//! That costs 140 ns a call, which without it takes 520 for 8 KiB. So a mark that was found holds for the
//! rest of a tick of the kernel's coarse clock, 1 to 10 ms, in which a process would have to die, be waited
//! for, and have its number taken by one of the same user that has memory at the same addresses.
//!
//! The kernel allows it to whoever may trace the process: mostly to processes of the same user, but by Yama's
//! `ptrace_scope=1` to its ancestors only. No rank widens that (`PR_SET_PTRACER`): it could do so for one other
//! process or for all, and all means that any process of the user may read and change its memory, keys and
//! gradients included, which is what whoever has set the scope forbids. The ring does without.

use std::ffi::{c_int, c_ulong};
use std::io::IoSliceMut;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use rustix::thread::{CapabilitySet, capabilities};

use super::area::LINE_BYTES;
use super::layout::{ADDRESS_AT, MARK_AT};
use super::segment::PeerSegment;
use crate::tick::tick;

/// Where Yama says who may trace whom.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Stretches of memory that one call reads from or to, at most.
const MAX_SPANS: usize = 3;

/// A process whose memory this one can read.
pub(super) struct Process {
    number: c_int,
    /// Where its mark lies in its memory.
    address: usize,
    mark: u64,
    /// The tick in which the mark was last found.
    found_in: AtomicU64,
}

/// A stretch of memory, as the C library describes it.
#[repr(C)]
struct Span {
    address: *mut u8,
    bytes: usize,
}

unsafe extern "C" {
    fn process_vm_readv(
        process: c_int,
        local: *const Span,
        local_count: c_ulong,
        remote: *const Span,
        remote_count: c_ulong,
        flags: c_ulong,
    ) -> isize;
}

/// Why ranks of this host can't read each other's memory, as far as the system says; `None` if it says nothing
/// against it. Where they can't, long messages are copied twice.
#[must_use]
pub fn why_unreadable() -> Option<String> {
    let (here, mut found) = ([7u8], [0u8]);
    let process =
        Process { number: std::process::id().cast_signed(), address: 0, mark: 0, found_in: 0.into() };
    if !process.copy(&[(here.as_ptr().addr(), 1)], &mut [IoSliceMut::new(&mut found)]) {
        return Some(format!("process_vm_readv: {}", std::io::Error::last_os_error()));
    }
    let may_trace =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    forbidden_by(std::fs::read_to_string(SCOPE).ok()?.trim(), may_trace)
}

/// What forbids it where Yama's scope is this, to a process that may trace any other or not.
fn forbidden_by(scope: &str, may_trace: impl Fn() -> bool) -> Option<String> {
    let is_allowed = match scope {
        "0" => true,
        "1" | "2" => may_trace(),
        _ => false,
    };
    (!is_allowed).then(|| format!("kernel.yama.ptrace_scope={scope}, expected 0"))
}

impl Process {
    /// The process of this number, if its memory can be read and has the mark of its segment.
    pub(super) fn probe(number: c_int, segment: &PeerSegment) -> Option<Self> {
        let header = segment.area(0..LINE_BYTES);
        let address = usize::try_from(header.load(ADDRESS_AT)).ok()?;
        let process =
            Self { number, address, mark: header.load(MARK_AT), found_in: AtomicU64::new(u64::MAX) };
        (number > 0 && process.read_marked([(0, 0); MAX_SPANS], &mut [])).then_some(process)
    }

    /// Copies from all spans to all of `into`, which are three places at most; says whether every byte was.
    pub(super) fn read(&self, spans: [(usize, usize); MAX_SPANS], into: &mut [IoSliceMut<'_>]) -> bool {
        let bytes: usize = into.iter().map(|place| place.len()).sum();
        let all = spans.iter().try_fold(0usize, |sum, (_, bytes)| sum.checked_add(*bytes));
        if all != Some(bytes) || into.len() > MAX_SPANS {
            return false;
        }
        let tick = tick();
        if self.found_in.load(Ordering::Relaxed) == tick {
            return self.copy(&spans, into);
        }
        let is_read = self.read_marked(spans, into);
        if is_read {
            self.found_in.store(tick, Ordering::Relaxed);
        }
        is_read
    }

    /// The same, of a process that has the mark. The lengths have been compared.
    fn read_marked(&self, spans: [(usize, usize); MAX_SPANS], into: &mut [IoSliceMut<'_>]) -> bool {
        let mut found = [0; 8];
        let [first, second, third] = spans;
        let mut places: ArrayVec<IoSliceMut<'_>, { MAX_SPANS + 1 }> = ArrayVec::new();
        places.push(IoSliceMut::new(&mut found));
        places.extend(into.iter_mut().map(|place| IoSliceMut::new(place)));
        let is_read = self.copy(&[(self.address, 8), first, second, third], &mut places);
        drop(places);
        is_read && u64::from_ne_bytes(found) == self.mark
    }

    /// Copies from all spans to all of `into`, which have as many bytes; says whether every byte was.
    fn copy<const SPANS: usize>(&self, spans: &[(usize, usize); SPANS], into: &mut [IoSliceMut<'_>]) -> bool {
        let bytes: usize = into.iter().map(|place| place.len()).sum();
        let span =
            |(address, bytes): (usize, usize)| Span { address: null_mut::<u8>().with_addr(address), bytes };
        let remote = spans.map(span);
        // The kernel goes through what is empty as well.
        let used = spans.iter().rposition(|(_, bytes)| *bytes > 0).map_or(0, |last| last + 1);
        let local = into.as_mut_ptr().cast::<Span>();
        // SAFETY: `into` are exclusive places of this process in the form that the C library wants, which
        // `IoSliceMut` has by its documentation; what is read is the other process's, and the kernel checks
        // those addresses.
        let read = unsafe {
            process_vm_readv(self.number, local, into.len() as c_ulong, remote.as_ptr(), used as c_ulong, 0)
        };
        usize::try_from(read) == Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::super::segment::OwnSegment;
    use super::*;
    use crate::Rank;

    fn wait_for_next_tick() {
        let now = tick();
        while tick() == now {
            std::thread::yield_now();
        }
    }

    /// Reads from this process what it has offered, which is still there.
    fn is_read(process: &Process) -> bool {
        let (offered, mut first, mut second) = ([7u8; 100], [0u8; 60], [0u8; 40]);
        let spans = [(offered.as_ptr().addr(), 90), (0, 0), (offered.as_ptr().addr() + 90, 10)];
        let is_read = process.read(spans, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]);
        assert!(!is_read || first == [7; 60] && second == [7; 40]);
        is_read
    }

    fn probe(own: &OwnSegment, number: u32) -> Option<Process> {
        let layout = Layout::new(2);
        let descriptor = own.descriptor().try_clone_to_owned().unwrap();
        Process::probe(number.cast_signed(), &PeerSegment::new(Rank(3), &descriptor, layout).unwrap())
    }

    #[test]
    fn who_has_the_number_of_a_process_is_not_taken_for_it() {
        let own = OwnSegment::new(Rank(3), Layout::new(2)).unwrap();
        let process = probe(&own, std::process::id()).unwrap();
        for _ in 0..3 {
            assert!(is_read(&process) && is_read(&process), "once with the mark, mostly, and once without");
            wait_for_next_tick();
        }
        // As if the number were another process's now, which can be read just as well.
        own.area(0..LINE_BYTES).word(MARK_AT).fetch_add(1, Ordering::Relaxed);
        assert!(!is_read(&process));
        // And as if nothing lay there any more.
        drop(own);
        assert!(!is_read(&process));
    }

    #[test]
    fn a_process_without_the_mark_is_none() {
        let own = OwnSegment::new(Rank(3), Layout::new(2)).unwrap();
        assert!(probe(&own, std::process::id()).is_some());
        assert!(probe(&own, 0).is_none() && probe(&own, u32::MAX).is_none());
        let parent = std::os::unix::process::parent_id();
        assert!(probe(&own, parent).is_none(), "it may be read, but has not made the segment");
        own.area(0..LINE_BYTES).word(ADDRESS_AT).store(8, Ordering::Relaxed);
        assert!(probe(&own, std::process::id()).is_none());
    }

    #[test]
    fn what_forbids_reading_is_named() {
        for (scope, may_trace, forbids) in [
            ("0", false, false),
            ("1", false, true),
            ("1", true, false),
            ("2", false, true),
            ("2", true, false),
            ("3", true, true),
        ] {
            let found = forbidden_by(scope, || may_trace);
            let expected = forbids.then(|| format!("kernel.yama.ptrace_scope={scope}, expected 0"));
            assert_eq!(found, expected);
        }
        assert!(why_unreadable().is_none_or(|why| why.contains("ptrace_scope") || why.contains("readv")));
    }

    #[test]
    fn what_does_not_fit_is_not_read() {
        let own = OwnSegment::new(Rank(3), Layout::new(2)).unwrap();
        let process = probe(&own, std::process::id()).unwrap();
        let (offered, mut place) = ([7u8; 100], [0u8; 99]);
        let address = offered.as_ptr().addr();
        for spans in [[(address, 100), (0, 0), (0, 0)], [(address, usize::MAX), (address, 100), (0, 0)]] {
            assert!(!process.read(spans, &mut [IoSliceMut::new(&mut place)]));
        }
        let mut places = place.as_chunks_mut::<24>().0.iter_mut();
        let mut four = std::array::from_fn::<_, 4, _>(|_| IoSliceMut::new(places.next().unwrap()));
        assert!(!process.read([(address, 96), (0, 0), (0, 0)], &mut four));
    }
}
