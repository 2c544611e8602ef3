//! Pages of one rank's memory that go to a neighbour through pipes: one copy, which the neighbour makes.
//!
//! Who reads another process's memory has its pages looked up on its own processor, one by one, between two
//! copies. A pipe holds references to pages: so the sender looks them up, while the receiver copies those
//! that it was given before.
//!
//! The receiver makes the pipes, and says in its block which descriptors they are. The sender gets them from
//! the kernel (`pidfd_getfd`), which allows it where it allows to read that process's memory. It takes both
//! ends: a pipe that nobody can read any more, as when the receiver has died, would end the sender by a
//! signal. The sender asks in each call not to be blocked; the receiver reads no more than what is there,
//! since who shares a descriptor shares its flags.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, ioctl_fionread, read};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, vmsplice};

use super::area::{LINE_BYTES, OwnArea};
use super::neighbourhood::Neighbourhood;
use super::process::Process;
use crate::{Error, Result};

/// Pipes from one rank to another, which take turns: the kernel lets one process at a time into each.
pub(crate) const PIPES: usize = 2;

/// The most that goes into a pipe at once, in bytes. It may begin and end within a page.
pub(crate) const PIPED_BYTES: usize = 128 << 10;

/// What a pipe is asked to hold: twice as many pages.
const ROOM_BYTES: usize = 2 * PIPED_BYTES;

/// Which descriptors pipes are, as their receiver says it: none where a word is zero.
pub(super) type Words = [u64; PIPES];

/// The most ranks of a host that have pipes: a pair of them costs each four descriptors and the system's user
/// 256 of the pages that pipes may hold.
const MOST_RANKS: usize = 8;

/// The receiver's side.
pub(crate) struct Outlet {
    pipes: [Ends; PIPES],
    /// Where the neighbour finds their descriptors.
    words: OwnArea,
    /// The process that has made them.
    process: u32,
}

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
    /// New pipes, of which the line `words` tells.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor left, or allows no pipes of that size any more.
    fn new(words: OwnArea) -> Result<Self> {
        let ends = || {
            let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            fcntl_setpipe_size(&into, ROOM_BYTES)?;
            Ok(Ends { out, into })
        };
        let pipes = ends().and_then(|first| Ok([first, ends()?]));
        let pipes = pipes.map_err(|error: Errno| Error::system("can't make a pipe to a neighbour", error))?;
        let outlet = Self { pipes, words, process: std::process::id() };
        let half = |descriptor: &OwnedFd| u64::from(descriptor.as_raw_fd().cast_unsigned()) + 1;
        outlet.say(outlet.pipes.each_ref().map(|ends| half(&ends.out) << 32 | half(&ends.into)));
        Ok(outlet)
    }

    fn say(&self, words: Words) {
        for (word, value) in self.words.line(0).iter().zip(words) {
            word.store(value, Ordering::SeqCst);
        }
    }

    /// Copies what the sender has put into the pipe `index` to all of `into`; says whether it was as much.
    pub(crate) fn read(&self, index: usize, mut into: &mut [u8]) -> bool {
        let out = &self.pipes[index % PIPES].out;
        if ioctl_fionread(out).is_ok_and(|there| there < into.len() as u64) {
            return false;
        }
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

impl Drop for Outlet {
    /// The numbers may be other descriptors' soon. A child that has come by a fork says nothing: the block is
    /// its parent's too.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.say([0; PIPES]);
        }
    }
}

impl Inlet {
    /// The sender's side of the pipes that `process` has made, if it has and the system allows it.
    pub(super) fn new(process: &Process, words: Words) -> Option<Self> {
        let number = |half: u64| i32::try_from(half.checked_sub(1)?).ok();
        let [first, second] =
            words.map(|word| Some([number(word >> 32)?, number(word & u64::from(u32::MAX))?]));
        let ([first_out, first_into], [second_out, second_into]) = (first?, second?);
        let [a, b, c, d] = process.descriptors([first_out, first_into, second_out, second_into])?;
        Some(Self([Ends::received(a, b)?, Ends::received(c, d)?]))
    }

    /// Puts references to the pages of `bytes` into the pipe `index`, which must be empty; says whether all
    /// went in. Their memory is read until the receiver has copied it: whatever is written there meanwhile is
    /// what it gets.
    ///
    /// Where it failed, the pipe may hold a part: it can't be used any more.
    pub(crate) fn put(&self, index: usize, mut bytes: &[u8]) -> bool {
        let into = &self.0[index % PIPES].into;
        while !bytes.is_empty() {
            // SAFETY: it is the end to write to, which was checked, so the memory is only read, through
            // references to its pages, which the kernel keeps for as long as they lie in the pipe, whatever
            // becomes of their mapping here.
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
    /// Whether it was not tried in vain.
    pub(crate) fn may_be_open(&self) -> bool {
        !matches!(self, Self::Barred)
    }

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
    /// Makes pipes for the rank at `place`, unless that was tried, and says so in the line at `at` of the
    /// block for it. Costs four descriptors.
    pub(crate) fn invite(
        &mut self,
        neighbourhood: &Neighbourhood,
        place: usize,
        at: usize,
    ) -> Option<&Outlet> {
        if let (Self::Untried, Some(block)) = (&self, neighbourhood.own_block(place)) {
            let may_be = neighbourhood.ranks().len() <= MOST_RANKS;
            let pipes = may_be.then(|| Outlet::new(block.area(at..at + LINE_BYTES)));
            *self = match pipes {
                Some(Ok(pipes)) => Self::Open(pipes),
                Some(Err(error)) => {
                    tracing::debug!(%error, "what comes from a neighbour is copied twice");
                    Self::Barred
                }
                None => Self::Barred,
            };
        }
        self.get()
    }
}

impl Attempt<Inlet> {
    /// The pipes that the rank at `place` has made, if it has said so in the line at `at` of its block.
    pub(crate) fn find(&mut self, neighbourhood: &Neighbourhood, place: usize, at: usize) -> Option<&Inlet> {
        if let (Self::Untried, Some(block)) = (&self, neighbourhood.peer_block(place)) {
            let load = || -> Words { std::array::from_fn(|index| block.load(at + 8 * index)) };
            let words = load();
            if !words.contains(&0) {
                // If it says so still, those were they: it takes the words back before it closes them.
                let inlet = neighbourhood.inlet(place, words).filter(|_| load() == words);
                *self = inlet.map_or(Self::Barred, Self::Open);
            }
        }
        self.get()
    }
}

impl Ends {
    /// Those that a neighbour has said, if they are the two of one pipe: what a call does with the memory
    /// that it is given depends on which end it gets.
    fn received(out: OwnedFd, into: OwnedFd) -> Option<Self> {
        let has_mode = |end, mode| fcntl_getfl(end).is_ok_and(|flags| flags & OFlags::ACCMODE == mode);
        let is_right = has_mode(&out, OFlags::RDONLY) && has_mode(&into, OFlags::WRONLY);
        let (first, second) = (fstat(&out).ok()?, fstat(&into).ok()?);
        let is_pipe = FileType::from_raw_mode(first.st_mode) == FileType::Fifo
            && (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino);
        (is_right && is_pipe).then_some(Self { out, into })
    }
}
