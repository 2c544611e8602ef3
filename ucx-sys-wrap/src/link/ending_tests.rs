//! Links whose neighbour is gone in the middle of a message.

use super::*;
use crate::buffer::testing::{lend_to_receive, lend_to_send};
use crate::buffer::{Buffer, RawVec};
use crate::limits::MAX_EAGER_BYTES;
use crate::{Mark, Signature, Tag};

/// Two ranks' links to each other, and what is counted.
struct Pair {
    links: [Link; 2],
    counts: Statistics,
    _world: Vec<Arc<Neighbourhood>>,
}

impl Pair {
    fn new() -> Self {
        let world = Neighbourhood::in_process(2).unwrap();
        let links = [0, 1].map(|rank: usize| Link::new(&world[rank], 1 - rank, false).unwrap());
        Self { links, counts: Statistics::default(), _world: world }
    }

    /// Posts a message of rank 1.
    fn send(&mut self, bytes: Vec<u8>) -> RawVec<u8> {
        let memory = bytes.into_raw();
        let mut parts = SendParts::new();
        lend_to_send::<Vec<u8>>(&memory, &mut parts);
        let _ = self.links[1].post_send(envelope(), parts, &mut self.counts);
        memory
    }

    fn poll(&mut self, rank: usize) {
        self.links[rank].poll(usize::MAX, &mut self.counts).unwrap();
    }
}

fn envelope() -> Envelope {
    Envelope { tag: Tag::new(Rank(1), 0, 0, 0), signature: Signature::default(), mark: Mark::NONE }
}

/// Who has left in good order has taken the message back; who has died has not, and nothing is received in its place.
#[test]
fn only_who_has_left_is_taken_to_have_taken_back_what_is_cut() {
    for has_left in [true, false] {
        let mut pair = Pair::new();
        let mut place = vec![0u8; 2 * MAX_EAGER_BYTES].into_raw();
        let mut parts = RecvParts::new();
        lend_to_receive::<Vec<u8>>(&mut place, &mut parts);
        let Posted::Pending(key) = pair.links[0].post_recv(envelope(), parts, &mut pair.counts) else { panic!() };
        let _cut = pair.send(vec![1; 2 * MAX_EAGER_BYTES]);
        let _whole = pair.send(vec![2; 8]);
        // The first is offered, asked for, and comes in part; the second lies in a cell.
        [0, 1, 0].into_iter().for_each(|rank| pair.poll(rank));
        assert!(pair.links[0].receiver.test(key).is_none(), "it is there already");
        assert_eq!(pair.links[0].finish(has_left, &mut pair.counts), !has_left);
        let mut done = pair.links[0].receiver.test(key).unwrap();
        match done.result {
            Ok(arrival) => {
                assert!(has_left);
                assert_eq!(done.parts[0].bytes_mut()[..arrival.lengths[0]], [2; 8]);
            }
            Err(error) => assert!(!has_left && matches!(error, Error::PeerLost { rank: Rank(1) }), "{error}"),
        }
    }
}
