//! Messages that are received by whoever finds them: of any source, any tag, or a length that is not known.

use std::sync::atomic::Ordering;

use super::comm::Comm;
use super::memory::RecvBuffer;
use super::operation::Recv;
use super::port::{Inner, Port};
use crate::transport::{Found, Wanted, Which};
use crate::{Envelope, Mark, Result, Signature};

impl Port {
    /// The first message that is wanted and that no receive has; see
    /// [`Transport::probe`](crate::Transport::probe). Does not move the transport.
    ///
    /// # Errors
    /// Why the context is closed, if it is.
    pub fn probe(&self, wanted: &Wanted) -> Result<Option<Found>> {
        self.enter().probe(wanted)
    }
}

impl Inner {
    fn probe(&self, wanted: &Wanted) -> Result<Option<Found>> {
        if self.has_closed.load(Ordering::Relaxed) {
            self.check_context(wanted.context)?;
        }
        loop {
            let found = self.transport.borrow_mut().probe(wanted);
            let Some(found) = found else { return Ok(None) };
            let source = found.tag.source();
            if self.is_member(wanted.context, source) {
                return Ok(Some(found));
            }
            // Only a rank that breaks the protocol sends here.
            self.transport.borrow_mut().discard(wanted.context, Which::From(source, wanted.epoch));
        }
    }
}

impl<'env> Comm<'env> {
    /// Posts a receive of the first message that is wanted, if one has come, into the buffer that `place`
    /// makes for it. No other receive can get the message in between. Without a buffer it stays. A scope that
    /// is [given up](Port::give_up) finds none.
    ///
    /// # Errors
    /// As [`Port::probe`].
    pub fn recv_found<B: RecvBuffer + 'env>(
        &self,
        wanted: &Wanted,
        signature: Signature,
        place: impl FnOnce(&Found) -> Option<B>,
    ) -> Result<Option<(Found, Recv<'_, 'env, B>)>> {
        let inner = self.port().enter();
        if self.is_given_up() {
            return Ok(None);
        }
        let found = loop {
            let Some(found) = inner.probe(wanted)? else { return Ok(None) };
            if inner.transport.borrow_mut().claim() {
                break found;
            }
        };
        let Some(buffer) = place(&found) else {
            inner.transport.borrow_mut().unclaim();
            return Ok(None);
        };
        let envelope = Envelope { tag: found.tag, signature, mark: Mark::NONE };
        let receive = self.recv(found.tag.source(), envelope, buffer);
        Ok(Some((found, receive)))
    }
}
