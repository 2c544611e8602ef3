//! What rank 0 and the others say to each other once they have proven themselves.
//!
//! A frame is a kind (1 byte), the length of its body (4 bytes, little-endian) and the body.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Error, Rank};

/// The largest blob of an exchange, in bytes.
pub const MAX_BLOB_BYTES: usize = 64 * 1024;

pub(super) const HEADER_BYTES: usize = 5;

/// Strings in a verdict are cut to this.
const MAX_TEXT_BYTES: usize = 256;

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// To rank 0: how long this rank is still willing to wait for the others to join.
    Patience(Duration),
    /// From rank 0: everybody has joined, and this is how long the most impatient rank waits for the rest.
    /// And rank 0's address: one on which another host has reached it, if any has.
    Joined(Duration, IpAddr),
    /// To rank 0: this rank's blob, and how long it is willing to wait for the others'.
    Blob(Duration, Vec<u8>),
    /// From rank 0: the blob of the next rank.
    Gathered(Vec<u8>),
    /// From rank 0: why the job has failed.
    Verdict(Verdict),
}

/// Why a job can't come together, as every rank reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Missing { ranks: Vec<u32>, waited: Duration },
    Lost { rank: u32 },
    Disagreement { subject: Subject, rank: u32, found: String, expected: String },
}

/// What ranks can differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    WireVersion,
    Job,
    WorldSize,
    Processes,
}

const SUBJECTS: [(Subject, &str); 4] = [
    (Subject::WireVersion, "wire version"),
    (Subject::Job, "job"),
    (Subject::WorldSize, "world size"),
    (Subject::Processes, "processes of one rank"),
];

impl Verdict {
    /// The error that it stands for; `master` is where this rank looked for rank 0.
    pub(super) fn into_error(self, master: String) -> Error {
        match self {
            Self::Missing { ranks, waited } => Error::MissingRanks {
                missing: ranks.into_iter().map(Rank).collect(),
                deadline: waited,
                master,
            },
            Self::Lost { rank } => Error::PeerLost { rank: Rank(rank) },
            Self::Disagreement { subject, rank, found, expected } => {
                Error::Disagreement { what: subject.name(), rank: Rank(rank), found, expected }
            }
        }
    }
}

impl Subject {
    fn name(self) -> &'static str {
        SUBJECTS.iter().find(|(subject, _)| *subject == self).map_or("", |(_, name)| name)
    }
}

impl Frame {
    /// The longest body that a frame may have in a world of `world_size`.
    pub(super) fn max_body_bytes(world_size: u32) -> usize {
        (4 + MAX_BLOB_BYTES).max(16 + 2 * MAX_TEXT_BYTES).max(16 + 4 * world_size as usize)
    }

    /// The frame as it is sent.
    pub(super) fn encode(&self) -> Arc<[u8]> {
        let (kind, body) = self.kind_and_body();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.push(kind);
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes.into()
    }

    fn kind_and_body(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Patience(remaining) => (1, milliseconds(*remaining).to_le_bytes().to_vec()),
            Self::Joined(remaining, address) => {
                (2, [&milliseconds(*remaining).to_le_bytes()[..], &encode_address(*address)].concat())
            }
            Self::Blob(remaining, blob) => (3, [&milliseconds(*remaining).to_le_bytes()[..], blob].concat()),
            Self::Gathered(blob) => (4, blob.clone()),
            Self::Verdict(verdict) => (5, verdict.encode()),
        }
    }

    /// Reads a frame's body; `None` when it is none.
    pub(super) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        match kind {
            1 => {
                let mut reader = Reader(body);
                let remaining = reader.duration()?;
                reader.end(Self::Patience(remaining))
            }
            2 => {
                let mut reader = Reader(body);
                let (remaining, address) = (reader.duration()?, reader.address()?);
                reader.end(Self::Joined(remaining, address))
            }
            3 => {
                let mut reader = Reader(body);
                let remaining = reader.duration()?;
                (reader.0.len() <= MAX_BLOB_BYTES).then(|| Self::Blob(remaining, reader.0.to_vec()))
            }
            4 => (body.len() <= MAX_BLOB_BYTES).then(|| Self::Gathered(body.to_vec())),
            5 => Verdict::decode(body).map(Self::Verdict),
            _ => None,
        }
    }
}

