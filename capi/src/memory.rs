//! The caller's memory as slices.

use std::ffi::c_void;

use bytemuck::Pod;

use crate::boundary::{check, check_aligned};
use crate::failure::Failure;

/// `count` elements lent by the caller. The count and the address have been checked; the memory has not been
/// touched.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<T> {
    start: *const T,
    count: usize,
}

impl<T: Copy> Stretch<T> {
    /// Checks a pointer for NULL and alignment, and the length for overflow. With `count` 0 any pointer is
    /// valid.
    pub(crate) fn new(start: *const T, count: usize, name: &str) -> Result<Self, Failure> {
        if count == 0 {
            return Ok(Self { start: std::ptr::NonNull::dangling().as_ptr(), count });
        }
        check(start, name)?;
        bytes_of(start as usize, (count, size_of::<T>()), name)?;
        Ok(Self { start, count })
    }

    /// The same memory as bytes.
    pub(crate) fn bytes(self) -> Stretch<u8> {
        Stretch { start: self.start.cast(), count: self.count * size_of::<T>() }
    }

    /// Whether the two have the same start and length.
    pub(crate) fn is_same(self, other: Self) -> bool {
        self.count == other.count && self.start == other.start
    }

    /// The first `count` elements, of which there are at least as many, and the others.
    pub(crate) fn split(self, count: usize) -> (Self, Self) {
        debug_assert!(count <= self.count);
        let rest = Self { start: self.start.wrapping_add(count), count: self.count - count };
        (Self { count, ..self }, rest)
    }

    /// Refuses two stretches that overlap.
    pub(crate) fn check_apart(self, other: Self, names: &str) -> Result<(), Failure> {
        if self.is_apart(other) {
            return Ok(());
        }
        Err(Failure::argument(format!("{names} overlap: pass separate memory")))
    }

    /// Whether the two do not overlap.
    pub(crate) fn is_apart(self, other: Self) -> bool {
        let (own, others) = (self.addresses(), other.addresses());
        own.start >= others.end || others.start >= own.end
    }

    /// Refuses stretches if any two of them overlap.
    pub(crate) fn check_all_apart(stretches: &[Self], names: &str) -> Result<(), Failure> {
        let mut rising: Vec<Self> = stretches.iter().copied().filter(|stretch| stretch.count > 0).collect();
        rising.sort_unstable_by_key(|stretch| stretch.start);
        rising.windows(2).try_for_each(|pair| pair[0].check_apart(pair[1], names))
    }

    /// Refuses stretches of which one overlaps with one of `others`, which are apart from each other.
    pub(crate) fn check_from_others(own: &[Self], others: &[Self], names: &str) -> Result<(), Failure> {
        let mut rising: Vec<Self> = others.iter().copied().filter(|stretch| stretch.count > 0).collect();
        rising.sort_unstable_by_key(|stretch| stretch.start);
        own.iter().filter(|stretch| stretch.count > 0).try_for_each(|stretch| {
            // Of those that begin before its end the last one ends last.
            let end = rising.partition_point(|other| other.addresses().start < stretch.addresses().end);
            rising[..end].last().map_or(Ok(()), |other| stretch.check_apart(*other, names))
        })
    }

    /// The elements, for reading.
    ///
    /// # Safety
    /// All elements are in one live allocation, set, and not written by anyone else during `'a`.
    pub(crate) unsafe fn read<'a>(self) -> &'a [T] {
        // SAFETY: `new` checked the pointer and the length; the caller of this function guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }

    /// The elements, for reading and writing.
    ///
    /// # Safety
    /// All elements are in one live, writable allocation, set, and not used by anyone else during `'a`.
    pub(crate) unsafe fn write<'a>(self) -> &'a mut [T] {
        // SAFETY: `new` checked the pointer and the length; the caller of this function guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast_mut(), self.count) }
    }

    /// Refuses another number of elements.
    pub(crate) fn check_count(self, expected: usize) -> Result<(), Failure> {
        let found = self.count;
        if found == expected {
            return Ok(());
        }
        Err(Failure::argument(format!("n is {found}, expected {expected}, the length of the tensor")))
    }

    fn addresses(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..if self.count == 0 { start } else { start + self.count * size_of::<T>() }
    }
}

impl Stretch<u8> {
    /// Checks memory of `count` elements of `size` bytes each, a power of two to which they are aligned.
    pub(crate) fn of_elements(
        start: *const c_void,
        (count, size): (usize, usize),
        name: &str,
    ) -> Result<Self, Failure> {
        if count == 0 {
            return Ok(Self::nothing());
        }
        check(start, name)?;
        check_aligned(start.cast::<u8>(), size, name)?;
        Ok(Self { start: start.cast(), count: bytes_of(start as usize, (count, size), name)? })
    }

