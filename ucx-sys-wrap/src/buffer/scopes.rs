//! The operations in flight of each scope, and the buffers that are kept for them.

use super::operation::Direction;
use crate::transport::{OperationId, Transport};

/// The scopes of a port. The entries of closed scopes are reused, with their memory.
#[derive(Default)]
pub(super) struct Scopes {
    pub(super) all: Vec<ScopeState>,
    closed: Vec<usize>,
}

#[derive(Default)]
pub(super) struct ScopeState {
    /// How often the entry was opened, wrapping.
    pub(super) opening: u32,
    pub(super) in_flight: Vec<InFlight>,
    /// Buffers of canceled operations that have ended.
    kept: Vec<Box<dyn KeptBuffer>>,
}

/// An operation in flight, with its buffer if its future has been dropped.
pub(super) struct InFlight {
    pub(super) id: OperationId,
    buffer: Option<Box<dyn KeptBuffer>>,
}

/// A buffer that is kept until its operation has ended, and then freed.
pub(super) trait KeptBuffer: Send {}

/// The buffers that a closed scope has kept.
///
/// The caller drops them before what they borrow is freed, and after it knows that the scope is closed: the
/// drop of a user's buffer may panic or enter the port.
#[must_use]
pub(super) struct KeptBuffers {
    _kept: Vec<Box<dyn KeptBuffer>>,
}

impl Scopes {
    pub(super) fn open(&mut self) -> usize {
        let scope = self.closed.pop().unwrap_or_else(|| {
            self.all.push(ScopeState::default());
            self.all.len() - 1
        });
        self.all[scope].opening = self.all[scope].opening.wrapping_add(1);
        scope
    }

    pub(super) fn close(&mut self, scope: usize) -> KeptBuffers {
        self.closed.push(scope);
        KeptBuffers { _kept: std::mem::take(&mut self.all[scope].kept) }
    }
}

impl ScopeState {
    #[inline]
    pub(super) fn has_one_at_most(&self) -> bool {
        self.in_flight.len() <= 1
    }

    #[inline]
    pub(super) fn began(&mut self, id: OperationId) {
        self.in_flight.push(InFlight { id, buffer: None });
    }

    #[inline]
    pub(super) fn ended(&mut self, id: OperationId) {
        if let Some(position) = self.in_flight.iter().position(|operation| operation.id == id) {
            self.in_flight.swap_remove(position);
        }
    }

    /// Keeps the buffer of an operation whose future is dropped.
    pub(super) fn keep(&mut self, id: OperationId, buffer: Box<dyn KeptBuffer>) {
        if let Some(operation) = self.in_flight.iter_mut().find(|operation| operation.id == id) {
            operation.buffer = Some(buffer);
        }
    }

    /// Cancels and tests all operations in flight. Returns whether none is left.
    pub(super) fn end_all(&mut self, transport: &mut dyn Transport) -> bool {
        let kept = &mut self.kept;
        self.in_flight.retain_mut(|operation| {
            let has_ended = match operation.id {
                OperationId::Send(id) => id.end_early(transport),
                OperationId::Recv(id) => id.end_early(transport),
                OperationId::Access(id) => id.end_early(transport),
            };
            if has_ended {
                kept.extend(operation.buffer.take());
            }
            !has_ended
        });
        self.in_flight.is_empty()
    }
}
