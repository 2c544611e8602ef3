//! Offers and the ends of sends: answers, cancellation, and the words that say whether memory may be read.

use std::sync::atomic::{Ordering, fence};

use super::super::{News, OPEN_AT, OPEN_MESSAGES};
use super::{Queued, Sender, Stream};
use crate::limits::cost;
use crate::transport::SendParts;
use crate::{Error, Result, Statistics};

impl Sender {
    /// Takes up what the neighbour says about an offer.
    pub(in super::super) fn hear(&mut self, news: News, counts: &mut Statistics) -> Result<()> {
        let (News::Granted(number) | News::Read(number) | News::Refused(number)) = news;
        let is_written = self.offers.get(number as usize).is_some_and(|offer| offer.is_written);
        let Some(offer) = is_written.then(|| self.offers.try_remove(number as usize)).flatten() else {
            return Err(self.refusal(format!("an answer to offer {number}, which is none")));
        };
        // The neighbour reads no more of it: the word may say what it likes until it stands for another
        // message.
        if let Some((word, _)) = offer.word {
            self.open &= !(1 << word);
        }
        match news {
            News::Refused(_) => self.end(offer.message, Ok(())),
            News::Read(_) => {
                counts.bytes_sent += offer.message.bytes as u64;
                self.end(offer.message, Ok(()));
            }
            News::Granted(_) => {
                self.queue.push_back(Queued::Data(number, offer.message));
                // At once: while anything is queued, what is offered here can't be read.
                self.flush(counts);
                self.wake();
            }
        }
        Ok(())
    }

    /// Ends a send early: a message of which nothing is written is withdrawn, the rest of another is copied.
    pub(in super::super) fn cancel(&mut self, key: usize, error: Error, counts: &mut Statistics) {
        let is_it = |message: &Stream| message.operation == Some(key);
        // The neighbour waits for what it has granted, so that is sent in any case.
        let granted = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Data(_, message) if is_it(message) => Some(message),
            _ => None,
        });
        if let Some(message) = granted.or_else(|| self.streams.iter_mut().find(|stream| is_it(stream))) {
            let parts = message.detach(counts);
            return self.finish(key, parts, Err(error));
        }
        let queued = self.queue.iter().position(|queued| match queued {
            Queued::Message(_, message) => is_it(message),
            Queued::Offer(_, number) => {
                self.offers.get(*number as usize).is_some_and(|offer| is_it(&offer.message))
            }
            Queued::Answer(_) | Queued::Data(..) => false,
        });
        if let Some(queued) = queued.and_then(|position| self.queue.remove(position)) {
            let message = match queued {
                Queued::Message(head, message) => {
                    self.eager_sent -= cost(head.bytes());
                    Some(message)
                }
                Queued::Offer(_, number) => self.offers.try_remove(number as usize).map(|offer| {
                    self.close_word(offer.word);
                    self.eager_sent -= if offer.is_paid { cost(offer.message.bytes) } else { 0 };
                    offer.message
                }),
                Queued::Answer(_) | Queued::Data(..) => None,
            };
            if let Some(message) = message {
                self.end(message, Err(error));
            }
            return;
        }
        if let Some((_, offer)) = self.offers.iter_mut().find(|(_, offer)| is_it(&offer.message)) {
            let parts = offer.message.detach(counts);
            let word = offer.word.take();
            self.close_word(word);
            self.finish(key, parts, Err(error));
        }
    }

    /// Ends every send with `error`, and forgets what was not written.
    pub(in super::super) fn end_all(&mut self, error: &Error) {
        for word in 0..OPEN_MESSAGES {
            self.block.word(OPEN_AT + 8 * word).store(0, Ordering::SeqCst);
        }
        // What the owners write into their memory once they have it back comes after that, as for one word.
        fence(Ordering::SeqCst);
        for queued in std::mem::take(&mut self.queue) {
            if let Queued::Message(_, message) | Queued::Data(_, message) = queued {
                self.end(message, Err(error.clone()));
            }
        }
        for stream in std::mem::take(&mut self.streams) {
            self.end(stream, Err(error.clone()));
        }
        for offer in std::mem::take(&mut self.offers).drain() {
            self.end(offer.message, Err(error.clone()));
        }
    }

    /// Says that a message may be read: in which word, and by which number.
    pub(super) fn open_word(&mut self) -> (usize, u64) {
        let word = self.open.trailing_ones() as usize;
        self.open |= 1 << word;
        self.serial += 1;
        self.block.word(OPEN_AT + 8 * word).store(self.serial, Ordering::Release);
        (word, self.serial)
    }

    /// Says that a message may not be read any more. Who is reading it finds out afterwards.
    fn close_word(&mut self, word: Option<(usize, u64)>) {
        if let Some((word, _)) = word {
            self.block.word(OPEN_AT + 8 * word).store(0, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.open &= !(1 << word);
        }
    }
}

impl Stream {
    /// Leaves a copy of what is not sent, that nobody waits for; gives the parts back.
    fn detach(&mut self, counts: &mut Statistics) -> SendParts {
        self.operation = None;
        // A copy: the send has ended, its memory goes back, and the neighbour must still get the whole
        // message.
        counts.copies += 1;
        counts.bytes_copied += (self.bytes - self.sent) as u64;
        self.payload.detach(self.sent, self.bytes)
    }
}
