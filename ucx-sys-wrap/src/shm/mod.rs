//! Memory that the ranks of one host share: one segment a rank, which only that rank writes, and a block each
//! way between any two.
//!
//! A [`Neighbourhood`] is the ranks of one host: this rank's [`OwnSegment`], mapped writable, the peers'
//! [`PeerSegment`]s, mapped read-only, and a bell a rank to wake it when it sleeps. What two ranks tell each
//! other, acknowledgements included, each writes into the block that it has made for the other.
//!
//! | bytes of a segment | what |
//! | --- | --- |
//! | 0..4096 | header page: magic, version, rank, bytes of the segment, what its process is known by, and the word that says whether the rank sleeps |
//! | 4096..4096 + [`SLOTS_BYTES`] | slots, for collectives inside the host |
//!
//! A block has what its rank sends to that one neighbour, and what it has taken from it; see `link/mod.rs`.
//!
//! **Trust.** A segment is a memfd, sealed against shrinking, growing, further seals and every mapping that
//! writes, made by its rank, which maps it before it seals it. A block is not sealed against writing: its
//! neighbour maps it writable, because it reads faster so, and writes nothing. No third rank has it, and its
//! rank believes nothing that lies there. Both are given to a peer only after both have proven that they hold
//! the job's key. Who gets one checks that it is a memfd of the kernel's ordinary memory, its seals and its
//! size before it is mapped, so that a reader's pages can't end: of a block, which may be written, its ranks
//! can take pages out, which then read as zeroes. A peer can still write what it likes, whenever it likes:
//! its bytes are loaded as atomics, or copied by code that assumes nothing of them, and every length among
//! them is checked before it is used. Reading a process's memory is asked of the kernel, which checks every
//! address.
//!
//! **Order.** A writer stores the bytes, then a word of its own segment or block with `Release`; a reader
//! loads that word with `Acquire`, then reads the bytes. Bytes stored past the caches ([`OwnArea::stream`])
//! are fenced before that call returns. A reader that has loaded the word sees all bytes that were stored
//! before it.
#![allow(unsafe_code)]

mod area;
mod bell;
pub(crate) mod blocks;
mod copying;
mod credentials;
mod layout;
mod mapping;
mod neighbourhood;
mod process;
mod records;
mod regime;
mod segment;
mod slots;
#[cfg(test)]
mod slots_tests;
mod turnstile;

pub use area::{LINE_BYTES, OwnArea, PeerArea};
pub use bell::Bell;
#[cfg(test)]
pub(crate) use bell::Cord;
pub(crate) use copying::copy as copy_shared;
pub(crate) use credentials::Credentials;
pub use layout::{Layout, SLOTS_BYTES};
pub(crate) use mapping::Mapping;
pub use neighbourhood::Neighbourhood;
pub(crate) use neighbourhood::{GIVEN, Gift, Prepared};
pub use process::why_unreadable;
pub use records::Records;
pub(crate) use regime::{Regime, TELLING_BYTES};
pub use segment::{OwnSegment, PeerSegment};
pub use slots::{CHUNK_BYTES, DEPTH, Header, INLINE_BYTES, Slots, Step};
pub use turnstile::{Hold, Ticket, Turnstile};
