//! Groups in a program that runs on smol, or on another executor with the reactor of `async-io`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

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
                Next::Sleep(longest) => {
                    let (mut readable, mut timer) = (pin!(descriptor.readable()), Timer::after(longest));
                    poll_fn(|context| {
                        let is_over = readable.as_mut().poll(context).is_ready()
                            || Pin::new(&mut timer).poll(context).is_ready();
                        if is_over { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                }
                Next::Idle if poll_fn(|context| driver.poll_wanted(context)).await => {}
                Next::Idle | Next::Ended => return,
            }
        }
    })
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
