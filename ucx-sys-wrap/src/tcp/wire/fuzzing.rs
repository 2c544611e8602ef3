//! Fuzzing of a wire: arbitrary input.

use std::io::{IoSliceMut, Write};

use rustix::io::Errno;

use super::Wire;
use crate::Statistics;
use crate::fuzzing::Bytes;
use crate::noise::{Handshake, Session, Terms};
use crate::tcp::fuzzing::loopback_pair;

/// Interprets `data` as whether the stream is encrypted, and then steps: bytes that come, and reads.
pub fn tcp_wire(data: &[u8]) {
    let mut bytes = Bytes(data);
    let Some(kind) = bytes.byte() else { return };
    let encrypt = kind & 1 == 1;
    let Some((own, mut stranger)) = loopback_pair() else { return };
    let wire =
        if encrypt { session().map(|session| Wire::encrypted(own, session)) } else { Some(own.into()) };
    let Some(mut wire) = wire else { return };
    let (mut written, mut got) = (0, 0);
    while let Some(step) = bytes.byte() {
        let Some(amount) = bytes.word() else { break };
        if step.is_multiple_of(3) {
            match read(&mut wire, amount) {
                Ok(count) => got += count,
                Err(Errno::AGAIN) => {}
                Err(_) => break,
            }
        } else {
            // Bytes that the kernel does not take are never sent.
            written += stranger.write(bytes.take(amount)).unwrap_or(0);
        }
        assert!(got <= written, "{got} bytes of {written}");
        assert!(got == 0 || !encrypt, "bytes that nobody has sealed");
    }
    if let Some(what) = wire.violation() {
        assert!(!what.is_empty() && read(&mut wire, 1).is_err(), "it stays so");
    }
}

fn read(wire: &mut Wire, most: usize) -> rustix::io::Result<usize> {
    let (mut first, mut second) = (vec![0; most / 2], vec![0; most - most / 2]);
    wire.read(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)], &mut Statistics::default())
}

/// One end of a session without the other.
fn session() -> Option<Session> {
    let terms = Terms { wire_version: 1, job: "", caller: 1, answerer: 0 };
    let (_, greeting) = Handshake::call(b"key", terms).ok()?;
    Some(Handshake::await_call(b"key", terms).ok()?.hear(&greeting).ok()?.0)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_do_harm(
            kind in 0u8..2,
            steps in vec((any::<u8>(), 0u16..600, vec(any::<u8>(), 0..40), any::<bool>()), 0..30),
        ) {
            let mut plan = vec![kind];
            for (step, amount, mut bytes, is_record) in steps {
                // Lengths of records that are right.
                if is_record && bytes.len() >= 2 {
                    bytes[..2].copy_from_slice(&[30, 0]);
                }
                let amount = if step % 3 == 0 { amount } else { bytes.len() as u16 };
                plan.push(step);
                plan.extend(amount.to_le_bytes());
                plan.extend(if step % 3 == 0 { vec![] } else { bytes });
            }
            tcp_wire(&plan);
        }
    }
}
