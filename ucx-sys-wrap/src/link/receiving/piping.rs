//! Long messages whose pages the sender puts into [pipes](crate::shm), piece by piece.

use std::sync::atomic::{Ordering, fence};

use super::super::sending::{Reply, Sender};
use super::super::{OPEN_AT, PIECES_TAKEN_AT};
use super::reads::Reading;
use super::{Granted, Receiver};
use crate::shm::PIPED_BYTES;
use crate::{Result, Statistics};

impl Receiver {
    /// The next `bytes` bytes of the first of these messages are in a pipe.
    pub(super) fn take_piped(
        &mut self,
        (bytes, number): (u64, u64),
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Result<()> {
        let number = self.number(number)?;
        // One that is whole may still wait to be answered.
        let next = self.piped.iter_mut().find(|reading| reading.done < reading.head.bytes());
        let Some(reading) = next.filter(|reading| reading.place.number == number) else {
            return Err(self.refusal(format!("a piece of offer {number} in a pipe, which was not asked for")));
        };
        let (start, most) = (reading.done, PIPED_BYTES.min(reading.head.bytes() - reading.done));
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| (1..=most).contains(bytes)) else {
            return Err(self.refusal(format!("a piece of {bytes} bytes in a pipe, expected 1 to {most}")));
        };
        if start == 0 {
            reading.trial.begin();
        }
        reading.done += bytes;
        let (head, receive) = (reading.head, reading.receive);
        let index = self.pieces_taken as usize;
        let is_read = self.outlet.get().is_some_and(|outlet| match receive {
            // The one copy there is: from the sender's memory to the receiver's.
            Some(key) => {
                let mut into = self.receives.places(key, &head, start, start + bytes);
                into.iter_mut().all(|place| outlet.read(index, place))
            }
            None => outlet.read(index, &mut vec![0; bytes]),
        });
        if !is_read {
            return Err(self.refusal(format!("fewer than {bytes} bytes in a pipe")));
        }
        counts.bytes_received += bytes as u64;
        self.pieces_taken += 1;
        self.acknowledged.word(PIECES_TAKEN_AT).store(self.pieces_taken, Ordering::Release);
        self.wake_who_starves();
        self.end_piped(sender, counts);
        Ok(())
    }

    /// A message that was to come out of pipes comes through the ring instead, if there is such a one: its
    /// sender can't use them.
    pub(super) fn give_up_pipes(&mut self, number: u32) -> Option<Granted> {
        let index = self.piped.iter().position(|reading| reading.place.number == number)?;
        let Reading { head, receive, .. } = self.piped.remove(index)?;
        self.outlet.bar();
        Some(Granted { head, receive, trial: None })
    }

    /// Whether all of a message has come out of the pipes, which can't be answered yet.
    pub(super) fn has_whole_piped(&self) -> bool {
        self.piped.front().is_some_and(|reading| reading.done == reading.head.bytes())
    }

    /// Whether a message comes out of pipes.
    pub(in super::super) fn is_piping(&self) -> bool {
        !self.piped.is_empty()
    }

    /// Ends the first of these messages, if all of it has come and it can be answered: whoever has received
    /// it may take no more turns. Says whether it has.
    pub(in super::super) fn end_piped(&mut self, sender: &mut Sender, counts: &mut Statistics) -> bool {
        if !self.has_whole_piped() || !sender.can_answer() {
            return false;
        }
        let Some(Reading { head, place, receive, trial, .. }) = self.piped.pop_front() else { return false };
        let Some(key) = receive else {
            sender.answer(Reply::refusal(place.number), counts);
            return true;
        };
        // The sender takes the word away before it lets go of the memory.
        fence(Ordering::SeqCst);
        let is_whole = self.theirs.load(OPEN_AT + 8 * place.word) == place.serial;
        if is_whole {
            self.ways.learn(trial);
        }
        self.settle(is_whole, key, (head, place), sender, counts);
        true
    }
}
