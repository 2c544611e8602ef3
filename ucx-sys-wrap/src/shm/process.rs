//! Reading the memory of another process, where the kernel allows it.

use std::ffi::{c_int, c_ulong};
use std::io::IoSliceMut;
use std::ptr::null_mut;

use super::area::LINE_BYTES;
use super::layout::ADDRESS_AT;
use super::segment::PeerSegment;

/// A process whose memory this one can read.
pub(super) struct Process(c_int);

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

impl Process {
    /// The process of this number, if its memory can be read: the word of its segment that says where it lies is read
    /// both ways.
    pub(super) fn probe(number: c_int, segment: &PeerSegment) -> Option<Self> {
        let expected = segment.area(0..LINE_BYTES).load(ADDRESS_AT);
        let process = Self(number);
        let mut found = [0; 8];
        let address = usize::try_from(expected).ok()?;
        let is_read = process.read([(address, 8), (0, 0), (0, 0)], &mut [IoSliceMut::new(&mut found)]);
        (number > 0 && is_read && u64::from_le_bytes(found) == expected).then_some(process)
    }

    /// Copies from all spans to all of `into`; says whether every byte was.
    pub(super) fn read(&self, spans: [(usize, usize); 3], into: &mut [IoSliceMut<'_>]) -> bool {
        let bytes: usize = into.iter().map(|place| place.len()).sum();
        let all = spans.iter().try_fold(0usize, |sum, (_, bytes)| sum.checked_add(*bytes));
        if all != Some(bytes) {
            return false;
        }
        let span = |(address, bytes): (usize, usize)| Span { address: null_mut::<u8>().with_addr(address), bytes };
        let remote = spans.map(span);
        // The kernel goes through what is empty as well.
        let used = spans.iter().rposition(|(_, bytes)| *bytes > 0).map_or(0, |last| last + 1);
        let local = into.as_mut_ptr().cast::<Span>();
        // SAFETY: `into` are exclusive places of this process in the form that the C library wants, which `IoSliceMut`
        // has by its documentation; what is read is the other process's, and the kernel checks those addresses.
        let read =
            unsafe { process_vm_readv(self.0, local, into.len() as c_ulong, remote.as_ptr(), used as c_ulong, 0) };
        usize::try_from(read) == Ok(bytes)
    }
}
