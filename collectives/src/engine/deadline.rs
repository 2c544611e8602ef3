//! The time that a call is given, and what happens when it is over.
//!
//! A little before the end every operation of the call fails, which says whom this rank has waited for; at the end the
//! group is closed on all ranks. In between the other ranks that wait can find out for themselves whom they wait for:
//! the first one to close the group would take that from them.

use std::time::Duration;

use ucx_sys_wrap::buffer::Port;

/// How long before the end operations fail: this part of the time given, and at most so long.
const NOTICE_PART: u32 = 16;
const LONGEST_NOTICE: Duration = Duration::from_secs(1);

/// The end of one call, on the transport's clock.
pub(super) struct Deadline {
    notice: Duration,
    end: Duration,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Operations fail.
    Expired,
    /// The group is closed.
    Over,
}

impl Deadline {
    /// `timeout` from `now`.
    pub(super) fn after(now: Duration, timeout: Duration) -> Self {
        let end = now.saturating_add(timeout);
        let notice = end.saturating_sub((timeout / NOTICE_PART).min(LONGEST_NOTICE));
        Self { notice, end, stage: Stage::Open }
    }

    /// Does what is due `now`; `expire` has operations fail.
    pub(super) fn look(&mut self, now: Duration, port: &Port, expire: impl FnOnce()) {
        if now >= self.notice && self.stage == Stage::Open {
            expire();
            self.stage = Stage::Expired;
        }
        if now >= self.end {
            // What can't be canceled ends with the transport.
            self.finish(port);
        }
    }

    /// Whether operations fail because time is over.
    pub(super) fn is_expired(&self) -> bool {
        self.stage != Stage::Open
    }

    /// Whether the others have had the time that they are given: nothing keeps an expired call from returning.
    pub(super) fn is_over(&self, now: Duration, port: &Port) -> bool {
        now >= self.end || port.failure().is_some()
    }

    /// Closes the group for an expired call, unless something else has.
    pub(super) fn finish(&mut self, port: &Port) {
        if self.stage == Stage::Expired {
            port.abort();
            self.stage = Stage::Over;
        }
    }

    /// How long nothing is due.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        match self.stage {
            Stage::Open => self.notice.saturating_sub(now),
            Stage::Expired => self.end.saturating_sub(now),
            Stage::Over => Duration::MAX,
        }
    }
}
