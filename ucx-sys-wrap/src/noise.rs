//! Encryption of one connection: the Noise protocol, pattern `NNpsk0`, with a secret derived from the job's
//! key.
//!
//! Both ends have already proven to hold the key. The handshake mixes it with two ephemeral Diffie-Hellman
//! keys (forward secrecy: recorded bytes can't be read by someone who learns the key later). Its prologue
//! holds what the ends must agree on: version, both ranks, job.
//!
//! | step | who | bytes |
//! | --- | --- | --- |
//! | 1 | caller | its ephemeral key and a tag: 48 |
//! | 2 | answerer | the same |
//! | 3 | both | records: length (2 bytes, little-endian), then a sealed message of this length |
//!
//! A sealed message is at most 65,535 bytes, 16 of them a tag. The tag covers the message's number in its
//! direction: a message that was changed, dropped, repeated or reordered does not open. Both ends take a new
//! key after every [`REKEY_EVERY`] messages of a direction.
#![forbid(unsafe_code)]

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use snow::{Builder, HandshakeState, TransportState};

#[cfg(not(feature = "encryption"))]
use crate::without_snow as snow;
use crate::{Error, Result};

/// The bytes that AES-GCM adds to a message.
pub(crate) const TAG_BYTES: usize = 16;

/// The longest sealed message, in bytes.
pub(crate) const MAX_SEALED_BYTES: usize = 65_535;

/// The longest message before sealing, in bytes.
pub(crate) const MAX_OPEN_BYTES: usize = MAX_SEALED_BYTES - TAG_BYTES;

/// The length of a handshake message, in bytes.
pub(crate) const GREETING_BYTES: usize = 48;

/// Messages of a direction under one key: 256 MiB at most.
const REKEY_EVERY: u64 = 1 << 12;

const PROTOCOL: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// What both ends of a connection must agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) wire_version: u32,
    pub(crate) job: &'a str,
    /// The rank that has connected.
    pub(crate) caller: u32,
    /// The rank that has accepted.
    pub(crate) answerer: u32,
}

/// One end of a handshake.
pub(crate) struct Handshake(HandshakeState);

/// One end of an encrypted connection: seals and opens messages, each direction in order.
pub(crate) struct Session {
    state: TransportState,
    sealed: u64,
    opened: u64,
}

/// A message that the other end has not sent in this form and order, or not under this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

impl Terms<'_> {
    fn prologue(&self) -> Vec<u8> {
        let mut bytes = b"brevity stream".to_vec();
        for word in [self.wire_version, self.caller, self.answerer, self.job.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(self.job.as_bytes());
        bytes
    }
}

impl Handshake {
    /// Begins as the end that has connected; returns the first message too.
    pub(crate) fn call(key: &[u8], terms: Terms<'_>) -> Result<(Self, [u8; GREETING_BYTES])> {
        let mut state = prepare(key, terms, |builder| builder.build_initiator())?;
        let greeting = greet(&mut state)?;
        Ok((Self(state), greeting))
    }

    /// Begins as the end that has accepted.
    pub(crate) fn await_call(key: &[u8], terms: Terms<'_>) -> Result<Self> {
        Ok(Self(prepare(key, terms, |builder| builder.build_responder())?))
    }

    /// Takes the other end's message; returns the session and, on the answerer, the message to send.
    pub(crate) fn hear(
        mut self,
        greeting: &[u8; GREETING_BYTES],
    ) -> std::result::Result<(Session, Option<[u8; GREETING_BYTES]>), Forged> {
        self.0.read_message(greeting, &mut []).map_err(|_| Forged)?;
        let answer = match self.0.is_handshake_finished() {
            true => None,
            false => Some(greet(&mut self.0).map_err(|_| Forged)?),
        };
        let state = self.0.into_transport_mode().map_err(|_| Forged)?;
        Ok((Session { state, sealed: 0, opened: 0 }, answer))
    }
}

