//! What closes the contexts of a port, with peers that tell whatever they like.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::buffer::{Comm, scope};
use crate::local::{self, Local};
use crate::transport::Said;
use crate::{Envelope, Mark, Signature, Tag, Transport};

const A: Rank = Rank(0);
const B: Rank = Rank(1);
const C: Rank = Rank(2);

/// A port, and the transports of its peers.
fn world(world_size: u32) -> (Arc<Port>, Vec<Local>) {
    let mut all = local::world(world_size);
    let peers = all.split_off(1);
    (Port::new(Box::new(all.remove(0))), peers)
}

fn open(port: &Port, number: u16, epoch: u8, members: &[Rank]) {
    port.open_context(number, epoch, members.into(), OnLoss::Close);
}

fn notice(context: u16, epoch: u8, by: Rank) -> Notice {
    Notice::closed(context, epoch, Failure::Aborted(by))
}

fn early(port: &Port) -> usize {
    port.enter().contexts.borrow().early.len()
}

/// Sends an empty message in a context.
fn send(port: &Arc<Port>, context: u16, to: Rank) -> Result<()> {
    let tag = Tag::new(port.rank(), context, 0, 0);
    let envelope = Envelope { tag, signature: Signature::default(), mark: Mark::NONE };
    let turn = |comm: &Comm<'_>| _ = comm.port().progress();
    scope(port, turn, async |comm| comm.send(to, envelope, ()).await.map(|_| ()))
}

#[test]
fn a_notice_closes_the_context_of_its_number_and_epoch_if_its_sender_is_a_member() {
    let (port, mut peers) = world(3);
    for number in 1..4 {
        open(&port, number, 5, &[A, B]);
    }
    peers[1].tell(A, notice(1, 5, C));
    peers[0].tell(A, notice(2, 4, B));
    peers[0].tell(A, notice(3, 5, B));
    port.progress();
    let failures = [0, 1, 2, 3].map(|number| port.failure(number));
    assert_eq!(failures, [None, None, None, Some(Failure::Aborted(B))]);
    // Closed by both, once.
    peers[0].progress();
    let told: Vec<_> = std::iter::from_fn(|| peers[0].next_news()).collect();
    assert!(matches!(told[..], [News::Told(A, Notice { context: 3, epoch: 5, .. })]), "{told:?}");
}

#[test]
fn an_early_notice_of_a_stranger_neither_closes_a_context_nor_hides_that_of_a_member() {
    for member_first in [false, true] {
        let (port, mut peers) = world(3);
        for from in if member_first { [0, 1] } else { [1, 0] } {
            peers[from].tell(A, notice(1, 0, Rank(from as u32 + 1)));
            peers[from].tell(A, notice(2, 0, Rank(from as u32 + 1)));
        }
        port.progress();
        open(&port, 1, 0, &[A, B]);
        open(&port, 2, 1, &[A, B, C]);
        assert_eq!((port.failure(1), port.failure(2)), (Some(Failure::Aborted(B)), None));
        assert_eq!(early(&port), 0);
    }
}

/// Or after the context was forgotten.
#[test]
fn no_number_of_notices_takes_more_memory_than_one_for_each_peer_and_context() {
    let (port, mut peers) = world(3);
    for peer in &mut peers {
        for epoch in 0..50 {
            for number in 0..MAX_CONTEXTS as u16 {
                peer.tell(A, notice(number, epoch, B));
            }
        }
    }
    port.progress();
    // Context 0 of epoch 0 is open.
    assert_eq!(early(&port), 2 * MAX_CONTEXTS);
    // The last one counts.
    open(&port, 7, 49, &[A, B]);
    open(&port, 8, 48, &[A, B]);
    assert_eq!((port.failure(7), port.failure(8)), (Some(Failure::Aborted(B)), None));
}

