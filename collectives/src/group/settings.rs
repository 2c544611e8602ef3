//! Settings of groups.

use std::time::Duration;

use super::Group;
use crate::dense::SLICE_BYTES;
use crate::plan::{Machine, Wishes};

/// The default timeout of calls. Dead peers are detected at once, so this is for live peers that hang.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The settings of a group.
///
/// Those that decide which algorithms are taken are equal on all ranks: the machine, the order of sums,
/// segments and wishes. When ranks [join](crate::Join) a job, all take those of rank 0. A rank that was given
/// others says so in a warning.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The time after which a call fails with [`Error::Timeout`](crate::Error::Timeout).
    pub timeout: Duration,
    /// The speeds that algorithms are chosen for. `None` to measure them when ranks join a job, in at most 30
    /// ms; a group that is made otherwise has the [default](Machine::default).
    pub machine: Option<Machine>,
    /// Whether sums of floating-point numbers may have any order, where that is faster. Otherwise they have
    /// the fixed one, and the same bits for every length, algorithm and transport.
    pub any_order: bool,
    /// Algorithms to use in place of the fastest.
    pub wishes: Wishes,
    /// Long vectors are cut into segments whose messages have at most so many bytes: 64 to 2^30. While one
    /// segment is reduced, the next one is on its way. Results do not depend on it.
    pub segment_bytes: usize,
    /// Whether a thread moves non-blocking calls while nobody else turns the engine. It ends with the group.
    pub progress_thread: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            machine: None,
            any_order: false,
            wishes: Wishes::default(),
            segment_bytes: SLICE_BYTES,
            progress_thread: false,
        }
    }
}

impl Group {
    /// The settings that are in force for this group, and what has come of them, as names and values: for
    /// logs and reports. Names may be added.
    ///
    /// `rank` and `world_size` are those of the group, `world_rank` and `job_size` those of all ranks.
    /// `timeout` is in seconds. `host_ranks` counts the ranks that share memory with this one, itself
    /// included, and `hosts` the hosts of the group. `machine` has the speeds that algorithms are chosen for
    /// ([`Machine`]); `algorithm` those that are used in place of the fastest, `segment` the bytes of a
    /// message of a long vector. Switches are 0 or 1.
    ///
    /// ```
    /// let settings = brevity_collectives::Group::solo().settings_in_force();
    /// assert!(settings.contains(&("timeout", "300".to_owned())));
    /// ```
    #[must_use]
    pub fn settings_in_force(&self) -> Vec<(&'static str, String)> {
        let Settings { any_order, wishes, segment_bytes, progress_thread, .. } = *self.settings();
        let plan = self.context.ranks.plan();
        let switch = |is_on: bool| u8::from(is_on).to_string();
        let host = self.local_group().map(|local_group| local_group.ranks());
        let timeout = self.timeout();
        vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("rank", self.rank().to_string()),
            ("world_size", self.world_size().to_string()),
            ("world_rank", self.port().rank().to_string()),
            ("job_size", self.port().world_size().to_string()),
            ("transport", self.transport().to_owned()),
            (
                "timeout",
                if timeout == Duration::MAX { "inf".into() } else { timeout.as_secs_f64().to_string() },
            ),
            ("progress_thread", switch(progress_thread)),
            ("any_order", switch(any_order)),
            ("algorithm", wishes.to_string()),
            ("encrypt", switch(self.context.world.is_encrypted)),
            ("shared_memory", switch(host.is_some())),
            ("host_ranks", host.map_or(1, <[_]>::len).to_string()),
            ("hosts", plan.ground.topology.hosts.to_string()),
            ("machine", plan.machine().to_string()),
            ("segment", segment_bytes.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_in_force() {
        let group = Group::solo();
        let of = |group: &Group, name: &str| {
            let settings = group.settings_in_force();
            settings.into_iter().find_map(|(found, value)| (found == name).then_some(value)).unwrap()
        };
        assert_eq!((of(&group, "rank"), of(&group, "world_size")), ("0".into(), "1".into()));
        assert_eq!((of(&group, "transport"), of(&group, "host_ranks")), ("local".into(), "1".into()));
        group.set_timeout(Duration::from_millis(1500));
        assert_eq!(of(&group, "timeout"), "1.5");
        assert_eq!(of(&group.with_timeout(Duration::MAX), "timeout"), "inf");
        assert_eq!(of(&group, "machine"), Machine::default().to_string());
        assert_eq!((of(&group, "hosts"), of(&group, "segment")), ("1".into(), "524288".into()));
    }
}