    /// No memory.
    pub(crate) const fn nothing() -> Self {
        Self { start: std::ptr::NonNull::dangling().as_ptr(), count: 0 }
    }
}

/// The bytes of elements, if memory at this address can hold them.
fn bytes_of(start: usize, (count, size): (usize, usize), name: &str) -> Result<usize, Failure> {
    let bytes = count.checked_mul(size);
    let fits = |bytes: &usize| isize::try_from(*bytes).is_ok() && start.checked_add(*bytes).is_some();
    bytes.filter(fits).ok_or_else(|| {
        Failure::argument(format!("{name} has {count} elements, which no memory can hold: check n"))
    })
}

/// The size of the smallest page.
const PAGE_BYTES: usize = 4096;

impl<T: Pod> Stretch<T> {
    /// The elements for writing, with the values that they have, or with 0 where that can't be told. They
    /// need not be set before.
    ///
    /// Unlike [`zeroed`](Self::zeroed), this costs little for long memory. To C such memory may be unset, but
    /// each of its bytes has some value. The page must only be one that the system no longer replaces by
    /// zeroes, as it does with a page that the allocator has given back (`MADV_FREE`) until the next write.
    /// So a byte of each page is written: with the value that it has, because the call may yet be refused.
    ///
    /// # Safety
    /// The same as for [`zeroed`](Self::zeroed).
    pub(crate) unsafe fn unset<'a>(self) -> &'a mut [T] {
        if cfg!(miri) || !has_opaque_code() {
            // SAFETY: the caller of this function guarantees the same.
            return unsafe { self.zeroed() };
        }
        let (start, bytes) = (self.start.cast_mut().cast::<u8>(), self.count * size_of::<T>());
        for offset in (0..bytes).step_by(PAGE_BYTES).chain(bytes.checked_sub(1)) {
            // SAFETY: inside the memory, which may be written, as the caller of this function guarantees.
            unsafe { rewrite(start.add(offset)) };
        }
        // SAFETY: the code above has set all bytes, as far as Rust can tell, to the values that they have;
        // the caller of this function guarantees the rest.
        unsafe { self.write() }
    }

    /// Sets all elements to 0 and returns them for writing. They need not be set before.
    ///
    /// # Safety
    /// The same as for [`write`](Self::write), except that the elements need not be set.
    pub(crate) unsafe fn zeroed<'a>(self) -> &'a mut [T] {
        // SAFETY: `new` checked pointer and length; the caller of this function guarantees that they may be
        // written.
        unsafe { self.start.cast_mut().write_bytes(0, self.count) };
        // SAFETY: set just now; the caller of this function guarantees the rest.
        unsafe { self.write() }
    }
}

/// Whether [`rewrite`] works on this processor.
const fn has_opaque_code() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

/// Writes a byte as it is. For all that the compiler knows, this may set any memory that can be reached from
/// there.
///
/// # Safety
/// The byte may be read and written, and nobody else uses it. It need not be set.
unsafe fn rewrite(byte: *mut u8) {
    // SAFETY: the caller of this function guarantees the byte. To the processor it has some value.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("or byte ptr [{0}], 0", in(reg) byte, options(nostack));
    }
    // SAFETY: likewise.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "ldrb {1:w}, [{0}]",
            "strb {1:w}, [{0}]",
            in(reg) byte,
            out(reg) _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = byte;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_memory_may_be_written_to_its_last_byte() {
        for count in [0, 1, 100, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES + 7] {
            let mut memory = Vec::<u8>::with_capacity(count + 1);
            let spare = memory.spare_capacity_mut();
            spare[..count].iter_mut().for_each(|byte| _ = byte.write(5));
            spare[count].write(9);
            let stretch = Stretch::new(spare.as_ptr().cast::<u8>(), count, "memory").unwrap();
            // SAFETY: memory of the vector, which nobody else uses.
            let bytes = unsafe { stretch.unset() };
            if has_opaque_code() && !cfg!(miri) {
                assert!(bytes.iter().all(|byte| *byte == 5), "values stay");
            }
            bytes.fill(7);
            assert!(bytes.iter().all(|byte| *byte == 7) && bytes.len() == count);
            // SAFETY: set just now.
            unsafe { memory.set_len(count + 1) };
            assert_eq!(memory[count], 9, "what is behind it stays");
        }
    }

