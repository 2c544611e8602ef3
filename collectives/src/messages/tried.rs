//! Messages that were sent without waiting and that their receivers have not taken.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::engine::Handle;
use crate::error::Result;

/// The send of a copy.
type Sending = Handle<(Vec<u8>, Result<()>)>;

/// What [`Group::try_send`](crate::Group::try_send) has sent and a rank has not taken, by rank of the group;
/// `None` while a thread is sending to it.
pub(crate) type Tried = Mutex<BTreeMap<u32, Option<Sending>>>;

/// The right of one thread to send to a rank, with what was sent to it before.
pub(crate) struct Turn<'a> {
    pub(crate) before: Option<Sending>,
    pub(crate) place: TurnPlace<'a>,
}

/// The place of a turn's rank. Dropped, it is free: nothing waits for that rank.
pub(crate) struct TurnPlace<'a> {
    tried: &'a Tried,
    to: u32,
}

impl<'a> Turn<'a> {
    /// Takes the turn; `None` if another thread has it.
    pub(crate) fn take(tried: &'a Tried, to: u32) -> Option<Self> {
        let before = match tried.lock().insert(to, None) {
            Some(None) => return None,
            Some(before) => before,
            None => None,
        };
        Some(Self { before, place: TurnPlace { tried, to } })
    }
}

impl TurnPlace<'_> {
    /// Ends the turn with a message that waits.
    pub(crate) fn leave(self, sending: Sending) {
        self.tried.lock().insert(self.to, Some(sending));
        std::mem::forget(self);
    }
}

impl Drop for TurnPlace<'_> {
    fn drop(&mut self) {
        self.tried.lock().remove(&self.to);
    }
}
