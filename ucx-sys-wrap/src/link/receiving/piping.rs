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
        let Some(reading) = self.piped.front_mut().filter(|reading| reading.place.number == number) else {
            return Err(self.refusal(format!("a piece of offer {number} in a pipe, which was not asked for")));
        };
        let (start, left) = (reading.done, reading.head.bytes() - reading.done);
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| (1..=left.min(PIPED_BYTES)).contains(bytes))
        else {
            return Err(self.refusal(format!("a piece of {bytes} bytes in a pipe, expected 1 to {left}")));
        };
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
        if bytes == left
            && let Some(reading) = self.piped.pop_front()
        {
            self.end_piped(reading, sender, counts);
        }
        Ok(())
    }

    /// A message that was to come out of pipes comes through the ring instead, if there is such a one: its sender can't use them.
    pub(super) fn give_up_pipes(&mut self, number: u32) -> Option<Granted> {
        let index = self.piped.iter().position(|reading| reading.place.number == number)?;
        let Reading { head, receive, .. } = self.piped.remove(index)?;
        self.outlet.bar();
        Some(Granted { head, receive, trial: None })
    }

    /// All of a message has come out of the pipes.
    fn end_piped(&mut self, reading: Reading, sender: &mut Sender, counts: &mut Statistics) {
        let Reading { head, place, receive, trial, .. } = reading;
        let Some(key) = receive else { return sender.answer(Reply::refusal(place.number), counts) };
        // The sender takes the word away before it lets go of the memory.
        fence(Ordering::SeqCst);
        let is_whole = self.theirs.load(OPEN_AT + 8 * place.word) == place.serial && sender.can_answer();
        if is_whole {
            self.ways.learn(trial);
        }
        self.settle(is_whole, key, (head, place), sender, counts);
    }
}
