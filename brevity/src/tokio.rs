//! Groups in a program that runs on tokio.

use std::future::{Future, poll_fn};

use brevity_collectives::engine::Next;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::{Error, Group, Result};

/// A task that moves the calls of the group's job and wakes the tasks that await them, until the job has
/// ended for this rank. Spawn it where the calls are awaited:
///
/// ```no_run
/// # async fn start() -> Result<(), brevity::Error> {
/// let group = brevity::Join::from_env()?.join_async().await?;
/// tokio::spawn(brevity::tokio::drive(&group)?);
/// let (sum, result) = group.start_all_reduce(vec![1.0f32; 8], brevity::ReduceOp::Sum).await;
/// # result?;
/// # Ok(())
/// # }
/// ```
///
/// Without it, awaited calls end too: the group's own thread wakes them. With it, no thread is woken in
/// between, and calls whose handles were dropped go on.
///
/// # Errors
/// As for [`Group::driver`], and when the runtime can't watch the group's descriptor.
///
/// # Panics
/// Outside of a runtime, or in one without its drivers for sockets and time (`enable_all`).
pub fn drive(group: &Group) -> Result<impl Future<Output = ()> + Send + 'static> {
    let mut driver = group.driver()?;
    #[allow(
        deprecated,
        reason = "sound here: the descriptor stays the same and open; the new way is unsafe code"
    )]
    let descriptor = AsyncFd::with_interest(driver.descriptor(), Interest::READABLE);
    let descriptor = descriptor.map_err(Error::watching)?;
    Ok(async move {
        loop {
            match driver.turn() {
                Next::Again => yield_now().await,
                Next::Sleep(longest) => match timeout(longest, descriptor.readable()).await {
                    // Before the next turn, which looks at everything that has come until now.
                    Ok(Ok(mut readable)) => readable.clear_ready(),
                    // The runtime ends: the group's thread takes over.
                    Ok(Err(_)) => return,
                    Err(_) => {}
                },
                Next::Idle(longest) => {
                    let wanted = poll_fn(|context| driver.poll_wanted(context));
                    let is_wanted = match longest {
                        Some(longest) => timeout(longest, wanted).await.unwrap_or(true),
                        None => wanted.await,
                    };
                    if !is_wanted {
                        return;
                    }
                }
                Next::Ended => return,
            }
        }
    })
}
