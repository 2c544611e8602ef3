//! Pins the wire format: a change of it must bump the version.

use sha2::{Digest, Sha256};

use super::frame::{Frame, Header, SEGMENT_BYTES, encode};
use super::sizes::PIECE_BYTES;
use super::sizes::Sizes;
use crate::bootstrap::WIRE_VERSION;
use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, MAX_MESSAGE_BYTES, cost};
use crate::one_sided::frame::{Outcome, Place, RemoteFrame};
use crate::transport::Notice;
use crate::{Failure, Mark, Rank, Signature, Tag};

fn frames() -> Vec<Frame> {
    let mut lengths = Sizes::default();
    [5, 600].into_iter().for_each(|length| lengths.push(length));
    let header = Header {
        tag: Tag::new(Rank(3), 1, 2, 3),
        signature: Signature([4; 16]),
        mark: Mark(0x0506_0708),
        lengths,
    };
    let place = Place { region: 9, nonce: [10; 16], offset: 11 };
    let remote = [
        RemoteFrame::Put(12, place, 13),
        RemoteFrame::Get(14, place, 15),
        RemoteFrame::Bytes(16, 17),
        RemoteFrame::Ended(18, Outcome::Done),
        RemoteFrame::Ended(19, Outcome::NoSuchRegion),
        RemoteFrame::Ended(20, Outcome::OutOfRegion),
    ];
    let notice = |cause| Frame::Notice(Notice::closed(32, 33, cause));
    let mut frames = vec![
        Frame::Message(header),
        Frame::Bye,
        notice(Failure::PeerLost(Rank(21))),
        notice(Failure::Aborted(Rank(22))),
        notice(Failure::TimedOut(Rank(23))),
        notice(Failure::Differs(Rank(23))),
        Frame::Credit(24),
        Frame::Rts(25, header),
        Frame::Cts(26),
        Frame::Nack(27),
        Frame::Data(28, 29),
    ];
    frames.extend(remote.map(Frame::Remote));
    frames
}

#[test]
fn what_travels_on_a_connection_has_this_version() {
    let mut hash = Sha256::new();
    frames().iter().for_each(|frame| hash.update(encode(frame, Rank(30))));
    let limits =
        [CREDIT_BYTES, MAX_MESSAGE_BYTES, MAX_EAGER_BYTES as u64, SEGMENT_BYTES as u64, PIECE_BYTES as u64];
    limits.iter().for_each(|limit| hash.update(limit.to_le_bytes()));
    hash.update(cost(31).to_le_bytes());
    let digest: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        (WIRE_VERSION, &*digest),
        (17, "637ca9e03d9b8205"),
        "bump bootstrap::WIRE_VERSION, then put both here"
    );
}
