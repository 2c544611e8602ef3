//! Leaving a job in a runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use super::Group;
use crate::context::Context;
use crate::elsewhere::Elsewhere;
use crate::error::Result;

/// This rank's leaving of a job, which goes on, on a thread of its own: [`Group::leave`].
///
/// # Panics
/// Like other futures, it panics if it is polled after it was ready.
#[must_use = "a process that ends before this has may take with it what was sent"]
pub struct Leaving(Elsewhere<Result<()>>);

impl Group {
    /// Drops this handle of the group without blocking this thread. If it is the last of all groups of the
    /// job, a thread of its own leaves the job, as a drop does: it waits until what was sent is on its way.
    /// The future ends after that, and may be awaited in any runtime. Otherwise it ends at once.
    ///
    /// Leaving takes 15 s at most, if peers do not read what was sent, and mostly milliseconds. If the future
    /// is dropped, leaving goes on.
    ///
    /// Exchanges hold groups, and handles and regions hold the transport: drop them before. Otherwise the
    /// drop of the last of these leaves, and blocks.
    ///
    /// ```
    /// # async fn work() -> brevity_collectives::Result<()> {
    /// let group = brevity_collectives::Join::from_env()?.join_async().await?;
    /// group.start_barrier().await.1?;
    /// group.leave().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked), which leaves the job to the parent process. What a peer has
    /// not read in time is logged, as by a drop.
    pub fn leave(self) -> Leaving {
        if let Err(error) = self.check_process() {
            return Leaving(Elsewhere::ended(Err(error)));
        }
        let Self { context, .. } = self;
        let last = Arc::into_inner(context).and_then(|Context { ranks, world, .. }| {
            drop(ranks);
            Arc::into_inner(world)
        });
        Leaving(match last {
            None => Elsewhere::ended(Ok(())),
            Some(world) => {
                let leave = move || {
                    drop(world);
                    Ok(())
                };
                // Without a thread, the world was dropped here.
                Elsewhere::start("brevity leave", leave, |_| Ok(()))
            }
        })
    }
}

impl Future for Leaving {
    type Output = Result<()>;

    /// # Panics
    /// If an earlier poll has returned the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Task<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll(context)
    }
}
