//! Calls in any order: bodies that use slots, bodies that do not, and collectives of the group itself.

use brevity::collectives::{Call, Chunk, Description, Operation, dense};
use brevity::{Group, Handle, ReduceOp, Settings};
use brevity_tests::{on_host, oracle};
use proptest::prelude::*;

use super::{body, total};

/// Calls of every kind, started in the same order and waited for in another.
#[derive(Clone, Debug)]
enum Step {
    Run(Vec<usize>),
    Start(Vec<usize>),
    StartPlain(usize),
    AllReduce(usize),
    Messages(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let count = || prop_oneof![0..200usize, 0..3000usize, 0..70_000usize];
    let counts = || prop::collection::vec(count(), 0..4);
    let step = prop_oneof![
        counts().prop_map(Step::Run),
        counts().prop_map(Step::Start),
        count().prop_map(Step::StartPlain),
        count().prop_map(Step::AllReduce),
        count().prop_map(Step::Messages),
    ];
    prop::collection::vec(step, 1..16)
}

/// Sums of all lengths inside one call, with messages between.
async fn sums(call: &Call<'_, '_>, counts: &[usize]) {
    for &count in counts {
        let data = oracle::vector(call.rank(), count);
        let summing = call.describe(dense::describe_all_reduce::<f32>(count, ReduceOp::Sum));
        let data = dense::all_reduce(&summing, Chunk::from(data), ReduceOp::Sum).await.unwrap();
        assert!(data.into_vec() == total(call.world_size(), count));
        if count % 3 == 0 {
            dense::barrier(&call.describe(Description::new(Operation::BARRIER, 0, 0))).await.unwrap();
        }
    }
}

fn play(group: &Group, steps: &[Step]) {
    let mut handles: Vec<Handle<(Vec<usize>, ())>> = Vec::new();
    for (position, step) in steps.iter().enumerate() {
        match step {
            Step::Run(counts) => group.run_in_order(body(), async |call| sums(call, counts).await),
            Step::Start(counts) => {
                let handle =
                    group.start_in_order(body(), counts.clone(), |call, counts| Box::pin(sums(call, counts)));
                // Dropped calls go on; on some ranks only.
                if !(position + group.rank() as usize).is_multiple_of(3) {
                    handles.push(handle);
                }
            }
            Step::StartPlain(count) => {
                handles.push(group.start(body(), vec![*count], |call, counts| Box::pin(sums(call, counts))));
            }
            Step::AllReduce(count) => {
                let mut data = oracle::vector(group.rank(), *count);
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data == total(group.world_size(), *count));
            }
            Step::Messages(count) => group.run(body(), async |call| sums(call, &[*count]).await),
        }
    }
    if group.rank() % 2 == 1 {
        handles.reverse();
    }
    handles.into_iter().for_each(|handle| drop(handle.wait()));
    group.barrier().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_in_any_order(world_size in 1..6u32, progress_thread: bool, steps in steps()) {
        on_host(world_size, Settings { progress_thread, ..Settings::default() }, move |group| {
            play(group, &steps)
        });
    }
}
