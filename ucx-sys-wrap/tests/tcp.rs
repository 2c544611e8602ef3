//! The tcp transport over loopback sockets: what it moves, what it refuses, and its errors when a rank dies.
//!
//! Besides the shared cases, these tests drive all ranks from one thread, so that the state between two steps
//! is known.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Nothing here but tests.

#[path = "tcp/answers.rs"]
mod answers;
#[path = "tcp/canceling.rs"]
mod canceling;
#[path = "tcp/connections.rs"]
mod connections;
#[path = "tcp/copies.rs"]
mod copies;
#[path = "tcp/credit.rs"]
mod credit;
#[path = "tcp/endings.rs"]
mod endings;
#[path = "tcp/liars.rs"]
mod liars;
#[path = "tcp/local_peers.rs"]
mod local_peers;
#[path = "tcp/messages.rs"]
mod messages;
#[path = "tcp/reading.rs"]
mod reading;
#[path = "tcp/segments.rs"]
mod segments;
#[path = "tcp/world.rs"]
mod world;