    fn stretch(values: &[f32]) -> Stretch<f32> {
        Stretch::new(values.as_ptr(), values.len(), "values").unwrap()
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let value = 0.0f64;
        for count in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8 + 1] {
            assert!(Stretch::new(&raw const value, count, "values").is_err(), "{count}");
        }
    }

    #[test]
    fn elements_are_checked_by_their_size() {
        let words = [0u64; 2];
        let at = |offset: usize| words.as_ptr().wrapping_byte_add(offset).cast::<c_void>();
        let refused = |start, count, size| {
            Stretch::of_elements(start, (count, size), "words").err().map(|failure| failure.text().to_owned())
        };
        assert_eq!(refused(at(0), 2, 8), None);
        assert_eq!(refused(at(1), 2, 1), None);
        assert!(refused(at(2), 2, 4).unwrap().contains("expected a multiple of 4 bytes"));
        assert!(refused(at(0), usize::MAX / 4, 8).unwrap().contains("check n"));
        assert!(refused(std::ptr::null(), 1, 8).unwrap().contains("words is NULL"));
        assert_eq!(refused(std::ptr::null(), 0, 8), None);
    }

    #[test]
    fn nothing_at_null_is_fine() {
        let nothing = Stretch::<f32>::new(std::ptr::null(), 0, "values").unwrap();
        // SAFETY: there are no elements.
        assert!(unsafe { nothing.read() }.is_empty());
        assert!(Stretch::<f32>::new(std::ptr::null(), 1, "values").is_err());
    }

    #[test]
    fn the_last_that_begins_before_is_the_one_that_may_overlap() {
        let values = [0.0_f32; 30];
        let others = [stretch(&values[20..25]), stretch(&values[3..3]), stretch(&values[5..10])];
        let check = |own: &[f32]| Stretch::check_from_others(&[stretch(own)], &others, "the two").is_ok();
        for (begin, end) in [(0, 5), (10, 20), (25, 30), (7, 7)] {
            assert!(check(&values[begin..end]), "{begin}..{end}");
        }
        for (begin, end) in [(0, 6), (9, 12), (6, 8), (0, 30), (24, 30), (10, 21)] {
            assert!(!check(&values[begin..end]), "{begin}..{end}");
        }
    }

    #[test]
    fn neighbours_are_apart_and_one_shared_element_is_an_overlap() {
        let values = [0.0f32; 8];
        let (left, right) = values.split_at(4);
        assert!(stretch(left).check_apart(stretch(right), "the halves").is_ok());
        assert!(stretch(&values[..5]).check_apart(stretch(right), "the parts").is_err());
        assert!(stretch(right).check_apart(stretch(&values[..5]), "the parts").is_err());
        assert!(stretch(&values).check_apart(stretch(&values[3..5]), "the parts").is_err());
        assert!(stretch(left).is_same(stretch(left)));
        let (first, second) = stretch(&values).split(4);
        assert!(first.is_same(stretch(left)) && second.is_same(stretch(right)));
        let (first, second, nothing) =
            (stretch(&values[..3]), stretch(&values[3..6]), stretch(&values[1..1]));
        assert!(
            Stretch::check_all_apart(&[stretch(&values[6..]), nothing, first, second], "the parts").is_ok()
        );
        assert!(Stretch::check_all_apart(&[stretch(&values[5..]), first, second], "the parts").is_err());
    }
}
