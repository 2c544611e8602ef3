//! Fuzz targets: endpoint infos and notices, and an inbox against any messages in any order.

use std::ptr::NonNull;

use super::endpoint_info::{EndpointInfo, VERSION_AT, WIRE_VERSION};
use super::flow::{CREDIT_UPDATE_BYTES, CreditUpdate};
use super::header::{FragmentHeader, Header, MAX_HEADER_BYTES};
use super::inbox::{Deferred, Inbox};
use super::notice::{NOTICE_BYTES, Withdrawal, decode, encode};
use super::payload::{Payload, Rts};
use crate::buffer::testing::lend_to_receive;
use crate::buffer::{Buffer, RawVec};
use crate::fuzzing::Bytes;
use crate::transport::{Posted, RecvParts, SendParts};
use crate::{Envelope, Error, Lengths, Mark, Rank, Signature, Tag};

const PEER: Rank = Rank(1);

/// Decodes bytes as an endpoint info, whatever its version, and as a notice; what decodes is encoded again.
pub fn ucx_cards(data: &[u8]) {
    if let Some(info) = endpoint_info(data) {
        assert!(
            EndpointInfo::decode(&info.encode(), PEER, (1, 13)).is_ok_and(|again| again == info),
            "{info:?}"
        );
    }
    if let Some(bytes) = data.first_chunk::<NOTICE_BYTES>() {
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[24..]);
        if let Ok(notice) = decode(bytes, &token, 4) {
            assert!(decode(&encode(notice, &token), &token, 4) == Ok(notice), "{notice:?}");
        }
    }
}

/// Decodes an endpoint info with its version corrected.
fn endpoint_info(data: &[u8]) -> Option<EndpointInfo> {
    let mut bytes = data.to_vec();
    bytes.get_mut(VERSION_AT..VERSION_AT + 4)?.copy_from_slice(&WIRE_VERSION.to_le_bytes());
    EndpointInfo::decode(&bytes, PEER, (1, 13)).ok()
}

/// An inbox, and the memory and number of every receive that was posted and has not ended.
struct Bench {
    inbox: Inbox,
    receives: Vec<(RawVec<u8>, Option<u64>)>,
}

/// Follows a plan: bytes that choose the next step and what arrives.
pub fn ucx_messages(data: &[u8]) {
    let mut bench = Bench { inbox: Inbox::new(Rank(0), 4), receives: Vec::new() };
    let mut bytes = Bytes(data);
    while let Some(step) = bytes.byte() {
        if bench.step(step, &mut bytes).is_none() || !bench.inbox.violations.is_empty() {
            break;
        }
    }
    bench.finish();
}

