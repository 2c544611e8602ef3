//! A wire against whatever comes over its socket.

use std::io::{IoSliceMut, Write};
use std::net::{TcpListener, TcpStream};

use rustix::io::Errno;

use super::Wire;
use crate::Statistics;
use crate::fuzzing::Bytes;
use crate::noise::{Handshake, Session, Terms};

/// Follows a plan: whether the bytes are encrypted, then what comes, and what is read.
pub fn tcp_wire(data: &[u8]) {
    let mut bytes = Bytes(data);
    let Some(kind) = bytes.byte() else { return };
    let encrypt = kind & 1 == 1;
    let Some((mut wire, mut stranger)) = ends(encrypt) else { return };
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
            // What the kernel does not take is as if it had never been sent.
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

/// A wire and the stranger's end of it.
fn ends(encrypt: bool) -> Option<(Wire, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let stranger = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    let own = listener.accept().ok()?.0;
    own.set_nonblocking(true).ok()?;
    stranger.set_nonblocking(true).ok()?;
    stranger.set_nodelay(true).ok()?;
    let wire = if encrypt { Wire::encrypted(own, session()?) } else { own.into() };
    Some((wire, stranger))
}

/// One end of a session whose other end is forgotten.
fn session() -> Option<Session> {
    let terms = Terms { wire_version: 1, job: "", caller: 1, answerer: 0 };
    let (_, greeting) = Handshake::call(b"key", terms).ok()?;
    Some(Handshake::await_call(b"key", terms).ok()?.hear(&greeting).ok()?.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_do_harm(kind in 0u8..2, steps in proptest::collection::vec((any::<u8>(), 0u16..600, proptest::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..30)) {
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
