//! Non-blocking calls move, without a progress thread, although the application only makes blocking calls
//! that never wait.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use brevity::collectives::{Call, Chunk, Description, Operation, Result, dense};
use brevity::transport::bootstrap::Opened;
use brevity::transport::local;
use brevity::transport::shm::LocalGroup;
use brevity::{Group, Handle, ReduceOp, Settings};
use brevity_tests::on_local;

const LENGTH: usize = 1000;

/// Generous: it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// More calls than the pending one needs, by far.
const CALLS: usize = 1500;

type Reduced = (Vec<f32>, ());

/// An all-reduce by messages whose end is seen without turning the engine.
fn start_seen(group: &Group) -> (Handle<Reduced>, Receiver<Result<()>>) {
    let (sender, receiver) = channel();
    let description = Description::new(Operation::MESSAGE, 0, LENGTH);
    let handle = group.start(description, vec![1.0f32; LENGTH], |call: &Call<'_, '_>, data| {
        Box::pin(async move {
            let data = Chunk::from(&mut data[..]);
            let reduced = dense::all_reduce(call, data, ReduceOp::Sum).await;
            sender.send(reduced.map(drop)).unwrap();
        })
    });
    (handle, receiver)
}

/// Whether the pending call has ended.
fn has_ended(ended: &Receiver<Result<()>>) -> bool {
    match ended.try_recv() {
        Ok(result) => result.is_ok(),
        Err(TryRecvError::Empty) => false,
        Err(TryRecvError::Disconnected) => true,
    }
}

/// Rank 0 has published its part whenever rank 1 calls, so rank 1 never waits.
#[test]
fn calls_over_slots_that_succeed_at_once_move_others() {
    let ranks = local::world(2).into_iter().zip(LocalGroup::in_process(2).unwrap());
    let groups = ranks.map(|(rank, local_group)| {
        Group::opened(Opened::in_process(Box::new(rank), Some(local_group)), Settings::default())
    });
    let groups: Vec<Group> = groups.collect();
    // In this order, so that the call of rank 1 has something to wait for.
    let [ended_1, ended_0] = [&groups[1], &groups[0]].map(start_seen);
    let mut calls = 0..CALLS;
    while !has_ended(&ended_1.1) {
        assert!(calls.next().is_some(), "rank 1 has moved nothing");
        let published = groups[0].start_all_reduce(vec![1.0f32], ReduceOp::Sum);
        let mut sum = [1.0f32];
        groups[1].all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        let published = published.wait();
        assert!(published.1.is_ok() && published.0 == sum && sum == [2.0]);
    }
    for handle in [ended_0.0, ended_1.0] {
        assert_eq!(handle.wait().0, [2.0; LENGTH]);
    }
}

/// Calls on a group of one rank wait for nobody.
#[test]
fn calls_of_one_rank_move_others() {
    on_local(2, |group| {
        let alone = group.split(Some(group.rank()), 0).unwrap().unwrap();
        let (handle, ended) = start_seen(group);
        let begun = Instant::now();
        while !has_ended(&ended) {
            assert!(begun.elapsed() < PATIENCE, "rank {} has moved nothing", group.rank());
            alone.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
            yield_now();
        }
        assert_eq!(handle.wait().0, [2.0; LENGTH]);
    });
}
