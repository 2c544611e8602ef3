//! The frames that rank 0 and the others send each other once they have proven themselves.
//!
//! A frame is a kind (1 byte), the length of its body (4 bytes, little-endian) and the body.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::fields::Fields;
use crate::{Error, Rank};

/// The largest blob of an exchange, in bytes.
pub const MAX_BLOB_BYTES: usize = 64 * 1024;

pub(super) const HEADER_BYTES: usize = 5;

/// Strings in a verdict are cut to this.
const MAX_TEXT_BYTES: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// To rank 0: how long this rank is still willing to wait for the others to join.
    Patience(Duration),
    /// From rank 0: all ranks have joined; the time left until the earliest deadline of all ranks; an address
    /// of rank 0, one on which another host has reached it if there is any.
    Joined(Duration, IpAddr),
    /// To rank 0: this rank's blob, and how long it is willing to wait for the others' blobs.
    Blob(Duration, Vec<u8>),
    /// From rank 0: the blob of the next rank.
    Gathered(Vec<u8>),
    /// From rank 0: why the job has failed.
    Verdict(Verdict),
}

/// Why a job has failed to join, as every rank reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Missing { ranks: Vec<u32>, waited: Duration },
    Lost { rank: u32 },
    Disagreement { subject: Subject, rank: u32, found: String, expected: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    WireVersion,
    Job,
    WorldSize,
    Processes,
}

const SUBJECTS: [Subject; 4] = [Subject::WireVersion, Subject::Job, Subject::WorldSize, Subject::Processes];
const SUBJECT_NAMES: [&str; 4] = ["wire version", "job", "world size", "processes of one rank"];

impl Frame {
    /// The longest body that a frame may have in a world of `world_size`.
    pub(super) fn max_body_bytes(world_size: u32) -> usize {
        (4 + MAX_BLOB_BYTES).max(16 + 2 * MAX_TEXT_BYTES).max(16 + 4 * world_size as usize)
    }

    pub(super) fn encode(&self) -> Arc<[u8]> {
        let (kind, body) = match self {
            Self::Patience(remaining) => (1, milliseconds(*remaining).to_vec()),
            Self::Joined(remaining, address) => {
                let address = match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => *address,
                };
                (2, [&milliseconds(*remaining)[..], &address.octets()].concat())
            }
            Self::Blob(remaining, blob) => (3, [&milliseconds(*remaining)[..], blob].concat()),
            Self::Gathered(blob) => (4, blob.clone()),
            Self::Verdict(verdict) => (5, verdict.encode()),
        };
        [&[kind][..], &(body.len() as u32).to_le_bytes(), &body].concat().into()
    }

    /// `None` when the body is not valid for this kind.
    pub(super) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let frame = match kind {
            1 => Self::Patience(duration(&mut fields)?),
            2 => Self::Joined(duration(&mut fields)?, IpAddr::from(fields.array::<16>()?).to_canonical()),
            3 => Self::Blob(duration(&mut fields)?, blob(&mut fields)?),
            4 => Self::Gathered(blob(&mut fields)?),
            5 => Self::Verdict(Verdict::decode(&mut fields)?),
            _ => return None,
        };
        fields.0.is_empty().then_some(frame)
    }
}

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
                let what = SUBJECT_NAMES[subject as usize];
                Error::Disagreement { what, rank: Rank(rank), found, expected }
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        match self {
            Self::Missing { ranks, waited } => {
                [&words(&[1])[..], &milliseconds(*waited), &words(ranks)].concat()
            }
            Self::Lost { rank } => words(&[2, *rank]),
            Self::Disagreement { subject, rank, found, expected } => {
                let (found, expected) = (cut(found, MAX_TEXT_BYTES), cut(expected, MAX_TEXT_BYTES));
                let fixed = words(&[3, *subject as u32, *rank, found.len() as u32]);
                [&fixed[..], found.as_bytes(), expected.as_bytes()].concat()
            }
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(match fields.u32()? {
            1 => {
                let waited = duration(fields)?;
                Self::Missing { waited, ranks: std::iter::from_fn(|| fields.u32()).collect() }
            }
            2 => Self::Lost { rank: fields.u32()? },
            3 => {
                let (subject, rank, length) = (fields.u32()?, fields.u32()?, fields.u32()?);
                let subject = *SUBJECTS.get(subject as usize)?;
                let (found, expected) = std::mem::take(&mut fields.0).split_at_checked(length as usize)?;
                let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
                Self::Disagreement { subject, rank, found: text(found)?, expected: text(expected)? }
            }
            _ => return None,
        })
    }
}

/// The longest prefix of at most `most` bytes that ends between two characters.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

fn milliseconds(duration: Duration) -> [u8; 4] {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).to_le_bytes()
}

fn duration(fields: &mut Fields<'_>) -> Option<Duration> {
    fields.u32().map(|milliseconds| Duration::from_millis(milliseconds.into()))
}

/// All bytes that are left.
fn blob(fields: &mut Fields<'_>) -> Option<Vec<u8>> {
    let blob = std::mem::take(&mut fields.0);
    (blob.len() <= MAX_BLOB_BYTES).then(|| blob.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let time = || any::<u32>().prop_map(|milliseconds| Duration::from_millis(milliseconds.into()));
        let blob = || proptest::collection::vec(any::<u8>(), 0..300);
        let subject = (0..SUBJECTS.len()).prop_map(|at| SUBJECTS[at]);
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
        fn no_bytes_panic(
            kind in 0u8..8,
            words in proptest::collection::vec(0u32..6, 0..8),
            rest in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
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
