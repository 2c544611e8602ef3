//! Where a dense collective finds its input and puts its output.
//!
//! A call in place finds its input where its output will be: at the same address where both are the same
//! vector or block, or in this rank's place in the blocks of all ranks. Any other overlap is refused.

use std::ffi::c_void;

use brevity_collectives::Buffers;

use super::{Arguments, Blocks};
use crate::failure::Failure;
use crate::lent::{Lent, Loans};
use crate::memory::Stretch;

/// The memory of a call; the input lies in the output if there is none.
pub(super) struct Memory {
    input: Option<Stretch<u8>>,
    output: Stretch<u8>,
}

/// The same, lent to a call that was started.
pub(super) type LentMemory = (Option<Lent<u8>>, Lent<u8>);

impl Memory {
    fn in_place(output: Stretch<u8>) -> Self {
        Self { input: None, output }
    }

    /// # Safety
    /// During `'a`: the input may be read, is set, and nobody writes it; the output may be written, and
    /// nobody else uses it. It is set, or was marked as set by `Stretch::unset`.
    #[inline]
    pub(super) unsafe fn lend<'a>(self) -> Buffers<'a> {
        // SAFETY: the caller of this function guarantees it.
        let input = self.input.map(|input| unsafe { input.read() });
        // SAFETY: likewise.
        Buffers { input, output: unsafe { self.output.write() } }
    }

    /// # Safety
    /// As for [`lend`](Self::lend), until the result is dropped.
    pub(super) unsafe fn lent(self, loans: &Loans) -> LentMemory {
        // SAFETY: the caller of this function guarantees it.
        let input = self.input.map(|input| unsafe { Lent::new(input, loans) });
        // SAFETY: likewise.
        (input, unsafe { Lent::new(self.output, loans) })
    }
}

/// The memory that was lent, for the call.
pub(super) fn lend((input, output): &mut LentMemory) -> Buffers<'_> {
    Buffers { input: input.as_ref().map(AsRef::as_ref), output: output.as_mut() }
}

/// The arguments of a call on this rank. Blocks are those that are sent, and received; they are the same
/// except in an all-to-all.
pub(super) struct Places<'a> {
    pub(super) rank: usize,
    /// Bytes of an element.
    pub(super) size: usize,
    pub(super) arguments: &'a Arguments,
    pub(super) blocks: Blocks<'a>,
    pub(super) received: Blocks<'a>,
}

