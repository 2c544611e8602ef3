//! Long messages that go through [pipes](crate::shm): this rank puts references to their pages there, the
//! neighbour copies them.

use super::super::PIPES_AT;
use super::super::cell::Kind;
use super::{Queued, Sender};
use crate::shm::{PIPED_BYTES, PIPES};
use crate::{Result, Statistics};

/// An offer of which `done` bytes were put into pipes.
pub(super) struct Piping {
    pub(super) number: u32,
    done: usize,
}

impl Sender {
    /// The neighbour waits for an offer, in pipes.
    pub(in super::super) fn begin_piping(&mut self, number: u32, counts: &mut Statistics) -> Result<()> {
        let offer = self.offers.get_mut(number as usize);
        match offer.filter(|offer| offer.is_written && !offer.is_piped && offer.message.bytes > 0) {
            Some(offer) => offer.is_piped = true,
            None => {
                return Err(
                    self.refusal(format!("a place in pipes for offer {number}, which waits for none"))
                );
            }
        }
        self.inlet.find(&self.neighbourhood, self.place, PIPES_AT);
        self.piping.push_back(Piping { number, done: 0 });
        self.flush(counts);
        self.wake();
        Ok(())
    }

    /// Puts the next piece of the first of these messages into a pipe that is empty, if there is one; says
    /// whether anything was done.
    ///
    /// Where that fails, all of them go through the ring, from their beginning: the neighbour understands.
    pub(super) fn pipe_piece(&mut self) -> bool {
        let Some(&Piping { number, done }) = self.piping.front() else { return false };
        if self.pieces_put - self.pieces_taken >= PIPES as u64 {
            return false;
        }
        let Some(offer) = self.offers.get(number as usize) else {
            self.piping.pop_front();
            return true;
        };
        let bytes = PIPED_BYTES.min(offer.message.bytes - done);
        let mut is_put = self.inlet.get().is_some();
        if let Some(inlet) = self.inlet.get() {
            let index = self.pieces_put as usize;
            offer
                .message
                .payload
                .stretches(done, done + bytes, |stretch| is_put = is_put && inlet.put(index, stretch));
        }
        if !is_put {
            self.inlet.bar();
            self.give_up_piping();
            return true;
        }
        self.pieces_put += 1;
        let is_last = done + bytes == offer.message.bytes;
        self.publish(Kind::Piped, 0, 0, [0, bytes as u64, u64::from(number), 0, 0, 0, 0, 0]);
        self.put_off_piece();
        match self.piping.front_mut() {
            Some(piping) if !is_last => piping.done += bytes,
            _ => _ = self.piping.pop_front(),
        }
        true
    }

    fn give_up_piping(&mut self) {
        for Piping { number, .. } in std::mem::take(&mut self.piping) {
            if let Some(offer) = self.offers.try_remove(number as usize) {
                if let Some((word, _)) = offer.word {
                    self.open &= !(1 << word);
                }
                self.queue.push_back(Queued::Data(number, offer.message));
            }
        }
    }
}
