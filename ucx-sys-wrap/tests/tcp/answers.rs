//! Answers (CTS and NACK) to an RTS between local peers: when they are sent, and to whom the message goes.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ucx_sys_wrap::tcp::Tcp;
use ucx_sys_wrap::{Envelope, Error, Rank, Transport};

use super::world::*;

const CELLS: usize = 64;

/// Sends `count` messages that fit their descriptors from rank 0 to rank 1, which takes them if it `receives`
/// them.
fn use_up(transports: &mut [Tcp], count: usize, receives: bool) {
    for round in 0..count as u32 {
        let receiving = receives.then(|| Receiving::post(&mut transports[1], 0, envelope(0, round), &[8]));
        let sent =
            Sending::post(&mut transports[0], 1, envelope(0, round), &[b"eight by"]).test(&mut transports[0]);
        sent.expect("it lies in its cell").unwrap();
        if let Some(mut receiving) = receiving {
            turn_until(&mut transports[1..], |ranks| receiving.test(&mut ranks[0]).is_some());
        }
    }
}

/// Sends some KiB from rank 1 to rank 0, behind a message that is not received, so that they start with an
/// RTS.
fn offer(transports: &mut [Tcp], bytes: &[u8]) -> Sending {
    Sending::post(&mut transports[1], 0, envelope(1, 2), &[&[0; 8]])
        .test(&mut transports[1])
        .expect("it has a cell")
        .unwrap();
    Sending::post(&mut transports[1], 0, envelope(1, 0), &[bytes])
}

/// A rank that has received a message may never poll again. So it reports at once that the sender's memory
/// has been read, even if all descriptors known to be free are used up.
#[test]
fn an_answer_does_not_wait_for_another_turn() {
    for earlier in CELLS - 2..=CELLS + 2 {
        let mut transports = local_peers(2, true);
        use_up(&mut transports, earlier, true);
        let bytes = pattern(1, 100_000);
        // Something else is awaited, so that every turn looks at the link.
        let _other = Receiving::post(&mut transports[0], 1, envelope(1, 1), &[8]);
        let mut sending = offer(&mut transports, &bytes);
        turn(&mut transports[..1], 1);
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[bytes.len()]);
        receiving.test(&mut transports[0]).expect("it lies there to be read").unwrap();
        // Rank 0 does not poll from here on.
        turn_until(&mut transports[1..], |ranks| sending.test(&mut ranks[0]).is_some());
        assert!(receiving.bytes() == [bytes], "after {earlier} messages");
    }
}

/// Two ranks, the first of which has refused what the second is sending and has posted another receive.
/// `cells` is how many descriptors have been used by then, `are_taken` whether they have been taken.
fn refused(cells: usize, are_taken: bool) -> (Vec<Tcp>, Sending, Receiving) {
    let mut transports = local_peers(2, true);
    use_up(&mut transports, cells, are_taken);
    let other = Receiving::post(&mut transports[0], 1, envelope(1, 1), &[8]);
    let sending = offer(&mut transports, &pattern(1, 100_000));
    turn(&mut transports[..1], 1);
    let another = Envelope { signature: another_signature(), ..envelope(1, 0) };
    let result = Receiving::post(&mut transports[0], 1, another, &[100_000]).test(&mut transports[0]);
    assert!(matches!(result, Some(Err(Error::Mismatch { .. }))), "{result:?}");
    (transports, sending, other)
}

#[test]
fn a_refusal_does_not_wait_for_another_turn() {
    for earlier in CELLS - 2..=CELLS + 2 {
        let (mut transports, mut sending, _other) = refused(earlier, true);
        turn_until(&mut transports[1..], |ranks| sending.test(&mut ranks[0]).is_some());
    }
}

/// If there is no descriptor for a NACK, it waits for a turn of the rank that refuses. That rank's receive
/// has failed, and the rank may never poll again: it then leaves or closes the transport, and either ends the
/// send.
#[test]
fn a_refusal_that_could_not_be_told_is_no_end_to_wait_for() {
    for leaves in [false, true] {
        let (mut transports, mut sending, _other) = refused(CELLS, false);
        turn(&mut transports[1..], 10);
        assert!(sending.test(&mut transports[1]).is_none(), "it was told");
        if leaves {
            drop(transports.remove(0));
        } else {
            transports[1].lose(Rank(0), Error::PeerLost { rank: Rank(0) });
        }
        let last = transports.len() - 1;
        turn_until(&mut transports[last..], |ranks| sending.test(&mut ranks[0]).is_some());
    }
}

/// If the local peer has taken none of the descriptors, nothing can be sent now: the receive goes on until it
/// can.
#[test]
fn a_receive_ends_only_when_its_sender_was_told() {
    for is_late in [false, true] {
        let mut transports = local_peers(2, true);
        use_up(&mut transports, CELLS, false);
        let bytes = pattern(1, 100_000);
        let _other = Receiving::post(&mut transports[0], 1, envelope(1, 1), &[8]);
        let mut sending = offer(&mut transports, &bytes);
        // An unexpected message is read to the heap in a later turn.
        turn(&mut transports[..1], if is_late { 5 } else { 1 });
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[bytes.len()]);
        if receiving.test(&mut transports[0]).is_none() {
            receive(&mut transports, 0, &mut receiving).unwrap();
        }
        // Rank 0 does not poll from here on.
        turn_until(&mut transports[1..], |ranks| sending.test(&mut ranks[0]).is_some());
        assert!(receiving.bytes() == [bytes]);
    }
}

/// An unexpected message is read as soon as there is a descriptor for the answer, however many turns that
/// takes, and also if both ranks sleep meanwhile.
#[test]
fn what_could_not_be_answered_at_first_is_read_to_the_heap_later() {
    let mut transports = local_peers(2, true);
    use_up(&mut transports, CELLS, false);
    let _other = Receiving::post(&mut transports[0], 1, envelope(1, 1), &[8]);
    let mut sending = offer(&mut transports, &pattern(1, 100_000));
    turn(&mut transports[..1], 5);
    let wake_receiver = (0..100).find_map(|_| transports[0].arm()).expect("nothing moves: it can sleep");
    let rings =
        || poll(&mut [PollFd::new(&wake_receiver, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0;
    assert!(!rings(), "nothing has happened");
    // Rank 1 receives what was sent to it.
    turn(&mut transports[1..], 10);
    assert!(rings(), "there are cells for the answer, and nobody says so");
    turn_until(&mut transports, |ranks| sending.test(&mut ranks[1]).is_some());
}

/// If a receive is canceled after its CTS, its message goes nowhere, in particular not to the next receive.
#[test]
fn what_a_canceled_receive_was_granted_goes_to_no_other() {
    let mut transports = local_peers(2, false);
    let size = 3 << 20;
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    let mut first = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[size]);
    turn(&mut transports[1..], 1);
    assert!(matches!(first.cancel(&mut transports[1]), Err(Error::Canceled)));
    let mut second = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[size]);
    turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
    turn(&mut transports, 10);
    assert!(second.test(&mut transports[1]).is_none(), "nothing was sent to it");
    let mut behind = Sending::post(&mut transports[0], 1, envelope(0, 1), &[&pattern(2, size)]);
    receive(&mut transports, 1, &mut second).unwrap();
    assert!(second.bytes() == [pattern(2, size)]);
    turn_until(&mut transports, |transports| behind.test(&mut transports[0]).is_some());
}
