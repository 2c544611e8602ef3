//! The handle of a non-blocking average.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use brevity_collectives::Group;
use brevity_collectives::engine::Handle;

use super::GradientExchange;
use super::flight::Running;
use super::parts::Parts;
use crate::error::Result;

/// What a non-blocking average returns: the exchange, the gradients, and the outcome.
pub type Averaged<G = Vec<f32>> = ((GradientExchange, Vec<G>), Result<()>);

/// The same without the group.
type AveragedParts<G> = ((Parts, Vec<G>), Result<()>);

/// An average in progress: test it, wait for it, or await it in any runtime. See [`GradientExchange::start`].
///
/// The handle owns the group and the call does not: a call that owned the group whose engine runs it would
/// never be freed.
#[must_use = "a dropped average loses the exchange and its residuals"]
pub struct Averaging<G = Vec<f32>> {
    pub(super) handle: Handle<AveragedParts<G>>,
    pub(super) group: Group,
    /// A step in the middle of which the average was refused.
    pub(super) running: Option<Running>,
}

impl<G> Averaging<G> {
    /// Polls the group's engine once and returns whether this call is complete.
    #[must_use]
    pub fn test(&self) -> bool {
        self.handle.test()
    }

    /// Whether this call is complete, without polling the engine.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.handle.has_ended()
    }

    /// As [`Handle::wake_at_end`].
    pub fn wake_at_end(&self, waker: &Waker) -> bool {
        self.handle.wake_at_end(waker)
    }

    /// Blocks until the call is complete, at the latest when its deadline passes.
    ///
    /// # Panics
    /// Resumes the call's own panic, if it panicked.
    pub fn wait(self) -> Averaged<G> {
        let ((parts, gradients), result) = self.handle.wait();
        ((GradientExchange { group: self.group, parts, running: self.running }, gradients), result)
    }
}

impl<G> Future for Averaging<G> {
    type Output = Averaged<G>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Averaged<G>> {
        let ((parts, gradients), result) = ready!(Pin::new(&mut self.handle).poll(context));
        Poll::Ready((
            (GradientExchange { group: self.group.clone(), parts, running: self.running.take() }, gradients),
            result,
        ))
    }
}
