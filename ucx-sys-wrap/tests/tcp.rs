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
#[path = "tcp/neighbours.rs"]
mod neighbours;
#[path = "tcp/segments.rs"]
mod segments;
#[path = "tcp/world.rs"]
mod world;

use ucx_sys_wrap::Transport;
use ucx_sys_wrap::tcp::Tcp;

#[test]
fn battery() {
    common::battery("tcp", |world_size| {
        world::world(world_size as usize).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
    });
}

#[test]
fn battery_over_shared_memory() {
    common::battery("tcp, shared memory", |world_size| boxed(world::neighbours(world_size as usize, true)));
}

#[test]
fn battery_over_shared_memory_without_reading_others() {
    common::battery("tcp, rings alone", |world_size| boxed(world::neighbours(world_size as usize, false)));
}

fn boxed(world: Vec<Tcp>) -> Vec<Box<dyn Transport>> {
    world.into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
}
