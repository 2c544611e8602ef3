//! The end of a call's body.

use ucx_sys_wrap::buffer::Comm;

use crate::call::Shared;
use crate::context::Ranks;
use crate::difference::explain;
use crate::engine::Status;

/// Closes the context at the end of a call that this rank leaves early, so that no rank waits for it. A body
/// that panics because of an error leaves for that error.
pub(super) struct Leave<'a, 'env> {
    pub(super) comm: &'a Comm<'env>,
    pub(super) ranks: &'a Ranks,
    pub(super) shared: &'a Shared,
}

impl Leave<'_, '_> {
    /// Likewise, and finds out what differs if calls do.
    pub(super) async fn explained(self, status: &Status) {
        let Self { comm, ranks, shared } = self;
        drop(self);
        if shared.has_differed() {
            explain(comm, ranks, status).await;
        }
    }
}

impl Drop for Leave<'_, '_> {
    fn drop(&mut self) {
        let port = self.comm.port();
        if let Some(cause) = self.shared.broken(port.rank()) {
            port.fail(self.ranks.number, cause);
        }
    }
}
