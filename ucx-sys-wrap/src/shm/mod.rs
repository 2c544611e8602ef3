//! Memory that the ranks of one host share: a segment for each rank, which only that rank writes, and a
//! channel each way between any two.
//!
//! A [`LocalGroup`] is the local group: this rank's [`OwnSegment`], mapped writable, the peers'
//! [`PeerSegment`]s, mapped read-only, and for each rank a way to wake it. What a rank tells one peer,
//! acknowledgements included, it writes into the channel that it has made for that peer.
//!
//! | bytes of a segment | content |
//! | --- | --- |
//! | 0..4096 | header page: magic, version, rank, bytes of the segment, cookie and its address, sleep word |
//! | 4096.. | [`SLOT_SETS`] sets of slots of [`SLOTS_BYTES`], for collectives inside the host |
//!
//! `link/mod.rs` has the layout of a channel.
//!
//! **Trust.** A segment is a memfd that its rank maps and then seals against shrinking, growing, further
//! seals and further writable mappings. A channel is not sealed against writing: the peer maps it writable,
//! because it reads faster so, and writes nothing. No third rank has a channel, and its owner trusts nothing
//! in it. Both are given to a peer only after both have proven that they hold the job's key. The receiver
//! checks that a descriptor is a memfd of ordinary pages, its seals and its size before it maps it, so that
//! no access can run off its end. (Pages can be taken out of a channel; they then read as zeros.) A peer can
//! write anything at any time: its bytes are loaded as atomics, or copied by code that assumes nothing about
//! them, and every length is checked before use. The kernel reads the memory of another process, and checks
//! every address.
//!
//! **Order.** A writer stores the bytes, then a word of its own segment or channel with `Release`; a reader
//! loads that word with `Acquire`, then reads the bytes. Stores past the caches ([`OwnArea::stream`]) are
//! fenced before that call returns.
#![allow(unsafe_code)]

mod area;
pub(crate) mod blocks;
mod copying;
mod credentials;
mod layout;
mod local_group;
mod mapping;
pub mod order;
mod process;
mod records;
#[cfg(test)]
mod reducing_tests;
mod segment;
mod slots;
#[cfg(test)]
mod slots_tests;
mod store_policy;
mod ticket_lock;
mod wake_receiver;

pub use area::{LINE_BYTES, OwnArea, PeerArea};
pub(crate) use copying::copy as copy_shared;
pub(crate) use credentials::Credentials;
pub use layout::{Layout, SLOT_SETS, SLOTS_BYTES};
pub use local_group::LocalGroup;
pub(crate) use local_group::{PASSED, PassedDescriptors, Prepared};
pub(crate) use mapping::Mapping;
pub use process::why_unreadable;
pub use records::Records;
pub use segment::{OwnSegment, PeerSegment};
pub use slots::{
    CHUNK_BYTES, DEPTH, Fold, Header, INLINE_BYTES, MAX_GENERATIONS, Part, SlotSet, Slots, Step,
};
pub(crate) use store_policy::{MIN_TIMED_BYTES, StorePolicy};
pub use ticket_lock::{LockHandle, Ticket, TicketLock};
pub use wake_receiver::WakeReceiver;
#[cfg(test)]
pub(crate) use wake_receiver::WakeSender;
