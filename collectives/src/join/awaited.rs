//! Joining on a thread of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ucx_sys_wrap::Error as Transport;
use ucx_sys_wrap::bootstrap::Cancel;

use super::Join;
use crate::elsewhere::Elsewhere;
use crate::error::{Error, Result};
use crate::group::Group;

/// A join that goes on, on a thread of its own: [`Join::join_async`].
///
/// # Panics
/// Like other futures, it panics if it is polled after it was ready.
#[must_use = "a dropped join is given up"]
pub struct Joining {
    work: Elsewhere<Result<Group>>,
    cancel: Cancel,
}

impl Joining {
    pub(super) fn start(join: Join) -> Self {
        let cancel = Cancel::default();
        let canceled = cancel.clone();
        let work = Elsewhere::start(
            "brevity join",
            move || canceled.during(|| join.join()),
            |error| Err(Error::Transport(Transport::system("can't start a thread that joins", error))),
        );
        Self { work, cancel }
    }
}

impl Future for Joining {
    type Output = Result<Group>;

    /// # Panics
    /// With the panic of the join, if it panicked. If an earlier poll has returned the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Group>> {
        Pin::new(&mut self.work).poll(context)
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
