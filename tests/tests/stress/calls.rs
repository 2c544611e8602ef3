//! Sums whose handles are left in every way.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tokio::runtime::Builder;
use tokio::task::yield_now;

use super::member::{Call, Member, check};
use super::{block_on, poll_some};

/// Calls on the group, each left in a way of its own.
pub fn left(member: &mut Member) {
    let lengths = member.lengths();
    let calls: Vec<_> = lengths.iter().map(|length| member.start(&member.group, *length)).collect();
    for (call, length) in calls.into_iter().zip(lengths) {
        leave(member, call, length);
    }
}

fn leave(member: &mut Member, mut call: Call, length: usize) {
    match member.own.below(6) {
        0 => drop(call),
        1 => {
            if let Some(reduced) = poll_some(&mut call, member.own.below(20)) {
                check(&reduced, length);
            }
        }
        2 => {
            let _has_ended = call.test();
        }
        3 => {
            let panicked = catch_unwind(AssertUnwindSafe(move || {
                let _held = call;
                resume_unwind(Box::new("on purpose"));
            }));
            assert!(panicked.is_err());
        }
        4 => check(&block_on(call), length),
        _ => check(&call.wait(), length),
    }
}

/// Calls that tasks await, in a runtime that waits for them or shuts down before.
pub fn in_a_runtime(member: &mut Member) {
    let lengths = member.lengths();
    let calls: Vec<_> = lengths.iter().map(|length| member.start(&member.group, *length)).collect();
    let mut builder = match member.own.below(2) {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let (waits, drives) = (member.own.below(2) == 0, member.own.below(2) == 0);
    let steps = member.own.below(100);
    runtime.block_on(async {
        if drives {
            tokio::spawn(brevity::tokio::drive(&member.group).unwrap());
        }
        let tasks: Vec<_> = calls
            .into_iter()
            .zip(lengths)
            .map(|(call, length)| tokio::spawn(async move { check(&call.await, length) }))
            .collect();
        if waits {
            for task in tasks {
                task.await.unwrap();
            }
        } else {
            for _ in 0..steps {
                yield_now().await;
            }
        }
    });
    // In mid-call: the calls go on without their handles.
    drop(runtime);
}

/// A group is dropped before its calls are left.
pub fn on_a_dropped_twin(member: &mut Member) {
    let (lengths, twin) = (member.lengths(), member.twin());
    let calls: Vec<_> = lengths.iter().map(|length| member.start(&twin, *length)).collect();
    // A message that nobody sends.
    let mut receive = twin.start_recv(member.buffer(vec![0u8; 100]), None, 1);
    if member.own.below(2) == 0 {
        assert!(poll_some(&mut receive, member.own.below(20)).is_none());
    }
    drop(twin);
    for (call, length) in calls.into_iter().zip(lengths) {
        leave(member, call, length);
    }
    drop(receive);
}
