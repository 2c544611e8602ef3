//! What both ends of a connection say first, and how each proves that it holds the job's key.
//!
//! Pure: bytes in, bytes out. The caller connects, the answerer accepts. Each sends an [`Opening`], then
//! proves itself with `HMAC-SHA256(key, label of its role | caller's opening | answerer's opening)`. Openings
//! hold the job, both ranks and a nonce each, so a proof is valid for one direction of one connection.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::identity::MAX_JOB_BYTES;
use super::key::fill_random;
use super::wire::{Subject, cut};
use crate::Result;
use crate::fields::Fields;

/// An opening on the wire: magic 8, wire version 4, purpose 1, role 1, job length 1, zero 1, rank 4, peer
/// 4, world size 4, job 64, nonce 32; integers little-endian.
pub(super) const OPENING_BYTES: usize = 28 + MAX_JOB_BYTES + NONCE_BYTES;

/// A proof on the wire.
pub(super) const PROOF_BYTES: usize = 32;

const NONCE_BYTES: usize = 32;

/// Names the form of openings and proofs.
const MAGIC: [u8; 8] = *b"BREVITY\x01";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Rendezvous = 1,
    Mesh = 2,
    /// Exchanging descriptors with a rank of the same host.
    FdExchange = 3,
    /// Coming back to those that are left, whoever listens for them.
    Return = 4,
}

impl Purpose {
    /// Whether a listener may answer one that calls for this in this way. One that comes back learns so that
    /// the job has not begun.
    fn may_be_answered(self, answer: Self) -> bool {
        self == answer || (self, answer) == (Self::Return, Self::Rendezvous)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The end that connects.
    Caller = 1,
    /// The end that accepts.
    Answerer = 2,
}

/// What one end says about itself. Nothing in it is trusted before its proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) wire_version: u32,
    pub(super) purpose: Purpose,
    pub(super) role: Role,
    /// The sender.
    pub(super) rank: u32,
    /// The receiver.
    pub(super) peer: u32,
    pub(super) world_size: u32,
    /// At most [`MAX_JOB_BYTES`].
    pub(super) job: String,
    nonce: [u8; NONCE_BYTES],
}

/// What a rank says about itself in every opening, and its key.
#[derive(Clone, Debug)]
pub(super) struct Party {
    pub(super) key: Vec<u8>,
    pub(super) job: String,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) wire_version: u32,
}

impl Party {
    pub(super) fn opening(&self, purpose: Purpose, role: Role, peer: u32) -> Result<Opening> {
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce)?;
        let &Self { rank, world_size, wire_version, .. } = self;
        Ok(Opening { wire_version, purpose, role, rank, peer, world_size, job: self.job.clone(), nonce })
    }

    /// The first thing that all ranks must have in common and these two have not: this rank's value, then
    /// the other's.
    pub(super) fn difference(&self, other: &Opening) -> Option<(Subject, String, String)> {
        let values = [
            (Subject::WireVersion, self.wire_version.to_string(), other.wire_version.to_string()),
            (Subject::Job, format!("{:?}", self.job), format!("{:?}", other.job)),
            (Subject::WorldSize, self.world_size.to_string(), other.world_size.to_string()),
        ];
        values.into_iter().find(|(_, own, theirs)| own != theirs)
    }
}

