//! What every call costs besides its messages: its number, the digest of all calls so far, and the scope of
//! its body. For each message a call adds nothing to that: they carry what the call has computed.
//!
//! And what a turn of the engine costs while receives are pending: it must not depend on how many.
#![allow(clippy::unwrap_used, reason = "a bench may")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use brevity_collectives::engine::{Engine, Handle};
use brevity_collectives::{Description, Group, Operation, Settings};
use criterion::{Criterion, criterion_group, criterion_main};
use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::buffer::Port;
use ucx_sys_wrap::shm::LocalGroup;
use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag, local};

/// Two ranks of this thread, with shared memory or without.
fn pair(shares_memory: bool) -> [Group; 2] {
    let mut shares = LocalGroup::in_process(2).unwrap().into_iter();
    let groups = local::world(2).into_iter().map(|rank| {
        let share = shares.next().filter(|_| shares_memory);
        Group::opened(Opened::in_process(Box::new(rank), share), Settings::default())
    });
    groups.collect::<Vec<_>>().try_into().unwrap_or_else(|_| unreachable!("there are two"))
}

fn calls(criterion: &mut Criterion) {
    let group = Group::solo();
    let description = Description::new(Operation::ALL_REDUCE, 1, 1000);
    criterion.bench_function("call/empty", |bench| {
        bench.iter(|| group.run(black_box(description), async |call| black_box(call.rank())));
    });
    for (name, shares_memory) in [("slots", true), ("messages", false)] {
        let groups = pair(shares_memory);
        let mut data = [1u8; 8];
        // The root does not wait for the other rank, which then has nothing to wait for.
        criterion.bench_function(&format!("call/two broadcasts over {name}"), |bench| {
            bench.iter(|| groups.each_ref().map(|group| group.broadcast(black_box(&mut data), 0).unwrap()));
        });
    }
}

/// Turns in a sample of [`turns`], and samples.
const TURNS: u32 = 10_000;
const SAMPLES: usize = 21;

/// Starts receives of messages that do not come.
fn pending(engine: &std::sync::Arc<Engine>, count: u32) -> Vec<Handle<(Vec<u8>, bool)>> {
    let receive = |round| {
        engine.spawn(Duration::from_secs(1000), vec![0u8; 8], move |comm, place| {
            let tag = Tag::new(Rank(1), 0, 0, round);
            let envelope = Envelope { tag, signature: Signature::default(), mark: Mark::NONE };
            let receive = comm.recv(Rank(1), envelope, &mut place[..]);
            Box::pin(async move { receive.await.is_ok() })
        })
    };
    (0..count).map(receive).collect()
}

/// The time of a turn with few and with many pending receives, in nanoseconds, and their ratio.
fn turns(_: &mut Criterion) {
    let world =
        || local::world(2).into_iter().map(|rank| Engine::new(Port::new(Box::new(rank)), None, false));
    let counts = [10, 1000];
    let worlds: Vec<Vec<_>> = counts.iter().map(|_| world().collect()).collect();
    let receives: Vec<_> =
        worlds.iter().zip(counts).map(|(world, count)| pending(&world[0], count)).collect();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..SAMPLES {
        // Interleaved.
        for (world, times) in worlds.iter().zip(&mut times) {
            let begun = Instant::now();
            (0..TURNS).for_each(|_| _ = black_box(world[0].turn()));
            times.push(begun.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS));
        }
    }
    let [few, many] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[SAMPLES / 2]
    });
    println!("turn/10 receives pending: {few:.0} ns; 1000: {many:.0} ns; ratio {:.2}", many / few);
    drop(receives);
}

criterion_group!(benches, calls, turns);
criterion_main!(benches);
