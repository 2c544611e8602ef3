//! Messages around the ring of ranks, whose sends and receives are left in every way.

use brevity::Group;

use super::member::Member;
use super::{RANKS, block_on, poll_some};

/// The tags of messages, and of the word that a rank has given up all receives that it gives up.
const TAG: u32 = 5;
const GIVEN_UP: u32 = 7;

/// The number of the last message.
const LAST: u64 = u64::MAX;

const LENGTHS: [usize; 5] = [1, 50, 1000, 9000, 100_000];

/// How the sender leaves a message. The receiver knows it.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Drop,
    Poll,
    Await,
    Cancel,
}

pub fn around(member: &mut Member) {
    let plan: Vec<(usize, Way)> = (0..=member.common.below(8))
        .map(|_| {
            let way = [Way::Drop, Way::Poll, Way::Await, Way::Cancel][member.common.below(4)];
            (LENGTHS[member.common.below(LENGTHS.len())], way)
        })
        .collect();
    let (next, before) = ((member.rank() + 1) % RANKS, (member.rank() + RANKS - 1) % RANKS);
    let group = member.group.clone();
    let mut awaited = Vec::new();
    for (number, (length, way)) in plan.iter().enumerate() {
        let data = message(member.rank(), number as u64, *length);
        let mut send = group.start_send(member.buffer(data), next, TAG);
        match way {
            Way::Drop => drop(send),
            Way::Poll => drop(poll_some(&mut send, member.own.below(20))),
            Way::Await => awaited.push(send),
            Way::Cancel => {
                send.cancel();
                // It has ended, or has gone.
                drop(send.wait().1);
            }
        }
    }
    // Each takes a message at most.
    let given_up = member.own.below(3);
    for _ in 0..given_up {
        let mut receive = group.start_recv_vec(Vec::<u64>::new(), LENGTHS[4], before, TAG);
        drop(poll_some(&mut receive, member.own.below(20)));
    }
    group.send::<u8>(&[], before, GIVEN_UP).unwrap();
    group.recv::<u8>(&mut [], next, GIVEN_UP).unwrap();
    awaited.push(group.start_send(member.buffer(message(member.rank(), LAST, 1)), next, TAG));
    receive_all(member, &group, before, &plan, given_up);
    awaited.into_iter().for_each(|send| block_on(send).1.unwrap());
}

/// Receives what is left of the plan, in order.
fn receive_all(member: &mut Member, group: &Group, before: u32, plan: &[(usize, Way)], given_up: usize) {
    let canceled = plan.iter().filter(|(_, way)| *way == Way::Cancel).count();
    let (mut received, mut least) = (0, 0);
    loop {
        let mut data = Vec::<u64>::new();
        match member.own.below(3) {
            0 => drop(group.recv_vec(&mut data, LENGTHS[4], before, TAG).unwrap()),
            1 => {
                let found = group.probe(before, TAG).unwrap();
                let message = group.recv_vec(&mut data, LENGTHS[4], before, TAG).unwrap();
                // A receive that was given up when it had found a message may take that until now, on the
                // progress thread; and a send that is canceled may take back what was found.
                assert!(message == found || given_up + canceled > 0, "{message:?}, {found:?}");
            }
            _ => {
                let (place, result) = block_on(group.start_recv_vec(data, LENGTHS[4], before, TAG));
                result.unwrap();
                data = place;
            }
        }
        let number = data[0];
        if number == LAST {
            break;
        }
        assert!(number >= least, "message {number} comes after {least}");
        let length = plan[number as usize].0;
        let expected = message(before, number, length);
        let same = data.iter().zip(&expected).take_while(|(came, sent)| came == sent).count();
        assert!(
            data == expected,
            "message {number} of {length} words: {} have come, {same} of them are right",
            data.len()
        );
        (least, received) = (number + 1, received + 1);
    }
    assert!(received + given_up + canceled >= plan.len(), "{received} of {} have come", plan.len());
}

/// The words of a message; the first is its number.
fn message(rank: u32, number: u64, length: usize) -> Vec<u64> {
    let words = (1..length as u64).map(|index| index * 7 + number * 31 + u64::from(rank));
    std::iter::once(number).chain(words).collect()
}
