//! The tcp transport over loopback sockets: what it moves, what it refuses, and what it says when somebody dies.
//!
//! In the tests beside the battery all ranks are driven from one thread, so that what happens between two steps is
//! known.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Nothing here but tests.

mod common;

#[path = "tcp/answers.rs"]
mod answers;
#[path = "tcp/canceling.rs"]
mod canceling;
#[path = "tcp/copies.rs"]
mod copies;
#[path = "tcp/credit.rs"]
mod credit;
#[path = "tcp/endings.rs"]
mod endings;
#[path = "tcp/liars.rs"]
mod liars;
#[path = "tcp/messages.rs"]
mod messages;
#[path = "tcp/neighbours.rs"]
mod neighbours;
#[path = "tcp/segments.rs"]
mod segments;
#[path = "tcp/streams.rs"]
mod streams;
#[path = "tcp/world.rs"]
mod world;

use ucx_sys_wrap::Transport;
use ucx_sys_wrap::tcp::Tcp;
use world::Lanes;

#[test]
fn battery() {
    common::battery("tcp", |world_size| {
        world::world(world_size as usize).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
    });
}

#[test]
fn battery_over_two_streams() {
    battery_over(Lanes { streams: 2, encrypt: false });
}

#[test]
fn battery_over_four_streams() {
    battery_over(Lanes { streams: 4, encrypt: false });
}

#[test]
fn battery_encrypted() {
    battery_over(Lanes { streams: 1, encrypt: true });
}

#[test]
fn battery_over_four_encrypted_streams() {
    battery_over(Lanes { streams: 4, encrypt: true });
}

fn battery_over(lanes: Lanes) {
    common::battery(&format!("tcp, {lanes:?}"), |world_size| boxed(world::met(world_size as usize, lanes)));
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
