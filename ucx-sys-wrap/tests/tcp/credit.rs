//! What a rank may send eagerly, and what needs an RTS.

use std::io::Write;
use ucx_sys_wrap::tcp::{CREDIT_BYTES, MAX_EAGER_BYTES};
use ucx_sys_wrap::{Error, Posted, Rank, Transport};

use super::world::*;

#[test]
fn messages_that_nobody_receives_are_bounded_and_not_lost() {
    let size = 500 << 10;
    let count = 200;
    let mut transports = world(2);
    let mut sends: Vec<_> = (0..count)
        .map(|i| Sending::post(&mut transports[0], 1, envelope(0, i as u32), &[&pattern(i, size)]))
        .collect();
    let mut pass = Sending::post(&mut transports[0], 1, envelope(0, 500), &[b"pass"]);
    turn(&mut transports, 5000);
    let received = transports[1].statistics().bytes_received;
    assert!(
        received > CREDIT_BYTES * 9 / 10 && received < CREDIT_BYTES + (1 << 16),
        "{received} bytes are kept"
    );
    assert!(
        sends[0].test(&mut transports[0]).is_some() && sends[count - 1].test(&mut transports[0]).is_none()
    );
    // No message blocks another.
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 500), &[4]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    assert_eq!(receiving.bytes(), [b"pass"]);
    turn_until(&mut transports, |transports| pass.test(&mut transports[0]).is_some());
    for i in (0..count).rev() {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, i as u32), &[size]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [pattern(i, size)], "message {i}");
    }
    for sending in &mut sends {
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
    }
    // The credit is back: a message is sent eagerly again.
    turn(&mut transports, 200);
    let sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"again"]);
    assert!(matches!(sending.posted, Posted::Done(_)));
}

#[test]
fn credit_is_given_seldom() {
    let size = MAX_EAGER_BYTES;
    let mut transports = world(2);
    for i in 0..200 {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, i), &[size]);
        let _sending = Sending::post(&mut transports[0], 1, envelope(0, i), &[&pattern(i as usize, size)]);
        receive(&mut transports, 1, &mut receiving).unwrap();
    }
    // The credit is returned by quarters.
    assert_eq!(
        transports[1].statistics().bytes_sent,
        200 / (CREDIT_BYTES / 4).div_ceil(size as u64 + 128) * HEADER_BYTES
    );
}

#[test]
fn large_and_small_messages_of_one_tag_keep_their_order() {
    for post_first in [true, false] {
        let mut transports = world(2);
        let sizes = [10, MAX_EAGER_BYTES + 1, 0, MAX_EAGER_BYTES, 20 << 20, 7];
        let capacity = 20 << 20;
        let mut receives = Vec::new();
        if post_first {
            receives
                .extend(sizes.map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[capacity])));
        }
        let mut sends: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, size)| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(i, *size)]))
            .collect();
        turn(&mut transports, 500);
        if !post_first {
            receives
                .extend(sizes.map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[capacity])));
        }
        for (i, receiving) in receives.iter_mut().enumerate().rev() {
            receive(&mut transports, 1, receiving).unwrap();
            assert!(receiving.bytes() == [pattern(i, sizes[i])], "message {i}");
        }
        for sending in &mut sends {
            turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
            sending.test(&mut transports[0]).unwrap().unwrap();
        }
    }
}

#[test]
fn an_offer_that_does_not_fit_is_refused_without_its_data() {
    let mut transports = world(2);
    let size = 32 << 20;
    for post_first in [true, false] {
        let before = transports[1].statistics().bytes_received;
        let early = post_first.then(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100]));
        let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
        turn(&mut transports, 200);
        let mut receiving =
            early.unwrap_or_else(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100]));
        let result = receive(&mut transports, 1, &mut receiving);
        assert!(matches!(result, Err(Error::TooLong { rank: Rank(0), part: 0, .. })), "{result:?}");
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        sending.test(&mut transports[0]).unwrap().unwrap();
        assert_eq!(transports[1].statistics().bytes_received - before, HEADER_BYTES);
    }
}

#[test]
fn who_sends_or_answers_without_being_asked_is_refused() {
    let too_much: Vec<u8> = (0..CREDIT_BYTES >> 19).flat_map(|_| message(1, 9, &vec![0; 1 << 19])).collect();
    let mut credit = control(5, 1, 0);
    credit[32] = 1;
    let cases = [
        message(1, 9, &vec![0; MAX_EAGER_BYTES + 1]),
        too_much,
        credit,
        grant(1, 0),
        control(8, 1, 3),
        data(1, 0, b""),
        [offer(1, 9, 4, 10), data(1, 4, b"")].concat(),
        [offer(1, 9, 4, 10), offer(1, 9, 4, 10)].concat(),
    ];
    for (case, bytes) in cases.iter().enumerate() {
        let (mut transports, mut strangers) = world_with_strangers(1, 2);
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
        let socket = strangers[0][0].as_mut().unwrap();
        std::thread::scope(|scope| {
            // Fails if the transport closes before it has read everything.
            scope.spawn(|| drop(socket.write_all(bytes)));
            let result = receive(&mut transports, 0, &mut receiving);
            assert!(matches!(result, Err(Error::Protocol { rank: Rank(1), .. })), "case {case}: {result:?}");
            drop(transports);
        });
    }
}