impl Verdict {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Missing { ranks, waited } => {
                let words = [1, milliseconds(*waited)].into_iter().chain(ranks.iter().copied());
                words.flat_map(u32::to_le_bytes).collect()
            }
            Self::Lost { rank } => [2, *rank].into_iter().flat_map(u32::to_le_bytes).collect(),
            Self::Disagreement { subject, rank, found, expected } => {
                let (found, expected) = (cut(found, MAX_TEXT_BYTES), cut(expected, MAX_TEXT_BYTES));
                let words = [3, *subject as u32, *rank, found.len() as u32];
                let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
                bytes.extend_from_slice(found.as_bytes());
                bytes.extend_from_slice(expected.as_bytes());
                bytes
            }
        }
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = Reader(body);
        match reader.word()? {
            1 => {
                let waited = reader.duration()?;
                let (ranks, rest) = reader.0.as_chunks();
                let ranks = ranks.iter().map(|rank| u32::from_le_bytes(*rank)).collect();
                rest.is_empty().then_some(Self::Missing { ranks, waited })
            }
            2 => {
                let rank = reader.word()?;
                reader.end(Self::Lost { rank })
            }
            3 => {
                let (subject, rank, length) = (reader.word()?, reader.word()?, reader.word()?);
                let (subject, _) = SUBJECTS.into_iter().find(|(known, _)| *known as u32 == subject)?;
                let (found, expected) = reader.0.split_at_checked(length as usize)?;
                let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
                Some(Self::Disagreement { subject, rank, found: text(found)?, expected: text(expected)? })
            }
            _ => None,
        }
    }
}

/// Takes little-endian words off the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn duration(&mut self) -> Option<Duration> {
        self.word().map(|milliseconds| Duration::from_millis(milliseconds.into()))
    }

    fn address(&mut self) -> Option<IpAddr> {
        let (address, rest) = self.0.split_first_chunk::<16>()?;
        self.0 = rest;
        Some(IpAddr::from(*address).to_canonical())
    }

    /// `value` if nothing is left over.
    fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// The longest prefix of at most `most` bytes that ends between two characters.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// An address of IPv4 as IPv6 writes it.
fn encode_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let time = || any::<u32>().prop_map(|milliseconds| Duration::from_millis(milliseconds.into()));
        let blob = || proptest::collection::vec(any::<u8>(), 0..300);
        let subject = (0..SUBJECTS.len()).prop_map(|at| SUBJECTS[at].0);
        let missing = (proptest::collection::vec(any::<u32>(), 0..40), time())
            .prop_map(|(ranks, waited)| Verdict::Missing { ranks, waited });
        let disagreement =
            (subject, any::<u32>(), ".{0,60}", ".{0,60}").prop_map(|(subject, rank, found, expected)| {
                Verdict::Disagreement { subject, rank, found, expected }
            });
        prop_oneof![
            time().prop_map(Frame::Patience),
            (time(), any::<IpAddr>())
                .prop_map(|(remaining, address)| Frame::Joined(remaining, address.to_canonical())),
            (time(), blob()).prop_map(|(remaining, blob)| Frame::Blob(remaining, blob)),
            blob().prop_map(Frame::Gathered),
            missing.prop_map(Frame::Verdict),
            any::<u32>().prop_map(|rank| Frame::Verdict(Verdict::Lost { rank })),
            disagreement.prop_map(Frame::Verdict),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_back(frame in frames()) {
            let bytes = frame.encode();
            let (header, body) = bytes.split_at(HEADER_BYTES);
            prop_assert_eq!(u32::from_le_bytes(header[1..].try_into().unwrap()) as usize, body.len());
            prop_assert!(body.len() <= Frame::max_body_bytes(40));
            prop_assert_eq!(Frame::decode(header[0], body), Some(frame));
        }

        #[test]
        fn no_bytes_panic(kind in 0u8..8, words in proptest::collection::vec(0u32..6, 0..8), rest in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut body: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
            body.extend(rest);
            let _ = Frame::decode(kind, &body);
        }
    }

    #[test]
    fn too_long_blobs_are_refused() {
        assert!(Frame::decode(4, &vec![0; MAX_BLOB_BYTES]).is_some());
        assert!(Frame::decode(4, &vec![0; MAX_BLOB_BYTES + 1]).is_none());
        assert!(Frame::decode(3, &vec![0; MAX_BLOB_BYTES + 5]).is_none());
    }
}