/// The names of input and output in C, and what is allowed beside separate memory.
type Names = (&'static str, &'static str, &'static str);

const SAME: Names = ("in", "out", "in == out");
const OUT_IN_PLACE: Names = ("in", "out", "this rank's block of in as out");
const OWN_IN_PLACE: Names = ("own", "all", "this rank's block of all as own");

/// All functions are unsafe alike: memory must be as for [`dense`](super::dense).
impl Places<'_> {
    pub(super) unsafe fn broadcast(&self, root: u32) -> Result<Memory, Failure> {
        let data = self.output(self.own(), "data")?;
        if self.rank != root as usize {
            // SAFETY: the caller of this function guarantees memory that nobody else uses.
            unsafe { data.unset() };
        }
        Ok(Memory::in_place(data))
    }

    /// The input of other ranks than the root is not looked at.
    pub(super) unsafe fn broadcast_to(&self, root: u32) -> Result<Memory, Failure> {
        if self.rank == root as usize {
            // SAFETY: the caller of this function guarantees the memory.
            return unsafe { self.all_reduce() };
        }
        let output = self.output(self.own(), SAME.1)?;
        // SAFETY: the caller of this function guarantees memory that nobody else uses.
        unsafe { output.unset() };
        Ok(Memory::in_place(output))
    }

    pub(super) unsafe fn all_reduce(&self) -> Result<Memory, Failure> {
        let (input, output) = (self.input(self.own(), SAME.0)?, self.output(self.own(), SAME.1)?);
        // SAFETY: the caller of this function guarantees the memory.
        unsafe { apart_or(input, output, input.is_same(output).then_some(output), SAME) }
    }

    /// The output of other ranks than the root is not looked at, unless it is the input.
    pub(super) unsafe fn reduce(&self, root: u32) -> Result<Memory, Failure> {
        if self.rank == root as usize {
            // SAFETY: the caller of this function guarantees the memory.
            return unsafe { self.all_reduce() };
        }
        let input = self.input(self.own(), SAME.0)?;
        if self.arguments.output.cast_const() == self.arguments.input {
            return Ok(Memory::in_place(input));
        }
        Ok(Memory { input: Some(input), output: Stretch::nothing() })
    }

    pub(super) unsafe fn reduce_scatter(&self) -> Result<Memory, Failure> {
        let all = self.input(self.blocks.total()?, OUT_IN_PLACE.0)?;
        let output = self.output(self.own(), OUT_IN_PLACE.1)?;
        let (_, place, _) = self.parts(all);
        // SAFETY: the caller of this function guarantees the memory.
        unsafe { apart_or(all, output, place.is_same(output).then_some(all), OUT_IN_PLACE) }
    }

    pub(super) unsafe fn all_gather(&self) -> Result<Memory, Failure> {
        let own = self.input(self.own(), OWN_IN_PLACE.0)?;
        let all = self.output(self.blocks.total()?, OWN_IN_PLACE.1)?;
        let (before, place, after) = self.parts(all);
        let is_in_place = own.is_same(place);
        if is_in_place {
            // SAFETY: the caller of this function guarantees memory that nobody else uses.
            unsafe { before.unset() };
            // SAFETY: likewise.
            unsafe { after.unset() };
        }
        // SAFETY: the caller of this function guarantees the memory.
        unsafe { apart_or(own, all, is_in_place.then_some(all), OWN_IN_PLACE) }
    }

    /// The output of other ranks than the root is not looked at.
    pub(super) unsafe fn gather(&self, root: u32) -> Result<Memory, Failure> {
        if self.rank == root as usize {
            // SAFETY: the caller of this function guarantees the memory.
            return unsafe { self.all_gather() };
        }
        let own = self.input(self.own(), OWN_IN_PLACE.0)?;
        Ok(Memory { input: Some(own), output: Stretch::nothing() })
    }

    /// The input of other ranks than the root is not looked at.
    pub(super) unsafe fn scatter(&self, root: u32) -> Result<Memory, Failure> {
        if self.rank != root as usize {
            let own = self.output(self.own(), OWN_IN_PLACE.0)?;
            // SAFETY: the caller of this function guarantees memory that nobody else uses.
            unsafe { own.unset() };
            return Ok(Memory::in_place(own));
        }
        let all = self.input(self.blocks.total()?, OWN_IN_PLACE.1)?;
        let own = self.output(self.own(), OWN_IN_PLACE.0)?;
        let (_, place, _) = self.parts(all);
        // SAFETY: the caller of this function guarantees the memory.
        unsafe { apart_or(all, own, place.is_same(own).then_some(all), OWN_IN_PLACE) }
    }

    pub(super) unsafe fn all_to_all(&self) -> Result<Memory, Failure> {
        let input = self.input(self.blocks.total()?, SAME.0)?;
        let output = self.output(self.received.total()?, SAME.1)?;
        let is_in_place = input.is_same(output);
        if is_in_place && !self.blocks.are(&self.received) {
            return Err(Failure::argument(
                "in and out are the same memory, but sent and received differ: pass separate memory, or \
                 equal lists",
            ));
        }
        // SAFETY: the caller of this function guarantees the memory.
        unsafe { apart_or(input, output, is_in_place.then_some(output), SAME) }
    }

    /// Elements of this rank's block, or of the vector.
    fn own(&self) -> usize {
        self.blocks.of(self.rank)
    }

    fn input(&self, count: usize, name: &str) -> Result<Stretch<u8>, Failure> {
        self.stretch(self.arguments.input, count, name)
    }

    fn output(&self, count: usize, name: &str) -> Result<Stretch<u8>, Failure> {
        self.stretch(self.arguments.output, count, name)
    }

    fn stretch(&self, start: *const c_void, count: usize, name: &str) -> Result<Stretch<u8>, Failure> {
        Stretch::of_elements(start, (count, self.size), name)
    }

    /// What is before this rank's block, the block, and what is after it.
    fn parts(&self, all: Stretch<u8>) -> (Stretch<u8>, Stretch<u8>, Stretch<u8>) {
        let (before, rest) = all.split(self.blocks.before(self.rank) * self.size);
        let (own, after) = rest.split(self.own() * self.size);
        (before, own, after)
    }
}

/// The memory of a call in place, if it is one, or from an input to an output apart.
///
/// # Safety
/// `output` is as for `Stretch::unset`, if the call is not in place.
unsafe fn apart_or(
    input: Stretch<u8>,
    output: Stretch<u8>,
    in_place: Option<Stretch<u8>>,
    (first, second, allowed): Names,
) -> Result<Memory, Failure> {
    if let Some(both) = in_place {
        return Ok(Memory::in_place(both));
    }
    if !input.is_apart(output) {
        return Err(Failure::argument(format!(
            "{first} and {second} overlap: pass separate memory, or {allowed}"
        )));
    }
    // SAFETY: the caller of this function guarantees it.
    unsafe { output.unset() };
    Ok(Memory { input: Some(input), output })
}
