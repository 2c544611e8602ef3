//! Impostors that know every word of the proof but not the key: whoever calls them must not take them for a
//! rank.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::call::Call;
use super::channel::wait_for;
use super::deadline::Deadline;
use super::proof::{OPENING_BYTES, PROOF_BYTES, Party, Purpose, Role, prove};
use super::{Identity, JobKey, Master, Rendezvous};
use crate::{Error, Rank};

const KEY: &str = "correct horse battery staple";
const OTHER_KEY: &[u8] = b"another key entirely";

/// The answerer's byte for "accepted".
const ACCEPTED: u8 = 1;

/// What an impostor makes of both openings and the caller's proof: its own "proof".
type Forgery = fn(&[u8], &[u8], &[u8]) -> [u8; PROOF_BYTES];

const FORGERIES: [(&str, Forgery); 3] = [
    ("32 bytes of its own", |_, _, _| [0x5a; PROOF_BYTES]),
    ("a proof with another key", |caller, answerer, _| prove(OTHER_KEY, Role::Answerer, caller, answerer)),
    ("the caller's own proof", |_, _, proof| proof.try_into().unwrap()),
];

fn party(rank: u32, key: &[u8]) -> Party {
    let wire_version = super::WIRE_VERSION;
    Party { key: key.to_vec(), job: "job".into(), rank, world_size: 2, wire_version }
}

/// Answers every caller with a well-formed opening of rank 0, accepts it and proves itself by `forge`.
fn impostor(purpose: Purpose, forge: Forgery) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test's process: callers that are content would never call again.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut caller, mut proof) = ([0; OPENING_BYTES], [0; PROOF_BYTES]);
            stream.read_exact(&mut caller).unwrap();
            let own = party(0, OTHER_KEY).opening(purpose, Role::Answerer, 1).unwrap();
            stream.write_all(&own.encode()).unwrap();
            stream.read_exact(&mut proof).unwrap();
            let forged = forge(&caller, &own.encode(), &proof);
            stream.write_all(&[&[ACCEPTED], &forged[..]].concat()).unwrap();
            // Held until the caller leaves.
            let _ = stream.read(&mut [0]);
        }
    });
    address
}

#[test]
fn who_answers_without_the_key_is_no_rank() {
    for purpose in [Purpose::Rendezvous, Purpose::Mesh] {
        for (what, forge) in FORGERIES {
            let caller = Arc::new(party(1, KEY.as_bytes()));
            let mut call = Call::new(&caller, purpose, 0, vec![impostor(purpose, forge)]);
            let deadline = Deadline::after(Duration::from_secs(20));
            let outcome = loop {
                match call.turn() {
                    Ok(None) => assert!(!deadline.passed(), "{purpose:?}: {what}: nothing was said"),
                    outcome => break outcome.map(|answer| answer.is_some()),
                }
                wait_for(&[], call.channel_mut().into_iter(), Duration::from_millis(10));
            };
            assert!(
                matches!(outcome, Err(Error::Unauthenticated { .. })),
                "{purpose:?}: {what}: {outcome:?}"
            );
        }
    }
}

#[test]
fn who_listens_on_the_masters_port_without_the_key_is_not_rank_0() {
    for (what, forge) in FORGERIES {
        let port = impostor(Purpose::Rendezvous, forge).port();
        let mut identity = Identity::new(Rank(1), 2, Master { host: "127.0.0.1".into(), port });
        (identity.key, identity.job) = (JobKey::parse(KEY), "job".into());
        identity.join_timeout = Duration::from_secs(20);
        let error = Rendezvous::join(&identity).map(drop).expect_err(what);
        assert!(matches!(error, Error::Unauthenticated { .. }), "{what}: {error}");
    }
}