impl Bench {
    /// `None` when the plan is at its end.
    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) -> Option<()> {
        match step % 8 {
            0 => self.post(bytes.byte()?, bytes.word()?),
            1 => self.message(bytes)?,
            2 => {
                let (length, is_rendezvous) = (usize::from(bytes.byte()?), bytes.byte()? % 2 == 1);
                let header = bytes.take(length);
                let (payload, count) = (bytes.byte()?, bytes.word()?);
                self.arrive(header, &vec![payload; count], is_rendezvous);
            }
            3 => {
                let (serial, part, is_counted) =
                    (bytes.byte()?.into(), bytes.byte()?, bytes.byte()? % 2 == 1);
                let (count, is_rendezvous) = (bytes.word()?, bytes.byte()? % 2 == 1);
                let header = FragmentHeader { from: PEER, serial, part, is_counted }.encode();
                self.inbox.fragment(&header, payload(&vec![part; count], is_rendezvous));
            }
            4 => {
                let (sent_count, consumed) = (bytes.byte()?.into(), bytes.word()? as u64);
                let update = CreditUpdate { from: PEER, sent_count, consumed }.encode();
                self.inbox.credit_update(&update[..CREDIT_UPDATE_BYTES - usize::from(consumed == 0xffff)]);
            }
            5 => {
                let cost = bytes.word()? as u64;
                self.inbox.flow(PEER).map(|flow| flow.spend(cost))?;
            }
            6 => self.cancel(bytes.byte()?),
            _ => {
                let message = Withdrawal { tag: envelope(bytes.byte()?).tag, serial: bytes.byte()?.into() };
                self.inbox.withdraw(message);
            }
        }
        self.run_all();
        Some(())
    }

    fn post(&mut self, round: u8, capacity: usize) {
        let mut memory = vec![0u8; capacity].into_raw();
        let mut parts = RecvParts::new();
        lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
        let number = match self.inbox.post(PEER, &envelope(round), parts, 0) {
            Posted::Pending(number) => Some(number),
            Posted::Done(_) => None,
        };
        self.receives.push((memory, number));
    }

    fn cancel(&mut self, place: u8) {
        if let Some((_, posted)) = self.receives.get_mut(usize::from(place))
            && let Some(number) = *posted
        {
            self.inbox.cancel(number);
            if self.inbox.take_ended(number).is_some() {
                *posted = None;
            }
        }
    }

    /// A message that is right but for one byte of its header.
    fn message(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let (round, serial, consumed, flags) = (bytes.byte()?, bytes.byte()?, bytes.byte()?, bytes.byte()?);
        let lengths = (0..flags % 4).map(|_| bytes.word()).collect::<Option<Lengths>>()?;
        let flag = |bit: u8| flags >> bit & 1 == 1;
        let mut header = Header::new(&envelope(round), &SendParts::new(), 0).ok()?;
        (header.serial, header.consumed, header.lengths) = (serial.into(), consumed, lengths);
        (header.is_counted, header.is_padded, header.is_signed) = (flag(2), flag(3), !flag(4));
        header.is_fragmented = flag(5) && header.lengths.len() > 1;
        let mut room = [0; MAX_HEADER_BYTES];
        let length = header.encode(&SendParts::new(), &mut room);
        let inline = if header.is_fragmented { header.inline_bytes() } else { 0 };
        let (at, change) = (usize::from(bytes.byte()?), bytes.byte()?);
        room[at % MAX_HEADER_BYTES] ^= change;
        let payload = vec![round; header.payload_bytes() + usize::from(header.is_padded)];
        self.arrive(&room[..length + inline], &payload, flag(6));
        Some(())
    }

    fn arrive(&mut self, header: &[u8], bytes: &[u8], is_rendezvous: bool) {
        if let Ok((decoded, inline)) = Header::decode(header, bytes.len()) {
            assert!(inline.len() <= header.len(), "{decoded:?}");
            assert!(decoded.fragments().all(|part| part < decoded.lengths.len()), "{decoded:?}");
        }
        self.inbox.message(header, payload(bytes, is_rendezvous));
    }

    /// Every fetch goes to a posted receive that has room for it.
    fn run_all(&mut self) {
        while let Some(work) = self.inbox.deferred.pop_front() {
            if let Deferred::Fetch { number, part, rts } = work {
                let place = self.inbox.receive(number).map(|incoming| incoming.parts[part].len());
                assert!(place.is_some_and(|room| rts.bytes <= room), "{} bytes to {place:?}", rts.bytes);
            }
        }
    }

    /// Whatever has come, closing the inbox ends every waiting receive.
    fn finish(mut self) {
        self.inbox.close(&Error::Closed);
        for (_, number) in &self.receives {
            let is_waiting =
                number.and_then(|number| self.inbox.receive(number)).is_some_and(|it| it.is_waiting());
            assert!(!is_waiting, "a receive goes on");
        }
    }
}

fn envelope(round: u8) -> Envelope {
    let tag = Tag::new(PEER, 0, 0, u32::from(round % 4));
    Envelope { tag, signature: Signature([round % 2; 16]), mark: Mark::NONE }
}

fn payload(bytes: &[u8], is_rendezvous: bool) -> Payload<'_> {
    match is_rendezvous {
        true => Payload::Rendezvous(Rts { pointer: NonNull::dangling(), bytes: bytes.len() }),
        false => Payload::Eager(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the format must make these anew: from others the fuzzer does not get past the first
    /// fields.
    #[test]
    fn the_corpus_holds_endpoint_infos() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/ucx_cards");
        let read = |name: &str| endpoint_info(&std::fs::read(folder.join(name)).unwrap());
        assert_eq!(
            read("card").map(|info| (info.settings, info.worker.len())),
            Some(("UCX_TLS=all".into(), 3))
        );
        assert!(read("bare_card").is_some_and(|info| info.boot.is_none()));
    }
}
