//! Messages that end early, or not at all: timeouts, cancels, closed groups, and ranks that leave or do not
//! receive.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use brevity::collectives::{Error, Message};
use brevity::transport::Rank;
use brevity::{Group, ReduceOp, Settings};
use brevity_testing::Wire;
use brevity_tests::on_groups;
use rustix::time::{ClockId, clock_gettime};

use super::{LENGTHS, SOON, bytes, message, sum};

pub fn timeouts(group: &Group) {
    let (own, peer) = (group.rank(), 1 - group.rank());
    let soft = group.with_timeout(SOON);
    let timed_out = |result: brevity::collectives::Result<Message>, text: &str| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::MessageTimeout { .. }) && error.to_string().starts_with(text),
            "{error}"
        );
    };
    let mut place = vec![0u8; LENGTHS[6]];
    timed_out(soft.recv(&mut place, peer, 3), &format!("a receive from rank {peer} with tag 3"));
    timed_out(soft.recv_vec(&mut place, 9, None, None), "a receive from any rank with any tag");
    timed_out(soft.probe(peer, None), &format!("a probe for a message of rank {peer} with any tag"));
    timed_out(soft.start_recv(vec![0u8; 9], peer, 3).wait().1, "a receive from");
    timed_out(soft.start_recv_vec(vec![0u8; 9], 9, own, 3).wait().1, "a receive from");
    sum(group);
    // Receives that give up again and again neither lose a message nor a part of one.
    for length in LENGTHS {
        let sending = group.start_send(bytes(length, 1), peer, 3);
        let eager = group.with_timeout(Duration::from_micros(length as u64 % 50));
        let received = loop {
            match eager.recv(&mut place, peer, 3) {
                Ok(received) => break received,
                Err(error) => assert!(matches!(error, Error::MessageTimeout { .. }), "{error}"),
            }
        };
        assert_eq!((received.bytes, place.starts_with(&bytes(length, 1))), (length, true));
        sending.wait().1.unwrap();
    }
    sum(group);
    assert!(!group.is_closed());
}

pub fn canceled(group: &Group) {
    let (own, peer) = (group.rank(), 1 - group.rank());
    let is_canceled = |error: Error| assert!(matches!(error, Error::Canceled), "{error}");
    let receives = [(None, None), (Some(peer), Some(3)), (Some(own), Some(3))];
    for receive in receives.map(|(from, tag)| group.start_recv(vec![0u8; 5], from, tag)) {
        receive.cancel();
        is_canceled(receive.wait().1.unwrap_err());
    }
    let probe = group.start_probe(None, None);
    probe.cancel();
    is_canceled(probe.wait().1.unwrap_err());
    sum(group);
    // A call that others need goes on.
    let reducing = group.start_all_reduce(vec![1u32], ReduceOp::Sum);
    reducing.cancel();
    assert_eq!(reducing.wait().0, [2]);
    // A dropped receive takes nothing.
    drop((group.start_recv(vec![0u8], peer, 4), group.start_recv_vec(vec![0u8], 1, None, None)));
    sum(group);
    group.send(&[own], peer, 4).unwrap();
    let mut data = [0u32];
    group.recv(&mut data, None, None).unwrap();
    assert_eq!(data, [peer]);
    // No message is lost, whenever its receive is canceled.
    for length in LENGTHS {
        let sending = group.start_send(bytes(length, 5), peer, 3);
        let received = loop {
            let receive = group.start_recv_vec(Vec::<u8>::new(), length, peer, None);
            receive.cancel();
            match receive.wait() {
                (received, Ok(_)) => break received,
                (_, Err(error)) => is_canceled(error),
            }
        };
        assert!(received == bytes(length, 5));
        sending.wait().1.unwrap();
    }
    sum(group);
}

/// It costs little of the processor until its message comes.
pub fn asleep(group: &Group) {
    const TIME: Duration = Duration::from_millis(300);
    sum(group);
    if group.rank() == 1 {
        thread::sleep(TIME);
        return group.send(&[1u8], 0, 0).unwrap();
    }
    let (start, before) = (Instant::now(), processor_time());
    group.recv(&mut [0u8], None, None).unwrap();
    let (took, used) = (start.elapsed(), processor_time() - before);
    assert!(used < took.max(TIME) / 2, "{used:?} of {took:?}");
}