impl Session {
    /// Seals the next message, at most [`MAX_OPEN_BYTES`], into `sealed`, which is at least [`TAG_BYTES`]
    /// longer than `open`; returns the sealed length.
    pub(crate) fn seal(&mut self, open: &[u8], sealed: &mut [u8]) -> Result<usize> {
        let count = self.state.write_message(open, sealed).map_err(|error| failed(&error))?;
        self.sealed += 1;
        if self.sealed.is_multiple_of(REKEY_EVERY) {
            self.state.rekey_outgoing();
        }
        Ok(count)
    }

    /// Opens the next message into `open`, which is at least as long as `sealed`; returns the message's
    /// length. The bytes after the message are unchanged.
    pub(crate) fn open(&mut self, sealed: &[u8], open: &mut [u8]) -> std::result::Result<usize, Forged> {
        // The cipher writes the tag there too.
        let behind = open.last_chunk::<TAG_BYTES>().copied();
        let count = self.state.read_message(sealed, open).map_err(|_| Forged)?;
        if let Some((now, before)) = open.last_chunk_mut().zip(behind) {
            *now = before;
        }
        self.opened += 1;
        if self.opened.is_multiple_of(REKEY_EVERY) {
            self.state.rekey_incoming();
        }
        Ok(count)
    }
}

