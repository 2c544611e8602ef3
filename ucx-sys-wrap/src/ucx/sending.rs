//! Sends, from posting until their parts are given back.

use arrayvec::ArrayVec;
use brevity_ucx_sys::ucs_status_t;

use super::engine::{Engine, Protocol};
use super::flow::cost;
use super::handler::{FRAGMENT, MESSAGE};
use super::header::{FIXED_BYTES, FRAGMENT_BYTES, FragmentHeader, Header, Plain};
use super::notice::Withdrawal;
use super::ucp_request::UcpRequest;
use super::{MAX_EAGER_BYTES, NO_BYTES, PACKED_BYTES};
use crate::buffer::ReadLease;
use crate::limits::MAX_MESSAGE_BYTES;
use crate::table::Table;
use crate::transport::{Posted, SendDone, SendId, SendParts, count_copy, one};
use crate::{Envelope, Error, MAX_PARTS, Mark, Rank, Result};

/// The payload of a padded message.
static NOTHING: [u8; 1] = [0];

pub(super) struct Sends {
    operations: Table<Outgoing>,
}

/// A send under way.
///
/// Invariants: `parts` stay here until every request is reaped.
struct Outgoing {
    to: Rank,
    message: Withdrawal,
    parts: SendParts,
    /// The message, and its fragments.
    requests: ArrayVec<UcpRequest, MAX_PARTS>,
    posted_in: u32,
    /// Why this rank has ended it early.
    ended: Option<Error>,
    /// UCX's outcome.
    result: Result<()>,
}

