//! The pieces that every message goes through, on one thread, without a network.
#![allow(clippy::unwrap_used, reason = "a bench may")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag, local};

const SENDER: Rank = Rank(0);
const RECEIVER: Rank = Rank(1);

/// Messages that wait at once where matching is measured.
const WAITING: u32 = 64;

fn envelope(round: u32) -> Envelope {
    Envelope { tag: Tag::new(SENDER, 0, 1, round), signature: Signature::default(), mark: Mark::NONE }
}

fn world() -> (Arc<Port>, Arc<Port>) {
    let mut ranks = local::world(2).into_iter().map(|rank| Port::new(Box::new(rank)));
    (ranks.next().unwrap(), ranks.next().unwrap())
}

fn send(port: &Arc<Port>, round: u32, bytes: &[u8]) {
    scope(
        port,
        |comm| _ = comm.port().progress(),
        async |comm| {
            comm.send(RECEIVER, envelope(round), bytes).await.unwrap();
        },
    );
}

fn receive(port: &Arc<Port>, round: u32, place: &mut [u8]) {
    scope(
        port,
        |comm| _ = comm.port().progress(),
        async |comm| {
            comm.recv(SENDER, envelope(round), place).await.unwrap();
        },
    );
}

/// Entering a transport, and opening and closing a scope.
fn doors(criterion: &mut Criterion) {
    let (port, _peer) = world();
    criterion.bench_function("port/enter", |bench| bench.iter(|| black_box(port.statistics())));
    criterion.bench_function("port/progress", |bench| bench.iter(|| black_box(port.progress())));
    criterion
        .bench_function("scope/empty", |bench| bench.iter(|| scope(&port, |_| (), async |_| black_box(1))));
}

/// A message from one rank to the other, posted, matched and copied.
fn messages(criterion: &mut Criterion) {
    let (sender, receiver) = world();
    let mut group = criterion.benchmark_group("local/message");
    for bytes in [8, 4 << 10, 256 << 10] {
        let (out, mut place) = (vec![1; bytes], vec![0; bytes]);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |bench| {
            bench.iter(|| {
                send(&sender, 0, &out);
                receive(&receiver, 0, &mut place);
            });
        });
    }
    group.finish();
}

/// Messages of different tags that are received last first: each receive looks among all that wait.
fn matching(criterion: &mut Criterion) {
    let (sender, receiver) = world();
    let (out, mut place) = ([1; 8], [0; 8]);
    criterion.bench_function("local/matching 64 tags, last first", |bench| {
        bench.iter(|| {
            (0..WAITING).for_each(|round| send(&sender, round, &out));
            (0..WAITING).rev().for_each(|round| receive(&receiver, round, &mut place));
        });
    });
}

criterion_group!(benches, doors, messages, matching);
criterion_main!(benches);
