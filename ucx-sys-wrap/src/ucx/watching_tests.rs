//! What a rank learns of peers that are gone, and what an exiting rank reports. Skipped where there is no
//! UCX, unless `BREVITY_REQUIRE_UCX` is 1.

use std::time::{Duration, Instant};

use super::Ucx;
use super::failure_flag::Closed;
use super::liveness::PeerEvent;
use super::worlds::{has_ucx, world, world_with_infos};
use crate::buffer::Buffer;
use crate::buffer::testing::{lend_to_receive, lent_to_send};
use crate::transport::{News, Notice, Posted, RecvDone, RecvId, RecvParts, Transport};
use crate::{Arrival, Envelope, Error, Failure, Mark, Rank, Result, Signature, Tag};

const LANES: [&str; 2] = ["all", "tcp,self"];

/// Long enough for rendezvous.
const LONG: usize = 4 << 20;

/// Generous: it only has to tell slow from stuck.
const PATIENCE: Duration = Duration::from_secs(100);

fn pair(settings: &[(&str, &str)]) -> [Ucx; 2] {
    world(2, settings).try_into().ok().unwrap()
}

fn envelope() -> Envelope {
    Envelope { tag: Tag::new(Rank(0), 0, 0, 0), signature: Signature([7; 16]), mark: Mark::NONE }
}

/// Has rank 0 begin to send; returns whether that is over.
fn send(sender: &mut Ucx, buffers: &[Vec<u8>]) -> bool {
    matches!(sender.post_send(Rank(1), envelope(), lent_to_send(buffers)), Posted::Done(_))
}

/// Has rank 1 wait for a message of rank 0, into memory that is never freed.
fn receive(receiver: &mut Ucx, bytes: usize) -> RecvId {
    let mut parts = RecvParts::new();
    lend_to_receive::<Vec<u8>>(Box::leak(Box::new(vec![0; bytes].into_raw())), &mut parts);
    match receiver.post_recv(Rank(0), envelope(), parts) {
        Posted::Pending(id) => id,
        Posted::Done(RecvDone { result, .. }) => panic!("it has ended already: {result:?}"),
    }
}

