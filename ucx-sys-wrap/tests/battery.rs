//! Runs the tests that every transport must pass on every wire.

mod common;

use brevity_testing::{Wire, on_every_wire};

on_every_wire! {
    battery => |wire: Wire| common::battery(&format!("{wire:?}"), |world_size| wire.world(world_size));
}
