//! Tests of several ranks, as one program: each file here would otherwise link the whole library once more.
//! Those that look at what their process does as a whole, or that `ci/test.sh` picks, are programs of their
//! own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod averages;
mod awaiting;
mod coded;
mod collectives;
mod dense;
mod differ;
mod estimates;
mod exchange;
mod exchange_state;
mod faults;
mod float_modes;
mod group_kills;
mod groups;
mod groups_sim;
mod handles;
mod host;
mod host_bodies;
mod hosts;
mod joining;
mod large;
mod late;
mod launchers;
mod leaving;
mod left_memory;
mod messages;
mod names;
mod not_finite;
mod one_sided;
mod panics;
mod pending;
mod processes;
mod properties;
mod put_back;
mod secrecy;
mod segments;
mod server;
mod shared_buffers;
mod shared_memory;
mod sim;
mod strangers;
mod wakers;
mod warnings;
