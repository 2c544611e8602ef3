//! A call that has its number before it starts.

use std::fmt;

use super::Group;
use super::run::{CallFuture, Made};
use crate::call::{Call, Shared};
use crate::description::Description;
use crate::engine::Handle;

/// A custom call with a number, and a place among the calls over shared memory, that [starts](Self::start)
/// later. Ranks that reserve their calls in the same order may start them in any.
///
/// Other ranks wait for the call once they have started it: one that is dropped instead closes the group
/// ([`Group::abort`]).
#[must_use = "a reserved call that is not started closes the group"]
pub struct Reserved {
    group: Group,
    made: Made,
    shared: Shared,
    has_started: bool,
}

impl Group {
    /// Takes the number of a custom call that starts later.
    ///
    /// With `in_order` it is as if made by [`start_in_order`](Self::start_in_order): its collectives on dense
    /// vectors use shared memory, from now on in its turn. Then no blocking call over shared memory may come
    /// between this and its start: it would wait until its deadline.
    pub fn reserve(&self, description: Description, in_order: bool) -> Reserved {
        let made = self.next_call(description, 0);
        let inside = if in_order { self.inside(made.signature, 0) } else { None };
        Reserved { group: self.clone(), made, shared: Shared::new(inside), has_started: false }
    }
}

impl Reserved {
    /// Starts the call on `buffers`, as [`Group::start`] does. The timeout begins here.
    pub fn start<B, R, F>(mut self, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        self.has_started = true;
        self.group.start_body(self.made, std::mem::take(&mut self.shared), buffers, body)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.has_started {
            self.group.abort();
        }
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reserved").field("number", &self.made.numbered.number).finish_non_exhaustive()
    }
}
