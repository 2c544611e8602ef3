//! Reductions of the program: in the calls that block, and when they fail or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};

use brevity::collectives::{Error, Result};
use brevity::transport::{Rank, local};
use brevity::{Group, Reduction, Settings};
use brevity_tests::reductions::{Reading, readings, together};
use brevity_tests::{on_groups, on_host, on_local};

const WORLD_SIZE: u32 = 3;

/// The calls that block have the results of those that are started, which `dense` tests.
fn blocking_calls_reduce(group: &Group) {
    let (together, count, rank) = (together(), 100, group.rank() as usize);
    let ranks = group.world_size() as usize;
    let own = readings(group.rank(), ranks * count);
    let zeros = |count| vec![<Reading as bytemuck::Zeroable>::zeroed(); count];
    let (sum, result) = group.start_all_reduce(own.clone(), &together).wait();
    result.unwrap();
    assert!(sum.iter().all(|reading| reading.ranks == group.world_size()));
    let (block, is_root) = (rank * count..(rank + 1) * count, rank == 1);

    let (mut data, mut output) = (own.clone(), zeros(own.len()));
    group.all_reduce(&mut data, &together).unwrap();
    group.all_reduce_to(&own, &mut output, &together).unwrap();
    assert!(data == sum && output == sum);
    (data, output) = (own.clone(), zeros(own.len()));
    group.reduce_in_place(&mut data, &together, 1).unwrap();
    group.reduce(&own, &mut output, &together, 1).unwrap();
    assert!(!is_root || (data == sum && output == sum));
    for lengths in [None, Some(vec![count; ranks])] {
        (data, output) = (own.clone(), zeros(count));
        match lengths {
            None => {
                group.reduce_scatter_in_place(&mut data, &together).unwrap();
                group.reduce_scatter(&own, &mut output, &together).unwrap();
            }
            Some(lengths) => {
                group.reduce_scatter_v_in_place(&mut data, &lengths, &together).unwrap();
                group.reduce_scatter_v(&own, &mut output, &lengths, &together).unwrap();
            }
        }
        assert!(data[block.clone()] == sum[block.clone()] && output == sum[block.clone()]);
    }
}

#[test]
fn calls_that_block_reduce() {
    on_local(WORLD_SIZE, blocking_calls_reduce);
    on_host(WORLD_SIZE, Settings::default(), blocking_calls_reduce);
}

/// Runs `body` on ranks over messages, and over slots.
fn over_all<R: Send + 'static>(body: impl Fn(&Group) -> R + Clone + Send + 'static) -> [Vec<R>; 2] {
    let world = local::world(WORLD_SIZE).into_iter();
    let groups = world.map(|rank| Group::new(Box::new(rank), Settings::default())).collect();
    [on_groups(groups, body.clone()), on_host(WORLD_SIZE, Settings::default(), body)]
}

type Way = fn(&Group, usize, &Reduction<u64>) -> Result<()>;

const WAYS: [(&str, Way); 2] = [
    ("blocking", |group, count, reduction| group.all_reduce(&mut vec![1; count], reduction)),
    ("started", |group, count, reduction| group.start_all_reduce(vec![1; count], reduction).wait().1),
];

/// What a rank gets from calls that one rank's reduction ends; `None` for a panic.
fn ends(fails: fn() -> std::result::Result<(), i32>) -> Vec<(&'static str, Vec<Option<Error>>)> {
    let mut all = Vec::new();
    for (name, way) in WAYS {
        // At least a cache line for each rank, so that every algorithm has rank 1 reduce something.
        for count in [24, 1000, 100_000] {
            // Nobody leaves the group before all have their errors.
            let step = Arc::new(Barrier::new(WORLD_SIZE as usize));
            let found = over_all(move |group| {
                let is_odd = group.rank() == 1;
                let reduction = Reduction::new(
                    "odd",
                    move |_: &mut [u64], _: &[u64]| {
                        if is_odd { fails() } else { Ok(()) }
                    },
                );
                // A rank that has all it needs may return without an error, once.
                let call = || way(group, count, &reduction).and_then(|()| way(group, count, &reduction));
                let ended = catch_unwind(AssertUnwindSafe(call));
                let later = group.barrier().unwrap_err();
                assert!(matches!(later, Error::Aborted { rank: Rank(1) }), "{later}");
                step.wait();
                ended.ok().map(Result::unwrap_err)
            });
            all.extend(found.map(|ends| (name, ends)));
        }
    }
    all
}

fn others_are_told(name: &str, ends: &[Option<Error>]) {
    for rank in [0, 2] {
        let told = &ends[rank];
        assert!(matches!(told, Some(Error::Aborted { rank: Rank(1) })), "{name}, rank {rank}: {told:?}");
    }
}

#[test]
fn a_status_closes_the_group() {
    for (name, ends) in ends(|| Err(7)) {
        others_are_told(name, &ends);
        let error = ends[1].as_ref().unwrap();
        assert!(matches!(error, Error::User { name, status: 7 } if name == "odd"), "{name}: {error}");
    }
}

#[test]
fn a_panic_closes_the_group() {
    for (name, ends) in ends(|| panic!("on purpose")) {
        others_are_told(name, &ends);
        assert!(ends[1].is_none(), "{name}: {ends:?}");
    }
}
