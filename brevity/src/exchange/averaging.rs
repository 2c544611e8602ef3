//! What the caller of a non-blocking average holds.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use brevity_collectives::Group;
use brevity_collectives::engine::Handle;

use super::{GradientExchange, Parts};
use crate::error::Result;

/// What a non-blocking average gives back: the exchange, the gradients, and how it went.
pub type Averaged = ((GradientExchange, Vec<Vec<f32>>), Result<()>);

/// The same without the group.
type AveragedParts = ((Parts, Vec<Vec<f32>>), Result<()>);

/// An average under way: test it, wait for it, or await it from any runtime; see
/// [`GradientExchange::start`].
///
/// It holds the group, so that the call itself need not: a call that held the group that moves it would never
/// be freed.
#[must_use = "a dropped average loses the exchange and its residuals"]
pub struct Averaging {
    pub(super) handle: Handle<AveragedParts>,
    pub(super) group: Group,
}

impl Averaging {
    /// Moves the group's calls once and says whether this one has ended.
    #[must_use]
    pub fn test(&self) -> bool {
        self.handle.test()
    }

    /// Blocks until the call has ended, which its deadline makes sure of.
    ///
    /// # Panics
    /// With the call's own panic, if it panicked.
    pub fn wait(self) -> Averaged {
        let ((parts, gradients), result) = self.handle.wait();
        ((GradientExchange { group: self.group, parts }, gradients), result)
    }
}

impl Future for Averaging {
    type Output = Averaged;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Averaged> {
        let ((parts, gradients), result) = ready!(Pin::new(&mut self.handle).poll(context));
        Poll::Ready(((GradientExchange { group: self.group.clone(), parts }, gradients), result))
    }
}
