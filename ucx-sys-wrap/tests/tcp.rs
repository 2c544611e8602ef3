//! The tcp transport over loopback sockets: what it moves, what it refuses, and what it says when somebody dies.
//!
//! In the tests beside the battery all ranks are driven from one thread, so that what happens between two steps is
//! known.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Nothing here but tests.

mod common;

#[path = "tcp/canceling.rs"]
mod canceling;
#[path = "tcp/credit.rs"]
mod credit;
#[path = "tcp/endings.rs"]
mod endings;
#[path = "tcp/messages.rs"]
mod messages;
#[path = "tcp/world.rs"]
mod world;

use ucx_sys_wrap::Transport;

#[test]
fn battery() {
    common::battery("tcp", |world_size| {
        world::world(world_size as usize).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
    });
}
