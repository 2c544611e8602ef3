//! Tasks that are given up, by any thread, while another may be polling them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::comm::Comm;
use super::port::Port;
use crate::transport::OperationId;

/// What to [give up](Port::give_up): a scope, as long as it is open.
pub struct GiveUp {
    scope: usize,
    opening: u32,
    is_given_up: Arc<AtomicBool>,
}

impl Comm<'_> {
    /// The argument of [`Port::give_up`] for this scope. It may outlive the scope.
    #[must_use]
    pub fn to_give_up(&self) -> GiveUp {
        let (scope, inner) = (self.scope_key(), self.port().enter());
        let opening = inner.scopes.borrow().all[scope].opening;
        GiveUp { scope, opening, is_given_up: Arc::clone(self.given_up.get_or_init(Arc::default)) }
    }

    /// Whether this scope is given up: it must take no message that has not begun to come.
    #[inline]
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.given_up.get().is_some_and(|is_given_up| is_given_up.load(Ordering::Acquire))
    }
}

impl Port {
    /// From now on the scope takes no message that has not begun to come: the receives that it has posted end
    /// with [`Error::Canceled`](crate::Error::Canceled), and [`Comm::recv_found`] finds nothing. Everything
    /// else goes on, until the deadline passes ([`Comm::expire`]). The next turn wakes the tasks of what has
    /// ended. Blocks only while another thread is inside; in a forked child it does nothing.
    pub fn give_up(&self, what: &GiveUp) {
        if self.has_forked() {
            return;
        }
        let inner = self.enter();
        // Inside: whoever is about to take a message has entered before, or sees this.
        what.is_given_up.store(true, Ordering::Release);
        let scopes = inner.scopes.borrow();
        let scope = &scopes.all[what.scope];
        if scope.opening == what.opening {
            let mut transport = inner.transport.borrow_mut();
            for operation in &scope.in_flight {
                if let OperationId::Recv(id) = operation.id {
                    transport.withdraw_recv(id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::local;
    use crate::transport::Wanted;
    use crate::{Envelope, Error, Mark, Rank, Result, Signature, Tag};

    const BYTES: usize = 8;

    /// The ports of two ranks.
    fn ports() -> [Arc<Port>; 2] {
        let ports: Vec<_> = local::world(2).into_iter().map(|rank| Port::new(Box::new(rank))).collect();
        ports.try_into().ok().unwrap()
    }

    fn envelope() -> Envelope {
        Envelope { tag: Tag::of_user(Rank(1), 0, 3), signature: Signature::default(), mark: Mark::NONE }
    }

    fn send(port: &Arc<Port>) {
        let comm = Comm::open(port, 0);
        let sent = comm.send(Rank(0), envelope(), vec![7u8; BYTES]);
        poll(port, sent).unwrap();
    }

    /// Turns the port until `future` is ready.
    fn poll<T>(port: &Port, future: impl Future<Output = Result<T>>) -> Result<T> {
        let (mut future, mut context) = (pin!(future), Context::from_waker(Waker::noop()));
        for _ in 0..1000 {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            port.progress();
        }
        panic!("it does not end");
    }

    #[test]
    fn what_is_given_up_takes_no_message_that_comes_later() {
        let [port, peer] = ports();
        let (given_up, other) = (Comm::open(&port, 0), Comm::open(&port, 0));
        let receive = given_up.recv(Rank(1), envelope(), vec![0u8; BYTES]);
        let behind = other.recv(Rank(1), envelope(), vec![0u8; BYTES]);
        port.give_up(&given_up.to_give_up());
        send(&peer);
        assert_eq!(poll(&port, behind).unwrap().0, [7; BYTES]);
        assert!(matches!(poll(&port, receive), Err(Error::Canceled)));
        send(&peer);
        let wanted = Wanted { context: 0, epoch: 0, source: None, tag: Some(3), after: Rank(0) };
        let place = |_: &_| Some(vec![0u8; BYTES]);
        assert!(port.probe(&wanted).unwrap().is_some(), "it has come");
        assert!(given_up.recv_found(&wanted, Signature::default(), place).unwrap().is_none());
        let (_, found) = other.recv_found(&wanted, Signature::default(), place).unwrap().unwrap();
        assert_eq!(poll(&port, found).unwrap().0, [7; BYTES]);
    }

    #[test]
    fn what_has_ended_gives_nothing_up() {
        let [port, peer] = ports();
        let ended = Comm::open(&port, 0);
        let (what, scope) = (ended.to_give_up(), ended.scope_key());
        port.close_scope(scope);
        let next = Comm::open(&port, 0);
        assert_eq!(next.scope_key(), scope);
        let receive = next.recv(Rank(1), envelope(), vec![0u8; BYTES]);
        port.give_up(&what);
        send(&peer);
        assert_eq!(poll(&port, receive).unwrap().0, [7; BYTES]);
    }
}
