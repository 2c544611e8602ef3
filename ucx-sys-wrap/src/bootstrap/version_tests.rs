//! Holds what ranks say while they join: whoever changes it bumps the version.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::choice::{Capability, Choice};
use super::host;
use super::key::hex;
use super::proof::{PROOF_BYTES, Party, Purpose, Role, prove};
use super::wire::{Frame, Subject, Verdict};
use super::{MAX_BLOB_BYTES, WIRE_VERSION};
use crate::boot::MemoryOwner;

/// An opening of either end with a nonce that is known.
fn opening(role: Role) -> Vec<u8> {
    let party = Party { key: vec![], job: "night".into(), rank: 3, world_size: 5, wire_version: 0 };
    let opening = party.opening(Purpose::Mesh, role, 2).unwrap();
    let mut bytes = opening.encode().to_vec();
    let nonce = bytes.len() - 32;
    bytes[nonce..].fill(7);
    bytes
}

fn frames() -> Vec<Frame> {
    let (time, text) = (Duration::from_millis(1500), |text: &str| text.to_owned());
    let subjects = [Subject::WireVersion, Subject::Job, Subject::WorldSize, Subject::Processes];
    let differences = subjects.map(|subject| {
        Frame::Verdict(Verdict::Disagreement {
            subject,
            rank: 4,
            found: text("this"),
            expected: text("that"),
        })
    });
    let mut frames = vec![
        Frame::Patience(time),
        Frame::Joined(time, [10, 0, 0, 1].into()),
        Frame::Joined(time, [0xfd78, 0, 0, 0, 0, 0, 0, 1].into()),
        Frame::Blob(time, b"mine".to_vec()),
        Frame::Gathered(b"theirs".to_vec()),
        Frame::Verdict(Verdict::Missing { ranks: vec![1, 2], waited: time }),
        Frame::Verdict(Verdict::Lost { rank: 6 }),
    ];
    frames.extend(differences);
    frames
}

#[test]
fn what_is_said_while_joining_has_this_version() {
    let (caller, answerer) = (opening(Role::Caller), opening(Role::Answerer));
    let proofs = [Role::Caller, Role::Answerer].map(|role| prove(b"key", role, &caller, &answerer)).concat();
    assert_eq!(proofs.len(), 2 * PROOF_BYTES);
    let refusal = Capability {
        requested: Choice::Ucx,
        ucx: Err("none".into()),
        encrypt: true,
        memory: Some(MemoryOwner::sample(5, 6, 7)),
    };
    let mut hash = Sha256::new();
    hash.update([caller, answerer, proofs, refusal.encode(), host::sample().encode()].concat());
    frames().iter().for_each(|frame| hash.update(frame.encode()));
    hash.update(MAX_BLOB_BYTES.to_le_bytes());
    let digest = hex(&hash.finalize()[..8]);
    assert_eq!(
        (WIRE_VERSION, &*digest),
        (17, "2a3262fc28cc8791"),
        "bump bootstrap::WIRE_VERSION, then put both here"
    );
}
