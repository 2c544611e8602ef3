//! Receives, as the transport sees them: what the inbox has no hands for is done here.

use brevity_ucx_sys::ucs_status_t;

use super::engine::{Engine, Manner};
use super::flow::WORD_BYTES;
use super::handler::WORD;
use super::inbox::Job;
use super::incoming::Finished;
use super::{Flight, NO_BYTES};
use crate::transport::{Posted, RecvParts};
use crate::{Envelope, Error, Rank};

/// The hands of an inbox.
pub(super) struct Receives {
    own: Rank,
    /// Words to peers that UCX has not sent yet.
    words: Vec<Flight>,
    /// Whether peers may go on writing the parts that are being fetched, although UCX is left to the process
    /// that exits: those receives never end.
    pub(super) are_left_open: bool,
}

impl Receives {
    pub(super) fn new(own: Rank) -> Self {
        Self { own, words: Vec::new(), are_left_open: false }
    }

    #[inline]
    pub(super) fn post(
        &mut self,
        engine: &mut Engine,
        from: Rank,
        envelope: &Envelope,
        parts: RecvParts,
        posted_in: u32,
    ) -> Posted<u64, Finished> {
        let posted = engine.inbox().post(from, envelope, parts, posted_in);
        self.work(engine);
        posted
    }

    /// Does what the handlers have left to do. Says whether there was anything.
    #[inline]
    pub(super) fn work(&mut self, engine: &mut Engine) -> bool {
        let has_work = !engine.inbox().jobs.is_empty();
        if has_work {
            self.do_jobs(engine);
        }
        has_work
    }

    #[inline(never)]
    fn do_jobs(&mut self, engine: &mut Engine) {
        while let Some(job) = engine.inbox().next_job() {
            self.do_job(engine, job);
        }
    }

    /// Gives a receive back that has ended.
    #[inline]
    pub(super) fn test(&mut self, engine: &mut Engine, number: u64) -> Option<Finished> {
        let incoming = engine.inbox().receive(number)?;
        if incoming.is_waiting() || self.are_left_open && !incoming.is_over() {
            return None;
        }
        if !incoming.is_ended() {
            land(engine, number);
        }
        engine.inbox().take_ended(number)
    }

    /// Ends every receive with `error` but those whose parts UCX may still write; all of them once it is torn
    /// down.
    pub(super) fn end_all(&mut self, engine: &mut Engine, error: &Error) {
        engine.inbox().close(error);
        if !engine.is_quiet() || self.are_left_open {
            return;
        }
        for number in engine.inbox().numbers() {
            let Some(incoming) = engine.inbox().receive(number) else { continue };
            if let Some(flights) = incoming.take_flights() {
                // Parts that had come before are of a message that is not whole.
                incoming.end(error.clone());
                flights.into_iter().for_each(|(flight, _)| engine.flights().put(flight));
            }
        }
        self.words.drain(..).for_each(|flight| engine.flights().put(flight));
    }

    fn do_job(&mut self, engine: &mut Engine, job: Job) {
        match job {
            Job::Release(offer) => engine.release(offer),
            Job::Fetch { number, part, offer } => engine.fetch(number, part, offer),
            Job::Tell(rank) => self.tell(engine, rank),
        }
    }

    /// Tells a peer what was consumed, unless a message has told it meanwhile.
    fn tell(&mut self, engine: &mut Engine, rank: Rank) {
        for position in (0..self.words.len()).rev() {
            if engine.reap(&self.words[position]).is_some() {
                engine.flights().put(self.words.swap_remove(position));
            }
        }
        let Some(flow) = engine.inbox().flow(rank).filter(|flow| flow.owes()) else { return };
        let word = flow.word(self.own).encode();
        let mut flight = engine.flights().take();
        // SAFETY: just taken: it is in no use.
        let room = unsafe { flight.header_mut() };
        room[..WORD_BYTES].copy_from_slice(&word);
        // SAFETY: there is no payload; the header is the flight's own.
        unsafe { engine.send(rank, (WORD, Manner::Any), WORD_BYTES, NO_BYTES, &flight) };
        self.words.push(flight);
    }
}

/// Ends a receive whose parts have all come.
#[inline(never)]
fn land(engine: &mut Engine, number: u64) {
    let Some(incoming) = engine.inbox().receive(number) else { return };
    let (from, _) = incoming.wait();
    let Some(flights) = incoming.landing() else { return };
    let mut wrong = None;
    for (flight, expected) in flights {
        let (status, bytes) = engine.reap(&flight).unwrap_or((ucs_status_t::UCS_ERR_CANCELED, 0));
        engine.flights().put(flight);
        if status != ucs_status_t::UCS_OK {
            wrong = Some(engine.error(from, "ucp_am_recv_data_nbx", status));
        } else if bytes != expected {
            let what = format!("{bytes} bytes of a part announced with {expected}");
            wrong = Some(Error::Protocol { rank: from, what });
        }
    }
    let inbox = engine.inbox();
    if let Some(error) = &wrong {
        inbox.violation.get_or_insert((from, error.clone()));
    }
    if let Some(incoming) = inbox.receive(number) {
        incoming.landed(wrong);
    }
}
