//! What every call costs besides its messages: its number, the digest of all calls so far, and the scope of
//! its body. For each message a call adds nothing to that: they carry what the call has computed.
#![allow(clippy::unwrap_used, reason = "a bench may")]

use std::hint::black_box;

use brevity_collectives::{Description, Group, Operation, Settings};
use criterion::{Criterion, criterion_group, criterion_main};
use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::local;
use ucx_sys_wrap::shm::LocalGroup;

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

criterion_group!(benches, calls);
criterion_main!(benches);
