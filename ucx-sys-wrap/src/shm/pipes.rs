//! Pages of one rank's memory that go to a neighbour through pipes: one copy, which the neighbour makes.
//!
//! Who reads another process's memory has its pages looked up on its own processor, one by one, between two copies. A pipe holds
//! references to pages: so the sender looks them up, while the receiver copies those that it was given before.
//!
//! The receiver makes the pipes, and says in its segment which descriptors they are. The sender gets them from the kernel
//! (`pidfd_getfd`), which allows it where it allows to read that process's memory. It takes both ends: a pipe that nobody can read any
//! more, as when the receiver has died, would end the sender by a signal. Neither end blocks: the receiver has made its own so, and the
//! sender asks for it in each call.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, read};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, vmsplice};

use super::neighbourhood::Neighbourhood;
use super::process::Process;
use crate::{Error, Result};

/// Pipes from one rank to another, which take turns: the kernel lets one process at a time into each.
pub(crate) const PIPES: usize = 2;

/// The most that goes into a pipe at once, in bytes. It may begin and end within a page.
pub const PIPED_BYTES: usize = 128 << 10;

/// What a pipe is asked to hold: twice as many pages.
const ROOM_BYTES: usize = 2 * PIPED_BYTES;

/// Which descriptors pipes are, as their receiver says it: none where a word is zero.
pub(super) type Words = [u64; PIPES];

/// The receiver's side.
pub(crate) struct Outlet([Ends; PIPES]);

/// The sender's side.
pub(crate) struct Inlet([Ends; PIPES]);

/// A side that is there once it is needed, if the system allows it.
#[derive(Default)]
pub(crate) enum Attempt<T> {
    /// Not needed so far, or not yet made by the neighbour.
    #[default]
    Untried,
    Open(T),
    Barred,
}

struct Ends {
    out: OwnedFd,
    into: OwnedFd,
}

impl Outlet {
    /// New pipes.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor left, or allows no pipes of that size any more.
    pub(super) fn new() -> Result<Self> {
        let ends = || {
            let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            fcntl_setpipe_size(&into, ROOM_BYTES)?;
            Ok(Ends { out, into })
        };
        let pipes = ends().and_then(|first| Ok(Self([first, ends()?])));
        pipes.map_err(|error: Errno| Error::system("can't make a pipe to a neighbour", error))
    }

    /// What the sender has to know.
    pub(super) fn words(&self) -> Words {
        let word = |descriptor: &OwnedFd| u64::from(descriptor.as_raw_fd().cast_unsigned()) + 1;
        self.0.each_ref().map(|ends| word(&ends.out) << 32 | word(&ends.into))
    }

    /// Copies what the sender has put into the pipe `index` to all of `into`; says whether it was as much.
    pub(crate) fn read(&self, index: usize, mut into: &mut [u8]) -> bool {
        let out = &self.0[index % PIPES].out;
        while !into.is_empty() {
            match read(out, &mut *into) {
                Ok(0) => return false,
                Ok(count) => into = &mut into[count..],
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

impl Inlet {
    /// The sender's side of the pipes that `process` has made, if it has and the system allows it.
    pub(super) fn new(process: &Process, words: Words) -> Option<Self> {
        let number = |half: u64| i32::try_from(half.checked_sub(1)?).ok();
        let [first, second] = words.map(|word| Some([number(word >> 32)?, number(word & u64::from(u32::MAX))?]));
        let ([first_out, first_into], [second_out, second_into]) = (first?, second?);
        let [a, b, c, d] = process.descriptors([first_out, first_into, second_out, second_into])?;
        Some(Self([Ends::received(a, b)?, Ends::received(c, d)?]))
    }

    /// Puts references to the pages of `bytes` into the pipe `index`, which must be empty; says whether all went in. Their memory is read until
    /// the receiver has copied it: whatever is written there meanwhile is what it gets.
    ///
    /// Where it failed, the pipe may hold a part: it can't be used any more.
    pub(crate) fn put(&self, index: usize, mut bytes: &[u8]) -> bool {
        let into = &self.0[index % PIPES].into;
        while !bytes.is_empty() {
            // SAFETY: the memory is only read, through references to its pages, which the kernel keeps for as long as they lie in the pipe,
            // whatever becomes of their mapping here.
            match unsafe { vmsplice(into, &[IoSliceRaw::from_slice(bytes)], SpliceFlags::NONBLOCK) } {
                Ok(0) => return false,
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

impl<T> Attempt<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        match self {
            Self::Open(side) => Some(side),
            Self::Untried | Self::Barred => None,
        }
    }

    /// It can't be used any more.
    pub(crate) fn bar(&mut self) {
        *self = Self::Barred;
    }
}

impl Attempt<Outlet> {
    /// Makes pipes for the rank at `place`, unless that was tried, and says so in the words at `at` of the block for it. Costs four descriptors.
    pub(crate) fn invite(&mut self, neighbourhood: &Neighbourhood, place: usize, at: usize) -> Option<&Outlet> {
        if let (Self::Untried, Some(block)) = (&self, neighbourhood.own_block(place)) {
            *self = match Outlet::new() {
                Ok(pipes) => {
                    for (index, word) in pipes.words().into_iter().enumerate() {
                        block.word(at + 8 * index).store(word, Ordering::Release);
                    }
                    Self::Open(pipes)
                }
                Err(error) => {
                    tracing::debug!(%error, "what comes from a neighbour is copied twice");
                    Self::Barred
                }
            };
        }
        self.get()
    }
}

impl Attempt<Inlet> {
    /// The pipes that the rank at `place` has made, if it has said so in the words at `at` of its block.
    pub(crate) fn find(&mut self, neighbourhood: &Neighbourhood, place: usize, at: usize) -> Option<&Inlet> {
        if let (Self::Untried, Some(block)) = (&self, neighbourhood.peer_block(place)) {
            let words: Words = std::array::from_fn(|index| block.load(at + 8 * index));
            if !words.contains(&0) {
                *self = neighbourhood.inlet(place, words).map_or(Self::Barred, Self::Open);
            }
        }
        self.get()
    }
}

impl Ends {
    /// Those that a neighbour has said, if they are a pipe's.
    fn received(out: OwnedFd, into: OwnedFd) -> Option<Self> {
        let is_pipe =
            |end: &OwnedFd| fstat(end).is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Fifo);
        (is_pipe(&out) && is_pipe(&into)).then_some(Self { out, into })
    }
}
