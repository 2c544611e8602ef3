//! Settings of groups.

use std::time::Duration;

use crate::choose::Cost;

/// The default timeout of calls. Dead peers are detected at once, so this is for live peers that hang.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The settings of a group. All except the timeout and the thread must be equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The time after which a call fails with [`Error::Timeout`](crate::Error::Timeout).
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
