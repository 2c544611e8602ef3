//! How scopes and ports treat buffers whose drop panics or enters the port.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Waker};

use super::*;
use crate::buffer::Task;
use crate::buffer::scopes::KeptBuffer;
use crate::local;
use crate::transport::{OperationId, Posted, RecvParts};
use crate::{Envelope, Mark, Signature, Tag};

/// A buffer that runs a function when it is dropped.
struct Kept<F: FnMut() + Send>(F);

impl<F: FnMut() + Send> KeptBuffer for Kept<F> {}

impl<F: FnMut() + Send> Drop for Kept<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Posts three receives, each with a buffer that enters the port when it is dropped and finds nothing in
/// flight; the second panics.
fn post(port: &Arc<Port>, scope: usize) {
    let inner = port.enter();
    for sequence in 0..3 {
        let tag = Tag::new(Rank(1), 0, 0, sequence);
        let envelope = Envelope { tag, signature: Signature::default(), mark: Mark::NONE };
        let posted = inner.transport.borrow_mut().post_recv(Rank(1), envelope, RecvParts::new());
        let Posted::Pending(id) = posted else { panic!("nobody has sent anything") };
        let id = OperationId::Recv(id);
        let entered = Arc::clone(port);
        let kept = Kept(move || {
            assert_eq!(entered.statistics().messages_received, 0);
            assert_eq!(in_flight(&entered, scope), 0);
            assert!(sequence != 1, "as intended");
        });
        inner.scopes.borrow_mut().all[scope].began(id);
        inner.scopes.borrow_mut().all[scope].keep(id, Box::new(kept));
    }
}

fn in_flight(port: &Port, scope: usize) -> usize {
    port.enter().scopes.borrow().all[scope].in_flight.len()
}

/// The panic that `body` ends with.
fn caught(body: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(body)).unwrap_err();
    panic.downcast_ref::<&str>().map_or_else(|| "another".into(), ToString::to_string)
}

#[test]
fn all_operations_have_ended_when_a_buffer_is_dropped() {
    let mut world = local::world(2);
    let port = Port::new(Box::new(world.remove(0)));
    let scope = port.open_scope();
    post(&port, scope);
    assert_eq!(caught(|| port.close_scope(scope)), "as intended");
    assert_eq!(in_flight(&port, scope), 0);
    assert_ne!(port.open_scope(), port.open_scope(), "closed once");
}

#[test]
fn a_task_whose_buffer_panics_is_over() {
    let mut world = local::world(2);
    let port = Port::new(Box::new(world.remove(0)));
    for is_polled in [true, false] {
        let mut task = Task::new(&port, (), |comm, ()| {
            post(comm.port(), comm.scope_key());
            Box::pin(std::future::ready(()))
        });
        let scope = task.comm().scope_key();
        if is_polled {
            let polled = || assert!(task.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(caught(polled), "as intended");
            drop(task);
        } else {
            assert_eq!(caught(|| drop(task)), "as intended");
        }
        assert_eq!(in_flight(&port, scope), 0);
        assert_ne!(port.open_scope(), port.open_scope(), "closed once");
    }
}
