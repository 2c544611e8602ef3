//! Groups that are shrunk once more, because a call has ended with an error, or was dropped, after the ranks
//! had agreed; and those that are taken for others of long ago.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use brevity::collectives::Error;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};
use brevity_tests::on_local;

/// There is a number for the context that the ranks agree on, and none for the group in it.
#[test]
fn when_there_was_no_number_for_the_new_group() {
    on_local(3, |group| {
        let closed = group.duplicate().unwrap();
        let mut others = Vec::new();
        while let Ok(other) = group.duplicate() {
            others.push(other);
        }
        closed.abort();
        for free in 0..3 {
            others.truncate(others.len() - usize::from(free > 0));
            group.barrier().unwrap();
            match closed.shrink() {
                // One number for the context, and another one for the group.
                Err(error) => assert!(free < 2 && matches!(error, Error::TooManyGroups), "{free}: {error}"),
                Ok(left) => {
                    assert_eq!((free, left.world_size()), (2, 3));
                    left.barrier().unwrap();
                    assert!(matches!(closed.shrink(), Err(Error::HasShrunk)));
                    others.clear();
                    // Nobody waits in the barrier any more.
                    group.barrier().unwrap();
                    left.abort();
                    left.shrink().unwrap().barrier().unwrap();
                }
            }
        }
    });
}

/// A rank drops its shrink after any number of turns, and begins again.
#[test]
fn when_a_shrink_was_dropped() {
    let dropped_after = |most: usize| {
        let ended = run(Cluster::new(3, Links::new(100e-6, 1e-9)), |transport| async move {
            let mut group = Group::new(transport, Settings::default());
            group.abort();
            let mut first = None;
            if group.rank() == 1 {
                let mut shrunk = pin!(group.start_shrink());
                let mut turns = 0..most;
                first = poll_fn(|context| match shrunk.as_mut().poll(context) {
                    Poll::Ready(left) => Poll::Ready(Some(left.unwrap())),
                    Poll::Pending if turns.next().is_none() => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                })
                .await;
            }
            let was_dropped = first.is_none();
            // The others may have been ahead: then their group is closed, and they shrink it too.
            loop {
                group = match first.take() {
                    Some(left) => left,
                    None => group.start_shrink().await.unwrap(),
                };
                if group.start_barrier().await.1.is_ok() {
                    return (was_dropped, group.world_size());
                }
            }
        });
        ended.unwrap()
    };
    let mut most = 0;
    loop {
        let sizes = dropped_after(most);
        assert!(sizes.iter().all(|(_, size)| *size == 3), "dropped after {most} turns: {sizes:?}");
        if !sizes[1].0 {
            break;
        }
        most += 1;
    }
    assert!(most > 10, "only {most} turns");
}

/// The epochs of messages are the same again after 256 groups of one number.
#[test]
fn when_another_group_had_its_number_long_ago() {
    on_local(2, |group| {
        for turn in 0..262 {
            let part = group.duplicate().unwrap();
            if turn == 0 || turn > 250 {
                part.abort();
                part.shrink().unwrap().barrier().unwrap();
            }
        }
        group.barrier().unwrap();
    });
}
