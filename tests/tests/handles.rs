//! Handles of non-blocking calls that are waited for, tested, dropped, forgotten or abandoned by a panic at
//! random: the calls go on, and their results are right. `BREVITY_STRESS_SECONDS` sets the time on each
//! transport (default 1), `BREVITY_STRESS_SEED` the plan (printed).

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use brevity::transport::Transport;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Handle, ReduceOp, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::random::{Random, seconds_and_seed};
use brevity_tests::{on_groups, oracle};

const WORLD_SIZE: u32 = 3;
const LENGTHS: [usize; 4] = [1, 100, 20_000, 300_000];

on_every_wire! {
    calls_go_on => |wire: Wire| stress(&format!("{wire:?}"), wire.world(WORLD_SIZE), false);
    beside_progress_threads => |wire: Wire| {
        stress(&format!("{wire:?}, with progress threads"), wire.world(WORLD_SIZE), true);
    };
}

fn stress(name: &str, world: Vec<Box<dyn Transport>>, progress_thread: bool) {
    let (seconds, seed) = seconds_and_seed(name, 1);
    let end = Instant::now() + Duration::from_secs(seconds.min(60));
    let settings = Settings { progress_thread, ..Settings::default() };
    let groups = world.into_iter().map(|transport| Group::new(transport, settings));
    let calls = on_groups(groups.collect(), move |group| {
        // All ranks make the same calls, but treat the handles differently.
        let (mut common, mut own) =
            (Random::new(seed), Random::new(seed ^ u64::from(group.rank() + 1) << 40));
        let mut calls = 0;
        let mut forgotten = 0;
        loop {
            let lengths: Vec<usize> = (0..=common.below(4)).map(|_| LENGTHS[common.below(4)]).collect();
            calls += lengths.len();
            let handles: Vec<_> = lengths.iter().map(|length| start(group, *length)).collect();
            for (handle, length) in handles.into_iter().zip(lengths) {
                // A forgotten handle keeps its group, so there must not be too many.
                forgotten += usize::from(!leave(&mut own, handle, length, forgotten < 20));
            }
            // Rank 0 tells all whether there is another round.
            let mut goes_on = [u8::from(Instant::now() < end)];
            group.broadcast(&mut goes_on, 0).unwrap();
            if goes_on == [0] {
                // The others may still wait for calls that this rank has dropped but must still poll.
                group.barrier().unwrap();
                return calls;
            }
        }
    });
    println!("{name}: {calls:?} calls");
}

type Reduced = (Vec<f32>, brevity::collectives::Result<()>);
type Call = Handle<Reduced>;

fn start(group: &Group, length: usize) -> Call {
    group.start_all_reduce(oracle::vector(group.rank(), length), ReduceOp::Sum)
}

/// Returns false if the handle was forgotten.
fn leave(random: &mut Random, handle: Call, length: usize, may_forget: bool) -> bool {
    match random.below(5) {
        0 => drop(handle),
        1 if may_forget => {
            forget(handle);
            return false;
        }
        2 => {
            let _ = handle.test();
            drop(handle);
        }
        3 => leave_by_a_panic(handle),
        _ => {
            check(handle.wait(), length);
        }
    }
    true
}

fn leave_by_a_panic(handle: Call) {
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _held = handle;
        resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
}

fn check((sum, result): Reduced, length: usize) {
    result.unwrap();
    let vectors: Vec<_> = (0..WORLD_SIZE).map(|rank| oracle::vector(rank, length)).collect();
    assert!(sum == oracle::sum(&vectors), "a wrong sum of {length} elements");
}

/// The same in virtual time, where handles are awaited.
#[test]
fn calls_go_on_on_the_simulator() {
    for seed in 1..=30 {
        let cluster = Cluster::new(WORLD_SIZE, Links::new(0.436e-3, 9e-9));
        let ended = run(cluster, |transport| {
            let group = Group::new(transport, Settings::default());
            async move {
                let (mut common, mut own) =
                    (Random::new(seed), Random::new(seed ^ u64::from(group.rank() + 1) << 40));
                for _ in 0..10 {
                    let lengths: Vec<usize> =
                        (0..=common.below(4)).map(|_| LENGTHS[common.below(4)]).collect();
                    let handles: Vec<_> = lengths.iter().map(|length| start(&group, *length)).collect();
                    for (handle, length) in handles.into_iter().zip(lengths) {
                        match own.below(4) {
                            0 => drop(handle),
                            1 => forget(handle),
                            2 => leave_by_a_panic(handle),
                            _ => check(handle.await, length),
                        }
                    }
                }
                // The others may still wait for calls whose handles this rank has dropped.
                check(start(&group, 1).await, 1);
            }
        });
        assert_eq!(ended.unwrap().len(), WORLD_SIZE as usize, "seed {seed}");
    }
}
