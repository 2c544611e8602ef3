//! Groups in a program that runs on smol, or on another executor with the reactor of `async-io`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use async_io::{Async, Timer};
use brevity_collectives::engine::Next;

use crate::{Error, Group, Result};

/// A task that moves the calls of the group's job and wakes the tasks that await them, until the job has
/// ended for this rank. Spawn it, and detach it, where the calls are awaited.
///
/// Without it, awaited calls end too: the group's own thread wakes them. With it, no thread of the group is
/// woken in between, and calls whose handles were dropped go on.
///
/// # Errors
/// As for [`Group::driver`], and when the reactor can't watch the group's descriptor.
pub fn drive(group: &Group) -> Result<impl Future<Output = ()> + Send + 'static> {
    let mut driver = group.driver()?;
    let descriptor = Async::new_nonblocking(driver.descriptor()).map_err(Error::watching)?;
    Ok(async move {
        loop {
            match driver.turn() {
                Next::Again => yield_now().await,
                Next::Sleep(longest) => match before(longest, descriptor.readable()).await {
                    Some(Ok(())) | None => {}
                    Some(Err(_)) => return,
                },
                Next::Idle(longest) => {
                    let wanted = poll_fn(|context| driver.poll_wanted(context));
                    if before(longest.unwrap_or(Duration::MAX), wanted).await == Some(false) {
                        return;
                    }
                }
                Next::Ended => return,
            }
        }
    })
}

/// What `future` gives, unless so much time passes before.
async fn before<T>(longest: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut timer) = (pin!(future), Timer::after(longest));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Pin::new(&mut timer).poll(context).map(|_| None),
    })
    .await
}

/// Lets other tasks run.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
