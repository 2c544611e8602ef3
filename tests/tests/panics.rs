//! Bodies that panic on one rank: the calls of the others end at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use brevity::collectives::{Call, CallFuture, Chunk, Description, Error, Operation, Result, dense};
use brevity::transport::{Rank, local};
use brevity::{Group, Handle, ReduceOp, Settings};
use brevity_tests::{on_groups, on_host};

const WORLD_SIZE: u32 = 3;

/// Generous: it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a rank makes the call, and what it gets. A rank that panics returns when its group is closed.
type Way = fn(&Group) -> Result<()>;

const WAYS: [(&str, Way); 5] = [
    ("run", |group| group.run(description(), async |call| body(call).await)),
    ("run in order", |group| group.run_in_order(description(), async |call| body(call).await)),
    ("start", |group| start(group).wait().1),
    ("start in order", |group| group.start_in_order(description(), (), |call, ()| boxed(call)).wait().1),
    ("start and drop", |group| {
        if !panics(group.rank()) {
            return start(group).wait().1;
        }
        drop(start(group));
        let begun = Instant::now();
        while !group.is_closed() && begun.elapsed() < PATIENCE {}
        panic!("as the body did")
    }),
];

fn description() -> Description {
    Description::new(Operation::MESSAGE, 0, 0)
}

fn start(group: &Group) -> Handle<((), Result<()>)> {
    group.start(description(), (), |call, ()| boxed(call))
}

fn boxed<'a>(call: &'a Call<'_, '_>) -> CallFuture<'a, Result<()>> {
    Box::pin(body(call))
}

fn panics(rank: u32) -> bool {
    rank == 1
}

/// Two sums; one rank panics in between.
async fn body(call: &Call<'_, '_>) -> Result<()> {
    for turn in 0..2 {
        assert!(turn == 0 || !panics(call.rank()), "on purpose");
        let call = call.describe(dense::AllReduce::new::<f32>(ReduceOp::Sum).unwrap().describe(10));
        let ones = Chunk::from(vec![1.0f32; 10]);
        let sum = dense::all_reduce(&call, ones, ReduceOp::Sum).await?;
        assert_eq!(sum.into_vec(), [3.0; 10]);
    }
    Ok(())
}

fn all_are_told(
    on: impl Fn(Settings, Arc<dyn Fn(&Group) -> Option<Error> + Send + Sync>) -> Vec<Option<Error>>,
) {
    for (name, way) in WAYS {
        // Nobody leaves the group before all have their errors.
        let step = Barrier::new(WORLD_SIZE as usize);
        let ends = on(
            Settings { timeout: PATIENCE, ..Settings::default() },
            Arc::new(move |group| {
                let ended = catch_unwind(AssertUnwindSafe(|| way(group)));
                let later = group.barrier().unwrap_err();
                step.wait();
                assert_eq!(ended.is_err(), panics(group.rank()), "{name}");
                assert!(matches!(later, Error::Aborted { rank: Rank(1) }), "{name}: {later}");
                ended.ok().map(Result::unwrap_err)
            }),
        );
        let is_told = |end: &Option<Error>| matches!(end, None | Some(Error::Aborted { rank: Rank(1) }));
        assert!(ends.iter().all(is_told), "{name}: {ends:?}");
    }
}

#[test]
fn a_panic_over_messages_ends_the_calls_of_all() {
    all_are_told(|settings, body| {
        let world = local::world(WORLD_SIZE).into_iter();
        let groups = world.map(|rank| Group::new(Box::new(rank), settings));
        on_groups(groups.collect(), move |group| body(group))
    });
}

#[test]
fn a_panic_over_slots_ends_the_calls_of_all() {
    all_are_told(|settings, body| on_host(WORLD_SIZE, settings, move |group| body(group)));
}

/// What a rank has found before it panics is not hidden by its panic.
#[test]
fn a_panic_after_a_mismatch_names_the_mismatch() {
    let step = Arc::new(Barrier::new(2));
    let world = local::world(2).into_iter();
    let groups = world.map(|rank| Group::new(Box::new(rank), Settings::default()));
    let ends = on_groups(groups.collect(), move |group| {
        let called = catch_unwind(AssertUnwindSafe(|| {
            let length = 10 + group.rank() as usize;
            group.run(dense::describe_all_reduce::<f32>(length, ReduceOp::Sum), async |call| {
                let data = Chunk::from(vec![1.0f32; length]);
                dense::all_reduce(call, data, ReduceOp::Sum).await.map(drop).unwrap();
            });
        }));
        let later = group.barrier().unwrap_err();
        step.wait();
        assert!(called.is_err());
        later
    });
    assert!(ends.iter().all(|end| matches!(end, Error::Differs { .. })), "{ends:?}");
}

/// The call keeps the group, of which its rank has dropped all handles.
#[test]
fn a_panic_in_a_group_without_handles_is_told() {
    let ended = Arc::new(AtomicU32::new(0));
    let body = move |group: &Group| {
        let part = group.duplicate().unwrap();
        let told = if panics(group.rank()) {
            drop((start(&part), part));
            // As an application that makes other calls meanwhile.
            while ended.load(Ordering::Relaxed) < WORLD_SIZE - 1 {
                group.progress();
            }
            None
        } else {
            let told = start(&part).wait().1.unwrap_err();
            ended.fetch_add(1, Ordering::Relaxed);
            Some(told)
        };
        group.barrier().unwrap();
        told
    };
    let settings = Settings { timeout: PATIENCE, ..Settings::default() };
    let world = local::world(WORLD_SIZE).into_iter();
    let ends = on_groups(world.map(|rank| Group::new(Box::new(rank), settings)).collect(), body);
    let is_told = |end: &Option<Error>| matches!(end, None | Some(Error::Aborted { rank: Rank(1) }));
    assert!(ends.iter().all(is_told), "{ends:?}");
}