impl Opening {
    pub(super) fn encode(&self) -> [u8; OPENING_BYTES] {
        let mut bytes = [0; OPENING_BYTES];
        let job = cut(&self.job, MAX_JOB_BYTES).as_bytes();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.wire_version.to_le_bytes());
        bytes[12..16].copy_from_slice(&[self.purpose as u8, self.role as u8, job.len() as u8, 0]);
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.peer.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[28..28 + job.len()].copy_from_slice(job);
        bytes[28 + MAX_JOB_BYTES..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; OPENING_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (magic, wire_version) = (fields.array()?, fields.u32()?);
        let [purpose, role, job_bytes, zero] = fields.array()?;
        let (rank, peer, world_size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (job, nonce) = (fields.array::<MAX_JOB_BYTES>()?, fields.array()?);
        let (job, padding) = job.split_at_checked(job_bytes.into())?;
        let purposes = [Purpose::Rendezvous, Purpose::Mesh, Purpose::FdExchange, Purpose::Return];
        let purpose = purposes.into_iter().find(|&known| known as u8 == purpose)?;
        let role = [Role::Caller, Role::Answerer].into_iter().find(|&known| known as u8 == role)?;
        let job = std::str::from_utf8(job).ok()?.to_owned();
        let valid = magic == MAGIC && zero == 0 && padding.iter().all(|&byte| byte == 0);
        valid.then_some(Self { wire_version, purpose, role, rank, peer, world_size, job, nonce })
    }

    /// Whether it is what the other end of a connection may say to the end that says `mine`.
    pub(super) fn fits(&self, mine: &Self) -> bool {
        let is_sender_expected = mine.role == Role::Answerer || self.rank == mine.peer;
        let (called, answer) = match mine.role {
            Role::Caller => (mine.purpose, self.purpose),
            Role::Answerer => (self.purpose, mine.purpose),
        };
        let is_expected = is_sender_expected && called.may_be_answered(answer);
        is_expected && self.peer == mine.rank && self.role != mine.role
    }
}

/// Whether an opening may begin with these bytes: detects strangers early.
pub(super) fn may_begin(prefix: &[u8]) -> bool {
    prefix.iter().zip(&MAGIC).all(|(found, expected)| found == expected)
}

/// The proof of the end with `role` in a connection with these two openings.
pub(super) fn prove(key: &[u8], role: Role, caller: &[u8], answerer: &[u8]) -> [u8; PROOF_BYTES] {
    proof(key, role, caller, answerer).finalize().into_bytes().into()
}

/// Whether `found` is the proof of the end with `role`, in constant time.
pub(super) fn verify(key: &[u8], role: Role, caller: &[u8], answerer: &[u8], found: &[u8]) -> bool {
    proof(key, role, caller, answerer).verify_slice(found).is_ok()
}

fn proof(key: &[u8], role: Role, caller: &[u8], answerer: &[u8]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(match role {
        Role::Caller => b"brevity caller\0\0",
        Role::Answerer => b"brevity answerer",
    });
    mac.update(caller);
    mac.update(answerer);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &[u8] = b"correct horse battery";

    fn party(rank: u32) -> Party {
        Party { key: KEY.to_vec(), job: "job".into(), rank, world_size: 4, wire_version: 1 }
    }

    fn openings() -> (Vec<u8>, Vec<u8>) {
        let caller = party(3).opening(Purpose::Mesh, Role::Caller, 1).unwrap();
        let answerer = party(1).opening(Purpose::Mesh, Role::Answerer, 3).unwrap();
        (caller.encode().to_vec(), answerer.encode().to_vec())
    }

    #[test]
    fn a_proof_is_the_hmac_of_the_standard() {
        // RFC 4231, test case 2, through the same type.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let digest = mac.finalize().into_bytes();
        assert_eq!(digest[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
    }

    #[test]
    fn only_the_right_key_role_and_openings_prove() {
        let (caller, answerer) = openings();
        let good = prove(KEY, Role::Caller, &caller, &answerer);
        assert!(verify(KEY, Role::Caller, &caller, &answerer, &good));
        assert!(!verify(KEY, Role::Answerer, &caller, &answerer, &good), "a reflected proof");
        assert!(!verify(KEY, Role::Caller, &answerer, &caller, &good), "exchanged openings");
        assert!(!verify(b"another key of the job", Role::Caller, &caller, &answerer, &good));
        assert!(!verify(KEY, Role::Caller, &caller, &answerer, &good[..31]));
        assert!(!verify(KEY, Role::Caller, &caller, &answerer, &[0; 32]));
        let (_, later) = openings();
        assert!(!verify(KEY, Role::Caller, &caller, &later, &good), "a replayed proof");
    }

    #[test]
    fn every_byte_of_both_openings_counts() {
        let (caller, answerer) = openings();
        let good = prove(KEY, Role::Answerer, &caller, &answerer);
        for at in 0..OPENING_BYTES {
            let (mut changed_caller, mut changed_answerer) = (caller.clone(), answerer.clone());
            changed_caller[at] ^= 1;
            changed_answerer[at] ^= 1;
            assert!(!verify(KEY, Role::Answerer, &changed_caller, &answerer, &good));
            assert!(!verify(KEY, Role::Answerer, &caller, &changed_answerer, &good));
        }
    }

    #[test]
    fn an_empty_key_is_a_key() {
        let (caller, answerer) = openings();
        let good = prove(b"", Role::Caller, &caller, &answerer);
        assert!(verify(b"", Role::Caller, &caller, &answerer, &good));
        assert!(!verify(KEY, Role::Caller, &caller, &answerer, &good));
    }

    proptest! {
        #[test]
        fn openings_come_back(
            rank: u32,
            peer: u32,
            world_size: u32,
            wire_version: u32,
            job in "[a-zé]{0,32}",
            caller: bool,
        ) {
            let role = if caller { Role::Caller } else { Role::Answerer };
            let party = Party { key: vec![], job, rank, world_size, wire_version };
            let opening = party.opening(Purpose::Mesh, role, peer).unwrap();
            prop_assert_eq!(Opening::decode(&opening.encode()), Some(opening));
        }

        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), OPENING_BYTES), magic: bool) {
            if magic {
                bytes[..8].copy_from_slice(&MAGIC);
            }
            let bytes: [u8; OPENING_BYTES] = bytes.try_into().unwrap();
            if let Some(opening) = Opening::decode(&bytes) {
                prop_assert_eq!(opening.encode(), bytes);
            }
        }
    }

    #[test]
    fn one_that_comes_back_may_be_told_that_the_job_has_not_begun() {
        use Purpose::{FdExchange, Mesh, Rendezvous, Return};
        let all = [Rendezvous, Mesh, FdExchange, Return];
        for (called, answer) in all.into_iter().flat_map(|called| all.map(|answer| (called, answer))) {
            let caller = party(3).opening(called, Role::Caller, 1).unwrap();
            let answerer = party(1).opening(answer, Role::Answerer, 3).unwrap();
            let expected = called == answer || (called, answer) == (Return, Rendezvous);
            assert_eq!(caller.fits(&answerer), expected, "{called:?} answered as {answer:?}");
            assert_eq!(answerer.fits(&caller), expected, "{called:?} answered as {answer:?}");
        }
    }

    #[test]
    fn strangers_are_seen_early() {
        assert!(may_begin(b"") && may_begin(b"BREV") && may_begin(&openings().0));
        assert!(!may_begin(b"GET / HTTP/1.1\r\n") && !may_begin(b"\x16\x03\x01"));
    }
}
