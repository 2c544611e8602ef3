//! Joins that are awaited.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use brevity::collectives::Result;
use brevity::{Group, Join, Joining};

use super::{AMPLE, SHORT, loopback_id, missing, transport_error, works};

/// Wakes a thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls all joins on this thread, only when one of them has woken it.
fn all(joins: Vec<Joining>) -> Vec<Result<Group>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut context, end) = (Context::from_waker(&waker), Instant::now() + AMPLE);
    let mut joins: Vec<_> = joins.into_iter().map(|join| (join, None)).collect();
    loop {
        for (join, result) in &mut joins {
            if result.is_none()
                && let Poll::Ready(joined) = Pin::new(join).poll(&mut context)
            {
                *result = Some(joined);
            }
        }
        if joins.iter().all(|(_, result)| result.is_some()) {
            return joins.into_iter().filter_map(|(_, result)| result).collect();
        }
        assert!(Instant::now() < end, "a join does not wake its task");
        thread::park_timeout(AMPLE);
    }
}

#[test]
fn all_ranks_of_a_job_join_on_one_thread() {
    let id = loopback_id();
    let joins = (0..3).map(|rank| Join::new(rank, 3).id(id.clone()).join_async()).collect();
    let groups: Vec<Group> = all(joins).into_iter().map(Result::unwrap).collect();
    thread::scope(|threads| {
        for group in &groups {
            threads.spawn(|| works(group));
        }
    });
}

#[test]
fn errors_are_awaited_too() {
    let joins =
        vec![Join::new(3, 2).join_async(), Join::new(0, 2).id(loopback_id()).timeout(SHORT).join_async()];
    let [wrong, alone] = all(joins).try_into().ok().unwrap();
    assert!(transport_error(wrong).to_string().starts_with("rank is 3"));
    assert_eq!(missing(&transport_error(alone)), [1]);
}