fn ended(receiver: &mut Ucx, id: RecvId) -> Result<Arrival> {
    let start = Instant::now();
    loop {
        if let Some(RecvDone { result, .. }) = receiver.test_recv(id) {
            return result;
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        if !receiver.progress() {
            let _ = receiver.arm();
        }
    }
}

/// The sender's threads may write its memory again: a receiver that fetches it must not take that for the
/// message.
#[test]
fn exiting_in_the_middle_of_a_send_takes_it_back() {
    if !has_ucx() {
        return;
    }
    for lanes in LANES {
        // Dropped last: UCX reads it until its sender is gone.
        let message = [vec![1; LONG]];
        let [mut sender, mut receiver] = pair(&[("TLS", lanes)]);
        assert!(!send(&mut sender, &message));
        sender.leave_with_process(true);
        let id = receive(&mut receiver, LONG);
        let result = ended(&mut receiver, id);
        assert!(matches!(result, Err(Error::PeerLost { rank: Rank(0) })), "{lanes}: {result:?}");
    }
}

#[test]
fn a_rank_that_left_at_exit_answers_later_watchers() {
    if !has_ucx() {
        return;
    }
    let [mut leaving, mut watching] = pair(&[]);
    leaving.leave_with_process(true);
    assert_eq!(watching.liveness.watch(Rank(0)), None);
    drop(leaving);
    let start = Instant::now();
    let event = loop {
        match watching.liveness.poll() {
            Some(event) => break event,
            None => assert!(start.elapsed() < PATIENCE, "no event"),
        }
    };
    assert_eq!(event, PeerEvent::Gone(Rank(0)));
}

/// What a peer tells is news before its loss, however that is found.
#[test]
fn what_a_peer_told_comes_before_its_loss() {
    if !has_ucx() {
        return;
    }
    let [mut closing, mut waiting] = pair(&[]);
    let notice = Notice::closed(1023, 255, Failure::TimedOut(Rank(0)));
    closing.tell(Rank(1), notice);
    waiting.lose(Rank(0), Error::PeerLost { rank: Rank(0) });
    let told = waiting.next_news();
    assert!(matches!(told, Some(News::Told(Rank(0), found)) if found == notice), "{told:?}");
    assert!(matches!(waiting.next_news(), Some(News::Lost(Rank(0), Error::PeerLost { rank: Rank(0) }))));
    assert!(waiting.next_news().is_none());
}

/// A rank that has given a living peer up is lost for that peer too.
#[test]
fn giving_up_is_mutual() {
    if !has_ucx() {
        return;
    }
    for lanes in LANES {
        let [mut one, mut other] = pair(&[("TLS", lanes)]);
        one.lose(Rank(1), Error::PeerLost { rank: Rank(1) });
        let start = Instant::now();
        while !matches!(other.next_news(), Some(News::Lost(Rank(0), _))) {
            other.progress();
            assert!(start.elapsed() < PATIENCE, "no news");
        }
        assert!(matches!(other.check_open(Rank(0)), Err(Error::PeerLost { rank: Rank(0) })));
    }
}

/// A peer that is given up but lives answers what it has not received, so UCX need not be torn down.
#[test]
fn a_send_to_a_living_peer_that_is_given_up_ends() {
    if !has_ucx() {
        return;
    }
    for lanes in LANES {
        let message = [vec![1; LONG]];
        let [mut one, mut other] = pair(&[("TLS", lanes)]);
        let sent = one.post_send(Rank(1), envelope(), lent_to_send(&message));
        let Posted::Pending(id) = sent else { panic!("it has ended already") };
        for _ in 0..1000 {
            one.progress();
            other.progress();
        }
        one.lose(Rank(1), Error::PeerLost { rank: Rank(1) });
        let start = Instant::now();
        let done = loop {
            one.progress();
            other.progress();
            if let Some(done) = one.test_send(id) {
                break done;
            }
            assert!(start.elapsed() < PATIENCE, "{lanes}: it does not end");
        };
        assert!(matches!(done.result, Err(Error::PeerLost { rank: Rank(1) })), "{:?}", done.result);
        assert!(one.closed.is_none() && other.closed.is_none(), "{lanes}: UCX is torn down");
    }
}

/// No other operation waits, and nothing else will wake this rank.
#[test]
fn taking_the_last_message_of_a_gone_peer_prevents_sleep() {
    if !has_ucx() {
        return;
    }
    // Over sockets: over shared memory UCX itself does not let a rank sleep then.
    let [mut leaving, mut receiver] = pair(&[("TLS", "tcp,self")]);
    let (id, start) = (receive(&mut receiver, 8), Instant::now());
    while receiver.progress() || receiver.arm().is_none() {
        assert!(start.elapsed() < PATIENCE, "it does not come to rest");
    }
    assert!(send(&mut leaving, &[vec![1; 8]]));
    leaving.failure_flag.write(Closed::Left).unwrap();
    assert!(receiver.arm().is_none(), "the message has just come");
    let ended = receiver.test_recv(id);
    assert!(ended.is_some_and(|done| done.result.is_ok()));
}

/// With the user's settings senders write, and go on until this process is gone.
#[test]
fn memory_that_peers_may_write_at_exit_is_not_given_back() {
    if !has_ucx() {
        return;
    }
    // Dropped last, as above.
    let message = [vec![1; LONG]];
    let [mut sender, mut exiting] = pair(&[("TLS", "all"), ("RNDV_SCHEME", "put_zcopy")]);
    let id = receive(&mut exiting, LONG);
    assert!(!send(&mut sender, &message));
    let start = Instant::now();
    while exiting.engine.inbox().receive(id.0).unwrap().is_waiting() {
        // In this order, because the sender has not received the CTS yet.
        sender.progress();
        exiting.progress();
        assert!(start.elapsed() < PATIENCE, "no RTS");
    }
    exiting.leave_with_process(true);
    assert!(exiting.closed.is_some() && exiting.test_recv(id).is_none());
    assert!(exiting.abandon().is_err());
}

/// In another container the descriptor number names another file.
#[test]
fn only_flags_of_peers_of_this_host_are_opened() {
    if !has_ucx() {
        return;
    }
    let opened = |worlds: Vec<Ucx>| -> Vec<Vec<bool>> {
        worlds.iter().map(|ucx| ucx.failure_flags.iter().map(Option::is_some).collect()).collect()
    };
    assert_eq!(opened(world(2, &[])), [[false, true], [true, false]]);
    // The boot id in the endpoint info of rank 1.
    let elsewhere = |rank: Rank, info: &mut Vec<u8>| info[40] ^= u8::from(rank == Rank(1));
    assert_eq!(opened(world_with_infos(2, &[], &elsewhere)), [[false, false], [false, false]]);
}
