//! What calls share with their engine and their context.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::Failure;
use ucx_sys_wrap::buffer::Port;

use super::deadline::WAITS_TOLD_EVERY;
use crate::calls::Calls;
use crate::difference::Plans;

/// What calls that do not use the transport share with their engine.
#[derive(Default)]
pub(crate) struct Course {
    /// Counts the progress of calls by other means than the transport, after which waiting starts anew.
    pub(crate) moves: AtomicU32,
    /// Whether the engine ends with its transport, so that calls that end with it do so because this rank
    /// leaves.
    pub(crate) has_ended: AtomicBool,
}

/// The context that a call belongs to, and closes when its deadline passes.
pub(crate) struct Status {
    /// The number of the context, the group of its tags.
    pub(crate) number: u16,
    /// Whether a call has ended because the context is closed. Cheaper than asking the transport.
    pub(crate) is_closed: AtomicBool,
    pub(crate) calls: Calls,
    pub(crate) plans: Plans,
    /// When members were last told that this rank waits, by the transport's clock, and how often they were.
    told_of_wait: Mutex<(Duration, u32)>,
    /// Whether a call tells, or has told, the others what differs.
    explains: AtomicBool,
}

impl Status {
    /// The status of an open context.
    pub(crate) fn new(number: u16, port: &Port) -> Self {
        let calls = Calls::new(port.call_log(number).unwrap_or_default());
        let (is_closed, told_of_wait, explains, plans) = Default::default();
        Self { number, is_closed, calls, plans, told_of_wait, explains }
    }

    /// Lets one caller at a time explain a difference of calls, and nobody after one that has ended.
    pub(crate) fn begins_to_explain(&self) -> Option<Explains<'_>> {
        (!self.explains.swap(true, Ordering::Relaxed)).then(|| Explains(&self.explains))
    }

    /// Tells members that this rank waits, unless another call on the context has just done so.
    #[cold]
    pub(super) fn tell_of_wait(&self, port: &Port, now: Duration) {
        let mut told = self.told_of_wait.lock();
        if told.1 == 0 || now.saturating_sub(told.0) >= WAITS_TOLD_EVERY / 2 {
            *told = (now, told.1.wrapping_add(1));
            let turn = told.1.wrapping_sub(1);
            drop(told);
            port.tell_of_wait(self.number, self.calls.last(), turn);
        }
    }

    /// Whether the context was found closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Notes that the context is closed.
    #[inline]
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Asks the transport whether the last turn has found the context closed, and notes it.
    #[inline]
    pub(crate) fn look(&self, port: &Port) -> bool {
        if !self.is_closed() && port.has_closed() && port.failure(self.number).is_some() {
            self.close();
        }
        self.is_closed()
    }

    /// Closes the context on all its ranks, for a call whose body has panicked: its peers would wait for it.
    pub(super) fn abort(&self, port: &Port) {
        port.fail(self.number, Failure::Aborted(port.rank()));
        self.close();
    }
}

/// The right to explain a difference. Dropped before its end, for instance with the handle of its call, it
/// leaves the explanation to another call.
pub(crate) struct Explains<'a>(&'a AtomicBool);

impl Explains<'_> {
    pub(crate) fn ends(self) {
        std::mem::forget(self);
    }
}

impl Drop for Explains<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Closes the context of a blocking call when it is dropped, which happens only if the call unwinds.
pub(crate) struct AbortUnlessEnded<'a> {
    pub(crate) port: &'a Port,
    pub(crate) status: &'a Status,
}

impl Drop for AbortUnlessEnded<'_> {
    fn drop(&mut self) {
        self.status.abort(self.port);
    }
}
