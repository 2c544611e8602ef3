//! Reading the memory of another process (`process_vm_readv`), where the kernel allows it.
//!
//! The kernel addresses a process by its number, which another process may have later, and a process may
//! execute another program. Its guard words in shared memory stay valid then. So that a stranger's bytes are
//! never taken for a message, every segment has a random *cookie*, and the cookie's address in its process.
//! The call that reads the bytes reads the cookie too, and the kernel reads both from one process.
//!
//! This makes short reads slower, so a cookie that was found is valid for the rest of a tick of the coarse
//! clock (1 to 10 ms). In that time the process would have to die, be reaped, and have its number reused by a
//! process of the same user with memory at the same addresses.
//!
//! The kernel allows reading to processes that may trace the other one: mostly those of the same user, but
//! only ancestors with Yama's `ptrace_scope=1`. No rank widens this (`PR_SET_PTRACER`): it can be widened
//! only to one process or to all, and all would let any process of the user read and change a rank's memory.
//! The ring works without.

use std::ffi::{c_int, c_ulong};
use std::io::IoSliceMut;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use rustix::thread::{CapabilitySet, capabilities};

use super::area::LINE_BYTES;
use super::layout::{COOKIE_ADDRESS_AT, COOKIE_AT};
use super::segment::PeerSegment;
use crate::tick::tick;

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Slices that one call reads from or to, at most.
const MAX_SPANS: usize = 3;

pub(super) struct Process {
    number: c_int,
    /// Where its cookie lies in its memory.
    address: usize,
    cookie: u64,
    /// The tick in which the cookie was last found.
    found_in: AtomicU64,
}

/// An `iovec`.
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

/// Why ranks of this host can't read each other's memory, as far as the system tells; `None` if nothing
/// forbids it. Where they can't, long messages are copied twice.
#[must_use]
pub fn why_unreadable() -> Option<String> {
    let (here, mut found) = ([7u8], [0u8]);
    let process =
        Process { number: std::process::id().cast_signed(), address: 0, cookie: 0, found_in: 0.into() };
    if !process.copy(&[(here.as_ptr().addr(), 1)], &mut [IoSliceMut::new(&mut found)]) {
        return Some(format!("process_vm_readv: {}", std::io::Error::last_os_error()));
    }
    let may_trace =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    forbidden_by(std::fs::read_to_string(SCOPE).ok()?.trim(), may_trace)
}

/// The reason for a value of Yama's scope, for a process that may trace any other or not.
fn forbidden_by(scope: &str, may_trace: impl Fn() -> bool) -> Option<String> {
    let is_allowed = match scope {
        "0" => true,
        "1" | "2" => may_trace(),
        _ => false,
    };
    (!is_allowed).then(|| format!("kernel.yama.ptrace_scope={scope}, expected 0"))
}

impl Process {
    /// The process of this number, if its memory can be read and has the cookie of its segment.
    pub(super) fn probe(number: c_int, segment: &PeerSegment) -> Option<Self> {
        let header = segment.area(0..LINE_BYTES);
        let address = usize::try_from(header.load(COOKIE_ADDRESS_AT)).ok()?;
        let process =
            Self { number, address, cookie: header.load(COOKIE_AT), found_in: AtomicU64::new(u64::MAX) };
        (number > 0 && process.read_with_cookie([(0, 0); MAX_SPANS], &mut [])).then_some(process)
    }

    /// Copies from `spans` to `into`, at most three slices; returns whether every byte was copied.
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
        let is_read = self.read_with_cookie(spans, into);
        if is_read {
            self.found_in.store(tick, Ordering::Relaxed);
        }
        is_read
    }

    /// Likewise, if the process has the cookie. The caller has compared the lengths.
    fn read_with_cookie(&self, spans: [(usize, usize); MAX_SPANS], into: &mut [IoSliceMut<'_>]) -> bool {
        let mut found = [0; 8];
        let [first, second, third] = spans;
        let mut places: ArrayVec<IoSliceMut<'_>, { MAX_SPANS + 1 }> = ArrayVec::new();
        places.push(IoSliceMut::new(&mut found));
        places.extend(into.iter_mut().map(|place| IoSliceMut::new(place)));
        let is_read = self.copy(&[(self.address, 8), first, second, third], &mut places);
        drop(places);
        is_read && u64::from_ne_bytes(found) == self.cookie
    }

    /// Likewise, without the cookie.
    fn copy<const SPANS: usize>(&self, spans: &[(usize, usize); SPANS], into: &mut [IoSliceMut<'_>]) -> bool {
        let bytes: usize = into.iter().map(|place| place.len()).sum();
        let span =
            |(address, bytes): (usize, usize)| Span { address: null_mut::<u8>().with_addr(address), bytes };
        let remote = spans.map(span);
        // The kernel looks at empty spans as well.
        let used = spans.iter().rposition(|(_, bytes)| *bytes > 0).map_or(0, |last| last + 1);
        let local = into.as_mut_ptr().cast::<Span>();
        // SAFETY: `into` are exclusive slices of this process, laid out like `iovec` as `IoSliceMut`
        // documents; the kernel checks the addresses in the other process.
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

    /// Reads from this process memory that is still there.
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
    fn a_process_with_a_reused_number_is_not_read() {
        let own = OwnSegment::new(Rank(3), Layout::new(2)).unwrap();
        let process = probe(&own, std::process::id()).unwrap();
        for _ in 0..3 {
            assert!(is_read(&process) && is_read(&process), "with the cookie, then mostly without");
            wait_for_next_tick();
        }
        // As if the number were another process's now.
        own.area(0..LINE_BYTES).word(COOKIE_AT).fetch_add(1, Ordering::Relaxed);
        assert!(!is_read(&process));
        // As if nothing were there any more.
        drop(own);
        assert!(!is_read(&process));
    }

    #[test]
    fn a_process_without_the_cookie_is_not_accepted() {
        let own = OwnSegment::new(Rank(3), Layout::new(2)).unwrap();
        assert!(probe(&own, std::process::id()).is_some());
        assert!(probe(&own, 0).is_none() && probe(&own, u32::MAX).is_none());
        let parent = std::os::unix::process::parent_id();
        assert!(probe(&own, parent).is_none(), "it may be read, but has not made the segment");
        own.area(0..LINE_BYTES).word(COOKIE_ADDRESS_AT).store(8, Ordering::Relaxed);
        assert!(probe(&own, std::process::id()).is_none());
    }

    #[test]
    fn the_reason_against_reading_is_named() {
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
    fn lengths_that_differ_are_not_read() {
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
