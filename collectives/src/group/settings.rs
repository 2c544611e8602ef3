//! What a group is made with.

use std::time::Duration;

use crate::choose::Cost;

/// How long a call may take unless told otherwise: dead peers are found at once, so this is for live ones
/// that hang.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// What a group is made with. All but the timeout and the thread must be the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a call may take before it fails with [`Error::Timeout`](crate::Error::Timeout).
    pub timeout: Duration,
    /// The network that algorithms are chosen for.
    pub cost: Cost,
    /// Whether a thread moves non-blocking calls while nobody else turns the engine. It ends with the group.
    pub progress_thread: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: DEFAULT_TIMEOUT, cost: Cost::default(), progress_thread: false }
    }
}