/// The time that this thread has had the processor.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Rank 1 does not receive what rank 0 sends, which must stop, and keep little. Collectives go on.
pub fn deaf(group: &Group) {
    const LENGTH: usize = 30_000;
    /// The most credit of any wire, and what the kernel may hold on the way.
    const MOST: usize = (64 << 20) + (16 << 20);
    let data = bytes(LENGTH, 1);
    if group.rank() == 0 {
        let mut sent = 0;
        while group.try_send(&data, 1, 6).unwrap() {
            sent += 1;
            assert!(sent * LENGTH < MOST, "{sent} messages");
        }
        let soft = group.with_timeout(5 * SOON);
        let waits = loop {
            match soft.send(&data, 1, 6) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent * LENGTH < MOST, "{sent} messages");
        };
        assert!(matches!(waits, Error::MessageTimeout { .. }), "{waits}");
        assert!(!group.try_send(&data, 1, 6).unwrap() || !group.try_send(&data, 1, 6).unwrap());
        sum(group);
        group.send(&[sent as u64], 1, 7).unwrap();
        sum(group);
    } else {
        let mut count = [0u64];
        sum(group);
        group.recv(&mut count, 0, 7).unwrap();
        let mut place = vec![0u8; LENGTH];
        for _ in 0..count[0] {
            assert_eq!(group.recv(&mut place, None, 6).unwrap(), message(0, 6, LENGTH));
            assert!(place == data);
        }
        // The message whose send has timed out is there as a whole, or is not.
        if let Ok(late) = group.with_timeout(SOON).recv(&mut place, 0, 6) {
            assert_eq!((late.bytes, place == data), (LENGTH, true));
        }
        sum(group);
    }
}

/// Of several threads that send without waiting, one at a time has its message waiting in memory.
pub fn at_once(group: &Group) {
    const THREADS: usize = 4;
    let data = bytes(LENGTHS[6], 1);
    for _ in 0..20 {
        if group.rank() == 0 {
            let all_there = Barrier::new(THREADS);
            let sent: u32 = thread::scope(|scope| {
                let send = || {
                    all_there.wait();
                    group.try_send(&data, 1, 6).unwrap()
                };
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(send)).collect();
                threads.into_iter().map(|thread| u32::from(thread.join().unwrap())).sum()
            });
            assert_eq!(sent, 1);
        }
        sum(group);
        if group.rank() == 1 {
            let mut place = vec![0u8; data.len()];
            assert_eq!(group.recv(&mut place, 0, 6).unwrap(), message(0, 6, data.len()));
            assert!(place == data);
        }
        sum(group);
    }
    assert!(group.try_probe(None, None).unwrap().is_none());
}

/// The abort of one rank ends the messages of all, pending and later ones.
pub fn closed(wire: Wire) {
    let groups = wire.world(3).into_iter().map(|transport| Group::new(transport, Settings::default()));
    let all_wait = Arc::new(Barrier::new(3));
    on_groups(groups.collect(), move |group| {
        sum(group);
        let pending = [
            group.start_recv_vec(vec![0u8], 9, None, None),
            group.start_recv_vec(vec![0u8], 9, group.rank(), None),
            group.start_recv(vec![0u8], 2, 3),
        ];
        let probe = group.start_probe(None, 4);
        all_wait.wait();
        if group.rank() == 2 {
            group.abort();
        }
        let is_named = |error: Error| assert!(matches!(error, Error::Aborted { rank: Rank(2) }), "{error}");
        pending.into_iter().for_each(|receive| is_named(receive.wait().1.unwrap_err()));
        is_named(probe.wait().1.unwrap_err());
        is_named(group.recv(&mut [0u8], None, None).unwrap_err());
        is_named(group.send(&[0u8], 0, 0).unwrap_err());
        is_named(group.try_send(&[0u8], 0, 0).unwrap_err());
        is_named(group.try_probe(None, None).unwrap_err());
        all_wait.wait();
    });
}

/// What a rank has sent before it left can be received; a receive that waits for it fails.
pub fn left(wire: Wire) {
    let groups = wire.world(3).into_iter().map(|transport| Group::new(transport, Settings::default()));
    let mut groups: Vec<Group> = groups.collect();
    let last = groups.remove(2);
    let pair = Arc::new(Barrier::new(2));
    let leaves = thread::spawn(move || {
        for to in 0..2 {
            last.send(&[2u8; 100], to, 1).unwrap();
        }
        sum(&last);
    });
    on_groups(groups, move |group| {
        let mut place = [0u8; 100];
        sum(group);
        assert_eq!(group.recv(&mut place, None, None).unwrap(), message(2, 1, 100));
        // The other one is still there.
        let peer = 1 - group.rank();
        let none = group.with_timeout(SOON).recv(&mut place, None, None).unwrap_err();
        assert!(matches!(none, Error::MessageTimeout { .. }), "{none}");
        pair.wait();
        group.send(&[7u8], peer, 2).unwrap();
        assert_eq!(group.recv(&mut place, None, None).unwrap(), message(peer, 2, 1));
        pair.wait();
        let lost = group.recv_vec(&mut vec![0u8], 9, 2, None).unwrap_err();
        assert!(matches!(lost, Error::PeerLost { rank: Rank(2) }), "{lost}");
        assert!(group.is_closed());
        pair.wait();
    });
    leaves.join().unwrap();
}