impl Sends {
    pub(super) fn new() -> Self {
        Self { operations: Table::default() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Like [`post`](Self::post) of one part, but drops the lease.
    #[inline]
    pub(super) fn post_one(
        &mut self,
        engine: &mut Engine,
        to: Rank,
        envelope: &Envelope,
        part: ReadLease,
        posted_in: u32,
    ) -> Posted<SendId, Result<()>> {
        match send_plain(engine, to, envelope, &part) {
            Some(PlainSend::Sent) => Posted::Done(Ok(())),
            Some(PlainSend::Submitted(request, serial)) => {
                let message = Withdrawal { tag: envelope.tag, serial };
                self.keep_one(engine, request, Outgoing::new(to, message, one(part), posted_in))
            }
            None => self.post(engine, to, envelope, one(part), posted_in).map(|done| done.result),
        }
    }

    #[inline(never)]
    fn keep_one(
        &mut self,
        engine: &mut Engine,
        request: UcpRequest,
        mut outgoing: Outgoing,
    ) -> Posted<SendId, Result<()>> {
        outgoing.requests.push(request);
        self.keep(engine, outgoing).map(|done| done.result)
    }

    /// Sends a message and its fragments, each eagerly if it is small and there is credit, or by rendezvous.
    #[inline(never)]
    pub(super) fn post(
        &mut self,
        engine: &mut Engine,
        to: Rank,
        envelope: &Envelope,
        parts: SendParts,
        posted_in: u32,
    ) -> Posted<SendId, SendDone> {
        let mut header = match Header::new(envelope, &parts, PACKED_BYTES) {
            Ok(header) => header,
            Err(error) => return Posted::Done(SendDone { parts, result: Err(error) }),
        };
        let Some(flow) = engine.inbox().flow(to) else {
            return Posted::Done(SendDone { parts, result: Err(Error::Closed) });
        };
        let serial = flow.next_sent();
        (header.serial, header.consumed) = (serial as u16, flow.report());
        flow.sign(&mut header);
        header.is_counted =
            header.payload_bytes() <= MAX_EAGER_BYTES && flow.spend(cost(header.bytes_at_once()));
        if !header.is_counted && parts.len() > 1 {
            header.is_fragmented = true;
        }
        let message = Withdrawal { tag: header.tag, serial };
        let mut request = engine.ucp_requests().take();
        let (protocol, payload) = choose(&mut header, &parts, &mut request);
        // SAFETY: just taken: it is in no use.
        let header_bytes = header.encode(&parts, unsafe { request.header_mut() });
        let statistics = &mut engine.inbox().statistics;
        statistics.messages_sent += 1;
        statistics.bytes_sent += header.wire_bytes();
        if header.lengths.len() > 1 {
            // Inline, or packed.
            let is_inline = header.is_fragmented;
            count_copy(statistics, if is_inline { header.inline_bytes() } else { header.total_bytes() });
        }
        // SAFETY: the maker of the leases keeps the bytes until they are given back, when the request is
        // reaped; a packed payload is the request's own.
        unsafe { engine.send(to, (MESSAGE, protocol), header_bytes, payload, &request) };
        let mut outgoing = Outgoing::new(to, message, parts, posted_in);
        outgoing.requests.push(request);
        outgoing.send_fragments(engine, &header);
        self.keep(engine, outgoing)
    }

    /// Keeps a send until it is tested, unless it is over already.
    fn keep(&mut self, engine: &mut Engine, mut outgoing: Outgoing) -> Posted<SendId, SendDone> {
        if outgoing.is_over(engine) && outgoing.result.is_ok() {
            return Posted::Done(outgoing.done());
        }
        Posted::Pending(SendId(self.operations.insert(outgoing)))
    }

    pub(super) fn test(&mut self, engine: &mut Engine, number: u64) -> Option<SendDone> {
        let outgoing = self.operations.get_mut(number)?;
        if !outgoing.is_over(engine) || outgoing.result.is_err() && !outgoing.has_failed(engine) {
            return None;
        }
        self.operations.remove(number).map(Outgoing::done)
    }

    /// Ends a send with `error`, unless it is over. Returns the notice for its receiver, once.
    pub(super) fn withdraw(&mut self, number: u64, error: &Error) -> Option<(Rank, Withdrawal)> {
        self.operations.get_mut(number)?.withdraw(error)
    }

    /// Ends the sends of a context with `error`. Returns the notices for the receivers.
    pub(super) fn end_context(&mut self, context: u16, error: &Error) -> Vec<(Rank, Withdrawal)> {
        let concerned = self.operations.iter_mut().filter(|outgoing| outgoing.message.tag.group() == context);
        concerned.filter_map(|outgoing| outgoing.withdraw(error)).collect()
    }

    /// The receivers of sends of a context that were ended and that UCX works on, each with the bytes.
    pub(super) fn held(&self, context: u16) -> impl Iterator<Item = (Rank, usize)> {
        let is_held = move |outgoing: &&Outgoing| {
            outgoing.message.tag.group() == context
                && outgoing.ended.is_some()
                && outgoing.requests.iter().any(|request| !request.is_over())
        };
        let bytes = |outgoing: &Outgoing| outgoing.parts.iter().map(|part| part.bytes().len()).sum();
        self.operations.iter().filter(is_held).map(move |outgoing| (outgoing.to, bytes(outgoing)))
    }

    /// Ends the sends to a lost peer with `error`, once UCX does not touch their memory any more.
    pub(super) fn lose(&mut self, peer: Rank, error: &Error) {
        for outgoing in self.operations.iter_mut().filter(|outgoing| outgoing.to == peer) {
            outgoing.withdraw(error);
        }
    }

    /// Takes the memory of sends to a peer back although UCX has not ended them.
    ///
    /// # Safety
    /// UCX, here or at the peer, does not read that memory any more.
    pub(super) unsafe fn take_back(&mut self, peer: Rank) {
        for outgoing in self.operations.iter_mut().filter(|outgoing| outgoing.to == peer) {
            // The records of the others stay until the worker is gone, and are not used again.
            outgoing.requests.retain(|request| request.is_over());
        }
    }

    /// Ends every send that had not succeeded with `error`, after the tear-down.
    pub(super) fn end_all(&mut self, error: &Error) {
        for outgoing in self.operations.iter_mut() {
            if outgoing.result.is_ok() && !outgoing.requests.iter().all(UcpRequest::has_succeeded) {
                outgoing.result = Err(error.clone());
            }
        }
    }

    /// The peers of sends that are not over, each with the round of its posting.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.operations
            .iter()
            .filter(|outgoing| outgoing.requests.iter().any(|request| !request.is_over()))
            .map(|outgoing| (outgoing.to, outgoing.posted_in))
    }
}

/// The outcome of a plain send.
enum PlainSend {
    Sent,
    /// UCX works on it, or has refused it; with its serial number.
    Submitted(UcpRequest, u32),
}

/// Sends a message with a [`Plain`] header. Returns `None` and does nothing if it needs another.
#[inline]
fn send_plain(engine: &mut Engine, to: Rank, envelope: &Envelope, part: &ReadLease) -> Option<PlainSend> {
    let (bytes, inbox) = (part.len(), engine.inbox());
    let flow = inbox.flow(to)?;
    let is_plain = envelope.mark == Mark::NONE && envelope.signature == flow.sent_signature;
    if !is_plain {
        return None;
    }
    let is_counted = bytes <= MAX_EAGER_BYTES && flow.spend(cost(bytes));
    // Rendezvous needs a byte, and the length has a limit.
    if !is_counted && (bytes == 0 || bytes as u64 > MAX_MESSAGE_BYTES) {
        return None;
    }
    let serial = flow.next_sent();
    let plain = Plain { tag: envelope.tag, is_counted, consumed: flow.report(), serial: serial as u16 };
    inbox.statistics.messages_sent += 1;
    inbox.statistics.bytes_sent += (FIXED_BYTES + bytes) as u64;
    let header = plain.encode();
    if is_counted && engine.send_short(to, MESSAGE, &header, part.bytes()) {
        return Some(PlainSend::Sent);
    }
    let mut request = engine.ucp_requests().take();
    // SAFETY: just taken: it is in no use.
    let room = unsafe { request.header_mut() };
    room[..FIXED_BYTES].copy_from_slice(&header);
    let protocol = if is_counted { Protocol::Auto } else { Protocol::Rendezvous };
    let payload = (part.bytes().as_ptr(), bytes);
    // SAFETY: the maker of the lease keeps the bytes until it is given back, when the request is reaped.
    unsafe { engine.send(to, (MESSAGE, protocol), FIXED_BYTES, payload, &request) };
    if let Some((ucs_status_t::UCS_OK, _)) = engine.reap(&request) {
        engine.ucp_requests().put(request);
        return Some(PlainSend::Sent);
    }
    Some(PlainSend::Submitted(request, serial))
}

/// Chooses the protocol and finds the payload.
#[inline]
fn choose(
    header: &mut Header,
    parts: &SendParts,
    request: &mut UcpRequest,
) -> (Protocol, (*const u8, usize)) {
    let protocol = if header.is_counted { Protocol::Auto } else { Protocol::Rendezvous };
    if !header.is_fragmented && parts.len() > 1 {
        // SAFETY: just taken: it is in no use.
        let packed = unsafe { request.packed_mut() };
        let length = pack(parts, packed);
        // Eager: a rendezvous fetches into one place.
        return (Protocol::Eager, (packed.as_ptr(), length));
    }
    match header.payload_part() {
        Some(part) => (protocol, (parts[part].bytes().as_ptr(), parts[part].len())),
        None if header.is_counted => (protocol, NO_BYTES),
        None => {
            header.is_padded = true;
            (protocol, (NOTHING.as_ptr(), NOTHING.len()))
        }
    }
}

/// Copies the parts one behind the other; returns their total length.
#[inline]
fn pack(parts: &SendParts, room: &mut [u8; PACKED_BYTES]) -> usize {
    let mut end = 0;
    for part in parts {
        let bytes = part.bytes();
        // A copy: it costs less than several UCX messages.
        room[end..end + bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
    }
    end
}

impl Outgoing {
    fn new(to: Rank, message: Withdrawal, parts: SendParts, posted_in: u32) -> Self {
        Self { to, message, parts, requests: ArrayVec::new(), posted_in, ended: None, result: Ok(()) }
    }

    /// Ends it with `error`, unless it is over. Returns the notice for its receiver, once.
    fn withdraw(&mut self, error: &Error) -> Option<(Rank, Withdrawal)> {
        let has_succeeded = self.result.is_ok() && self.requests.iter().all(UcpRequest::has_succeeded);
        if self.ended.is_some() || has_succeeded {
            return None;
        }
        self.ended = Some(error.clone());
        Some((self.to, self.message))
    }

    fn send_fragments(&mut self, engine: &mut Engine, header: &Header) {
        for part in header.fragments() {
            self.is_over(engine);
            // After a failure the caller gives the peer up.
            if self.result.is_err() {
                return;
            }
            let (bytes, tag) = (self.parts[part].bytes(), self.message.tag);
            let is_counted = bytes.len() <= MAX_EAGER_BYTES
                && engine.inbox().flow(self.to).is_some_and(|flow| flow.spend(cost(bytes.len())));
            let fragment = FragmentHeader {
                from: tag.source(),
                serial: self.message.serial,
                part: part as u8,
                is_counted,
            };
            let mut request = engine.ucp_requests().take();
            // SAFETY: just taken: it is in no use.
            let room = unsafe { request.header_mut() };
            room[..FRAGMENT_BYTES].copy_from_slice(&fragment.encode());
            let protocol = if is_counted { Protocol::Auto } else { Protocol::Rendezvous };
            let payload = (bytes.as_ptr(), bytes.len());
            // SAFETY: the maker of the lease keeps the bytes until it is given back, when the request is
            // reaped.
            unsafe { engine.send(self.to, (FRAGMENT, protocol), FRAGMENT_BYTES, payload, &request) };
            self.requests.push(request);
        }
    }

    /// Gives the peer up, as half a message is left behind. Returns whether that is done: its loss, or what
    /// peers have told before it, says how the send ends.
    #[cold]
    fn has_failed(&mut self, engine: &mut Engine) -> bool {
        let inbox = engine.inbox();
        if self.ended.is_none()
            && !inbox.is_closed
            && !inbox.is_lost(self.to)
            && let Err(error) = &self.result
        {
            inbox.violated(self.to, error.clone());
            return false;
        }
        true
    }

    /// Whether UCX touches none of the memory any more; records the outcome.
    fn is_over(&mut self, engine: &mut Engine) -> bool {
        let Self { requests, result, to, .. } = self;
        engine.reap_all(requests, |engine, status| {
            if result.is_ok() {
                *result = Err(engine.error(*to, "ucp_am_send_nbx", status));
            }
        })
    }

    fn done(self) -> SendDone {
        // The receiver does not say whether it had matched a message that was withdrawn.
        SendDone { parts: self.parts, result: self.ended.map_or(self.result, Err) }
    }
}