/// Neither a rank that is none nor one in other contexts.
#[test]
fn a_loss_closes_the_contexts_of_the_lost_that_do_not_go_on() {
    let (port, mut peers) = world(4);
    open(&port, 1, 0, &[A, B]);
    open(&port, 2, 0, &[A, B, C]);
    port.open_context(3, 0, [A, B, C].into(), OnLoss::Continue);
    for stranger in [A, Rank(4), Rank(u32::MAX)] {
        port.lose(stranger);
    }
    assert!(port.lost().is_empty() && port.failure(0).is_none());
    port.lose(C);
    port.lose(C);
    let failures = [0, 1, 2, 3].map(|number| port.failure(number));
    let lost = Some(Failure::PeerLost(C));
    assert_eq!((failures, port.lost()), ([lost, None, lost, None], vec![C]));
    peers[0].progress();
    let told: Vec<_> = std::iter::from_fn(|| peers[0].next_news()).collect();
    let told = told.iter().map(|news| match news {
        News::Told(A, Notice { context, said: Said::Closed(Failure::PeerLost(C)), .. }) => *context,
        _ => panic!("{news:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), [0, 2]);
    assert!(send(&port, 3, C).is_err() && send(&port, 3, B).is_ok());
}

#[test]
fn a_member_that_closes_a_context_and_leaves_is_not_the_cause() {
    let (port, mut peers) = world(3);
    open(&port, 1, 0, &[A, B]);
    let cause = Failure::PeerLost(C);
    peers[0].tell(A, Notice::closed(0, 0, cause));
    drop(peers.remove(0));
    // Nothing has been read when this finds that the peer has left.
    let error = send(&port, 0, B).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank: C }), "{error}");
    let failures = [0, 1].map(|number| port.failure(number));
    assert_eq!(failures, [Some(cause), Some(Failure::PeerLost(B))]);
}

#[test]
fn the_end_of_the_transport_closes_all_contexts_before_and_after() {
    let (port, _peers) = world(2);
    open(&port, 1, 0, &[A, B]);
    {
        let inside = port.enter();
        inside.transport.borrow_mut().abandon().unwrap();
        inside.end(Failure::Aborted(A), &Error::Closed, A);
    }
    port.forget_context(1);
    open(&port, 2, 0, &[A, B]);
    for number in 0..4 {
        assert!(matches!(send(&port, number, B), Err(Error::Closed)), "context {number}");
    }
    assert_eq!([0, 1, 2].map(|number| port.failure(number).is_some()), [true, false, true]);
}

#[test]
fn requested_aborts_close_their_contexts_alone() {
    let (port, _peers) = world(2);
    let numbers = [1, 63, 64, 65, 1000, 1023];
    numbers.iter().for_each(|number| open(&port, *number, 0, &[A, B]));
    for number in [63, 64, 1023, 1024, u16::MAX] {
        port.request_abort(number);
    }
    port.progress();
    let closed = numbers.map(|number| port.failure(number).is_some());
    assert_eq!(closed, [false, true, true, false, false, true]);
    assert!(!port.is_abort_wanted() && port.failure(0).is_none());
}

#[test]
fn a_context_that_can_not_be_is_refused_and_harms_no_other() {
    let (port, _peers) = world(2);
    let opens =
        |number, members: &[Rank]| catch_unwind(AssertUnwindSafe(|| open(&port, number, 0, members))).is_ok();
    assert!(!opens(0, &[A, B]), "in use");
    assert!(!opens(MAX_CONTEXTS as u16, &[A, B]), "too large");
    assert!(!opens(1, &[A, C]), "not in this world");
    assert!(opens(1, &[A, B]) && opens(MAX_CONTEXTS as u16 - 1, &[A]));
    assert!(send(&port, 0, B).is_ok() && send(&port, 1, B).is_ok());
}

#[test]
fn an_abort_is_carried_out_before_its_context_is_forgotten() {
    let (port, mut peers) = world(2);
    open(&port, 1, 3, &[A, B]);
    port.request_abort(1);
    port.forget_context(1);
    peers[0].progress();
    let told = peers[0].next_news();
    assert!(matches!(told, Some(News::Told(A, told)) if told == notice(1, 3, A)), "{told:?}");
}

/// Whether the message comes before the notice or after it. Those of the next context stay.
#[test]
fn messages_of_a_context_that_is_forgotten_are_dropped() {
    for is_late in [false, true] {
        let mut all = local::world(3).into_iter().map(|rank| Port::new(Box::new(rank)));
        let [own, peer, other] = std::array::from_fn(|_| all.next().unwrap());
        let kept = |port: &Port| port.enter().transport.borrow_mut().discard(1, Which::All);
        open(&peer, 1, 0, &[A, B]);
        open(&other, 1, 0, &[A, C]);
        send(&other, 1, A).unwrap();
        if is_late {
            // Sent already when the notice is on its way.
            own.enter().contexts.borrow_mut().early.insert((1, B), (0, Failure::Aborted(B)));
        }
        send(&peer, 1, A).unwrap();
        if is_late {
            own.progress();
            open(&own, 2, 0, &[A, B]);
        } else {
            peer.abort(1);
            own.progress();
            assert_eq!(own.failure(1), None);
        }
        assert_eq!(kept(&own), 1, "late: {is_late}");
    }
}
