//! Sends and receives of a call in flight.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ucx_sys_wrap::buffer::{PostedOperation, RecvBuffer, SendBuffer};
use ucx_sys_wrap::{Lengths, Rank, RecvId, SendId};

#[cfg(doc)]
use super::Call;
use super::shared::{Marked, Shared};
use crate::error::{CallSite, Result};

/// A send in flight; see [`Call::send`].
#[must_use = "a send that is dropped is canceled"]
pub struct Sending<'a, 'env, B: SendBuffer + 'env> {
    pub(super) leaf: PostedOperation<'a, 'env, B, SendId>,
    pub(super) site: &'a CallSite<'a>,
    pub(super) shared: &'a Shared,
}

impl<'env, B: SendBuffer + 'env> Future for Sending<'_, 'env, B> {
    type Output = Result<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        let ended = ready!(Pin::new(&mut self.leaf).poll(context));
        Poll::Ready(ended.map(|(buffer, ())| buffer).map_err(|error| self.shared.error(self.site, error)))
    }
}

/// A receive in flight; see [`Call::recv_up_to`].
#[must_use = "a receive that is dropped is canceled"]
pub struct ReceivingUpTo<'a, 'env, B: RecvBuffer + 'env> {
    pub(super) leaf: PostedOperation<'a, 'env, B, RecvId>,
    pub(super) site: &'a CallSite<'a>,
    pub(super) shared: &'a Shared,
    pub(super) marked: &'a Marked,
    pub(super) from: Rank,
}

impl<'env, B: RecvBuffer + 'env> Future for ReceivingUpTo<'_, 'env, B> {
    type Output = Result<(B, Lengths)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.leaf).poll(context)) {
            Ok((buffer, arrival)) => {
                self.marked.hear(arrival.mark);
                self.shared.counters().count_received(arrival.lengths.iter().sum());
                Ok((buffer, arrival.lengths))
            }
            Err(error) => Err(self.shared.error(self.site, error)),
        })
    }
}

/// A receive of known size in flight; see [`Call::recv`].
#[must_use = "a receive that is dropped is canceled"]
pub struct Receiving<'a, 'env, B: RecvBuffer + 'env> {
    pub(super) up_to: ReceivingUpTo<'a, 'env, B>,
    pub(super) expected: Lengths,
}

impl<'env, B: RecvBuffer + 'env> Future for Receiving<'_, 'env, B> {
    type Output = Result<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        let (buffer, lengths) = match ready!(Pin::new(&mut self.up_to).poll(context)) {
            Ok(arrived) => arrived,
            Err(error) => return Poll::Ready(Err(error)),
        };
        Poll::Ready(if lengths == self.expected {
            Ok(buffer)
        } else {
            let what = format!("parts of {lengths:?} bytes, expected {:?}", self.expected);
            Err(self.up_to.shared.refuse(self.up_to.from, what))
        })
    }
}
