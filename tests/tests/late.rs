//! Calls that begin after a timeout elsewhere has closed the group: they name the rank whose call it was.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use brevity::collectives::Error;
use brevity::transport::Rank;
use brevity::transport::bootstrap::Opened;
use brevity::transport::shm::LocalGroup;
use brevity::{Group, ReduceOp, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::on_groups;

/// Only rank 0 has a short timeout.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(100);

fn settings(rank: usize) -> Settings {
    Settings { timeout: if rank == 0 { SHORT } else { LONG }, ..Settings::default() }
}

on_every_wire! {
    a_late_call_names_the_rank_that_closed_the_group => |wire: Wire| {
        let groups = wire.world(3).into_iter().enumerate();
        late_calls(groups.map(|(rank, transport)| Group::new(transport, settings(rank))).collect());
    };
}

#[test]
fn a_late_call_over_slots_names_the_rank_that_closed_the_group() {
    let local_groups = LocalGroup::in_process(3).unwrap();
    let ranks = Wire::TcpShared.world(3).into_iter().zip(local_groups).enumerate();
    let groups = ranks.map(|(rank, (transport, local_group))| {
        Group::opened(Opened::in_process(transport, Some(local_group)), settings(rank))
    });
    late_calls(groups.collect());
}

/// Rank 0 gives up; then rank 1 makes the call, and then rank 2, which starts it and waits.
fn late_calls(groups: Vec<Group>) {
    let step = Arc::new(Barrier::new(3));
    let mut errors = on_groups(groups, move |group| {
        let rank = group.rank();
        (0..rank).for_each(|_| _ = step.wait());
        let result = if rank == 2 {
            group.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum).wait().1
        } else {
            group.all_reduce(&mut [1.0f32; 4], ReduceOp::Sum)
        };
        // No rank leaves before all have called.
        (rank..3).for_each(|_| _ = step.wait());
        result.unwrap_err()
    });
    for late in errors.drain(1..) {
        assert!(matches!(late, Error::Aborted { rank: Rank(0) }), "{late}");
        assert!(late.to_string().contains("a call of rank 0 timed out"), "{late}");
    }
    assert!(matches!(errors[0], Error::Timeout { after, .. } if after >= SHORT), "{}", errors[0]);
}

#[test]
fn a_call_that_waited_says_how_long_and_for_whom() {
    let groups = Wire::Tcp.world(3).into_iter().enumerate();
    let groups = groups.map(|(rank, transport)| Group::new(transport, settings(rank))).collect();
    let step = Arc::new(Barrier::new(3));
    let errors = on_groups(groups, move |group| {
        let error = if group.rank() == 2 { None } else { group.barrier().err() };
        step.wait();
        error
    });
    let waited = |error: &Option<Error>| match error {
        Some(Error::Timeout { after, .. }) => *after < LONG,
        // It may have begun late.
        error => matches!(error, Some(Error::Aborted { rank: Rank(0) })),
    };
    assert!(errors[..2].iter().all(waited), "{errors:?}");
}