fn prepare(
    key: &[u8],
    terms: Terms<'_>,
    build: impl FnOnce(Builder<'_>) -> std::result::Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState> {
    let (secret, prologue) = (secret(key), terms.prologue());
    let state = PROTOCOL
        .parse()
        .map(Builder::new)
        .and_then(|builder| build(builder.psk(0, &secret)?.prologue(&prologue)?));
    state.map_err(|error| failed(&error))
}

fn greet(state: &mut HandshakeState) -> Result<[u8; GREETING_BYTES]> {
    let mut greeting = [0; GREETING_BYTES];
    state.write_message(&[], &mut greeting).map_err(|error| failed(&error))?;
    Ok(greeting)
}

/// The pre-shared key of the pattern, derived from the job's key, which itself is only used for proofs.
fn secret(key: &[u8]) -> [u8; 32] {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(b"brevity encryption, NNpsk0");
    mac.finalize().into_bytes().into()
}

/// The error of the system's random source, the only one possible here.
fn failed(error: &snow::Error) -> Error {
    Error::system("can't encrypt", std::io::Error::other(error.to_string()))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) const KEY: &[u8] = b"correct horse battery";

    pub(crate) fn terms() -> Terms<'static> {
        Terms { wire_version: 1, job: "job", caller: 3, answerer: 1 }
    }

    /// Both ends of a connection.
    pub(crate) fn sessions() -> (Session, Session) {
        meet(KEY, terms(), KEY, terms()).unwrap()
    }

    pub(crate) fn meet(
        key: &[u8],
        terms: Terms<'_>,
        other_key: &[u8],
        other_terms: Terms<'_>,
    ) -> std::result::Result<(Session, Session), Forged> {
        let (caller, greeting) = Handshake::call(key, terms).unwrap();
        let (answerer, answer) = Handshake::await_call(other_key, other_terms).unwrap().hear(&greeting)?;
        let (caller, nothing) = caller.hear(&answer.unwrap())?;
        assert_eq!(nothing, None);
        Ok((caller, answerer))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{KEY, meet, sessions, terms};
    use super::*;

    fn seal(session: &mut Session, open: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; open.len() + TAG_BYTES];
        assert_eq!(session.seal(open, &mut sealed).unwrap(), sealed.len());
        sealed
    }

    fn open(session: &mut Session, sealed: &[u8]) -> std::result::Result<Vec<u8>, Forged> {
        let mut open = vec![0; sealed.len()];
        let count = session.open(sealed, &mut open)?;
        open.truncate(count);
        Ok(open)
    }

    #[test]
    fn nothing_is_written_behind_a_message() {
        let (mut caller, mut answerer) = meet(KEY, terms(), KEY, terms()).unwrap();
        for message in [&b""[..], b"a", &[3; 100]] {
            let mut open = vec![7; message.len() + TAG_BYTES];
            assert_eq!(answerer.open(&seal(&mut caller, message), &mut open).unwrap(), message.len());
            assert!(open == [message, &[7; TAG_BYTES]].concat(), "{open:?}");
        }
    }

    #[test]
    fn ends_that_differ_in_anything_do_not_meet() {
        assert!(meet(KEY, terms(), KEY, terms()).is_ok());
        let others = [
            Terms { wire_version: 2, ..terms() },
            Terms { job: "bob", ..terms() },
            Terms { caller: 2, ..terms() },
            Terms { answerer: 3, caller: 1, ..terms() },
        ];
        for other in others {
            assert_eq!(meet(KEY, terms(), KEY, other).err(), Some(Forged), "{other:?}");
        }
        assert_eq!(meet(KEY, terms(), b"another key of the job", terms()).err(), Some(Forged));
    }

    #[test]
    fn a_greeting_that_is_changed_is_refused() {
        for at in 0..GREETING_BYTES {
            let (_, mut greeting) = Handshake::call(KEY, terms()).unwrap();
            greeting[at] ^= 1;
            assert!(Handshake::await_call(KEY, terms()).unwrap().hear(&greeting).is_err(), "byte {at}");
        }
    }

    #[test]
    fn messages_come_back_over_several_keys() {
        let (mut caller, mut answerer) = sessions();
        for number in 0..2 * REKEY_EVERY + 3 {
            let message = number.to_le_bytes();
            let there = seal(&mut caller, &message);
            assert_eq!(open(&mut answerer, &there).unwrap(), message);
            let back = seal(&mut answerer, &message);
            assert_ne!(there, back);
            assert_eq!(open(&mut caller, &back).unwrap(), message);
        }
        let large = vec![7; MAX_OPEN_BYTES];
        assert_eq!(seal(&mut caller, &large).len(), MAX_SEALED_BYTES);
    }

    #[test]
    fn a_new_key_is_taken_when_it_is_time() {
        let (mut caller, mut answerer) = sessions();
        for _ in 1..REKEY_EVERY {
            let sealed = seal(&mut caller, b"x");
            open(&mut answerer, &sealed).unwrap();
        }
        // The last message under the first key; who does not change the key then opens nothing after it.
        let sealed = seal(&mut caller, b"x");
        answerer.opened = 0;
        open(&mut answerer, &sealed).unwrap();
        let sealed = seal(&mut caller, b"x");
        assert_eq!(open(&mut answerer, &sealed), Err(Forged));
    }

    #[test]
    fn what_is_changed_repeated_left_out_exchanged_or_cut_does_not_open() {
        let message = b"gradients of a layer";
        for at in 0..message.len() + TAG_BYTES {
            let (mut caller, mut answerer) = sessions();
            let mut sealed = seal(&mut caller, message);
            sealed[at] ^= 0x10;
            assert_eq!(open(&mut answerer, &sealed), Err(Forged), "byte {at}");
        }
        let (mut caller, mut answerer) = sessions();
        let [first, second] = [seal(&mut caller, message), seal(&mut caller, message)];
        assert_ne!(first, second, "equal messages look different");
        assert_eq!(open(&mut answerer, &second), Err(Forged), "left out or exchanged");
        assert_eq!(open(&mut answerer, &first[..first.len() - 1]), Err(Forged), "cut");
        assert_eq!(open(&mut answerer, &first[..3]), Err(Forged), "less than a tag");
        assert_eq!(open(&mut answerer, &first).unwrap(), message);
        assert_eq!(open(&mut answerer, &first), Err(Forged), "repeated");
        assert_eq!(open(&mut caller, &second), Err(Forged), "sent back");
    }
}
