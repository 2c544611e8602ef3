//! Tests of what is asked of one peer, without a transport.

use super::*;
use crate::buffer::testing::lent_to_send;

const PEER: Rank = Rank(1);
const PIECE_BYTES: usize = 100;

impl PeerRequests {
    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

fn key() -> RegionKey {
    RegionKey::new(PEER, 5, 1000).unwrap()
}

fn put(requests: &mut PeerRequests, buffers: &[Vec<u8>]) -> usize {
    requests.post(&key(), 9, AccessParts::Put(lent_to_send(buffers)), 0)
}

/// Sends a frame and gives it back.
fn sent(requests: &mut PeerRequests) -> Option<(u32, u64, Vec<u8>)> {
    let Request { number, frame, payload } = requests.next_request()?;
    requests.release(number, false);
    let RemoteFrame::Put(on_wire, place, length) = frame else { panic!("{frame:?}") };
    let bytes = payload.map_or(Vec::new(), |lease| lease.bytes().to_vec());
    assert_eq!(bytes.len(), length);
    Some((on_wire, place.offset, bytes))
}

fn end(requests: &mut PeerRequests, number: usize) -> Option<Result<()>> {
    requests.test(number).map(|(result, _)| result)
}

fn flush(requests: &mut PeerRequests) -> usize {
    let Posted::Pending(number) = requests.post_flush(0) else { panic!("there are puts") };
    number
}

#[test]
fn pieces_of_a_put_are_no_longer_than_allowed_and_span_no_parts() {
    let mut requests = PeerRequests::new(PEER, PIECE_BYTES);
    let buffers = [vec![1; 250], vec![], vec![2; 30]];
    let put = put(&mut requests, &buffers);
    let mut offset = 9;
    let mut on_wire = 0;
    for (value, length) in [(1, 100), (1, 100), (1, 50), (2, 30)] {
        assert!(end(&mut requests, put).is_none());
        let (number, at, bytes) = sent(&mut requests).unwrap();
        assert_eq!((at, bytes), (offset, vec![value; length]));
        (offset, on_wire) = (offset + length as u64, number);
    }
    assert!(sent(&mut requests).is_none());
    for _ in 0..4 {
        assert!(end(&mut requests, put).is_none());
        requests.take_up_end(on_wire, Outcome::Done).unwrap();
    }
    assert!(requests.take_up_end(on_wire, Outcome::Done).is_err(), "it has ended");
    assert!(matches!(end(&mut requests, put), Some(Ok(()))));
    assert!(requests.is_empty() && !requests.has_operations());
}

#[test]
fn a_flush_waits_for_what_was_sent_of_a_canceled_put() {
    let mut requests = PeerRequests::new(PEER, PIECE_BYTES);
    let buffers = [vec![1; 250]];
    let put = put(&mut requests, &buffers);
    let (on_wire, ..) = sent(&mut requests).unwrap();
    let [canceled, waiting] = [flush(&mut requests), flush(&mut requests)];
    for operation in [put, canceled] {
        requests.cancel(operation);
        assert!(matches!(end(&mut requests, operation), Some(Err(Error::Canceled))));
    }
    assert!(sent(&mut requests).is_none(), "nothing more of it is sent");
    assert!(end(&mut requests, waiting).is_none());
    requests.take_up_end(on_wire, Outcome::Done).unwrap();
    assert!(matches!(end(&mut requests, waiting), Some(Ok(()))));
    assert!(requests.is_empty() && matches!(requests.post_flush(0), Posted::Done(Ok(()))));
}

#[test]
fn memory_that_is_in_use_is_not_given_back() {
    let mut requests = PeerRequests::new(PEER, PIECE_BYTES);
    let buffers = [vec![1; 8]];
    let put = put(&mut requests, &buffers);
    let Request { number, .. } = requests.next_request().unwrap();
    requests.cancel(put);
    requests.end_all(&Error::Closed);
    assert!(end(&mut requests, put).is_none());
    assert_eq!(requests.waits().collect::<Vec<_>>(), [(PEER, 0)]);
    requests.release(number, false);
    assert!(matches!(end(&mut requests, put), Some(Err(Error::Canceled))));
    assert!(requests.is_empty());
}
