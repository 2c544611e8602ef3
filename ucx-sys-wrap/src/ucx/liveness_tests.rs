//! Control connections: deaths, causes, withdrawals, and strangers.

use std::net::Ipv4Addr;

use super::*;
use crate::Tag;

fn pair() -> [Liveness; 2] {
    let mut ranks = [1, 2].map(|seed| Liveness::new(Ipv4Addr::LOCALHOST.into(), [seed; 16]).unwrap());
    let addresses = [0, 1].map(|rank: usize| Some((ranks[rank].address().unwrap(), ranks[rank].token)));
    ranks[0].add_peer(None);
    ranks[0].add_peer(addresses[1]);
    ranks[1].add_peer(addresses[0]);
    ranks[1].add_peer(None);
    ranks
}

/// What is heard, once something is.
fn heard(rank: &mut Liveness) -> News {
    let start = Instant::now();
    loop {
        if let Some(news) = rank.look() {
            return news;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "nothing is heard");
    }
}

#[test]
fn a_rank_that_goes_without_a_word_has_died() {
    let [mut watcher, watched] = pair();
    assert_eq!(watcher.watch(Rank(1)), None);
    assert_eq!(watcher.look(), None, "it does nothing, and lives");
    drop(watched);
    assert_eq!(heard(&mut watcher), News::Died(Rank(1)));
    let news = watcher.watch(Rank(1)).unwrap_or_else(|| heard(&mut watcher));
    assert_eq!(news, News::Gone(Rank(1)), "nobody listens there any more");
}

#[test]
fn watchers_are_told_even_if_nobody_had_taken_their_connection() {
    let [mut watcher, mut watched] = pair();
    watcher.watch(Rank(1));
    watched.answer(Closed::Left);
    drop(watched);
    assert_eq!(heard(&mut watcher), News::Gone(Rank(1)));
}

#[test]
fn a_failure_reaches_those_who_do_not_watch() {
    let [mut failing, mut other] = pair();
    failing.tell_all(Closed::Failed(Failure::PeerLost(Rank(1))));
    drop(failing);
    assert_eq!(heard(&mut other), News::Failed(Failure::PeerLost(Rank(1))));
}

#[test]
fn strangers_are_neither_kept_nor_believed_and_watchers_go_on() {
    let [mut watcher, mut watched] = pair();
    assert_eq!(watcher.watch(Rank(1)), None);
    let address = watched.address().unwrap();
    let mut open = Vec::new();
    for number in 0..1000 {
        let mut stranger = TcpStream::connect(address).unwrap();
        // Nothing, half a notice, or one of another job.
        let _ = stranger.write(&[7; NOTICE_BYTES][..[0, 5, NOTICE_BYTES][number % 3]]);
        open.push(stranger);
        assert_eq!((watched.look(), watcher.look()), (None, None));
        assert!(watched.accepted.len() <= STRANGERS + 4, "{} connections are kept", watched.accepted.len());
    }
    drop(watched);
    let start = Instant::now();
    // The connection to a rank that is still there may have been closed for want of room: that is no death.
    let news = loop {
        if let Some(news) = watcher.watch(Rank(1)).or_else(|| watcher.look()) {
            break news;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "nothing is heard");
    };
    assert!(matches!(news, News::Died(Rank(1)) | News::Gone(Rank(1))), "{news:?}");
}

/// Who has proven to know the token keeps the connection, however old it is, whatever strangers do.
#[test]
fn strangers_do_not_push_out_who_has_proven_itself() {
    let [mut peer, mut rank] = pair();
    peer.withdraw(Rank(1), Withdrawal { tag: Tag(9), serial: 1 });
    let start = Instant::now();
    while rank.withdrawn.is_empty() {
        assert_eq!((peer.look(), rank.look()), (None, None));
        assert!(start.elapsed() < Duration::from_secs(10), "nothing is heard");
    }
    let address = rank.address().unwrap();
    let strangers: Vec<_> = (0..3 * STRANGERS)
        .map(|_| {
            let stranger = TcpStream::connect(address).unwrap();
            assert_eq!(rank.look(), None);
            stranger
        })
        .collect();
    let proven = rank.accepted.iter().filter(|(_, connection)| connection.is_proven).count();
    assert_eq!((rank.accepted.len(), proven), (2 * 2 + STRANGERS, 1));
    drop(strangers);
}

#[test]
fn a_stranger_that_never_stops_talking_is_not_listened_to() {
    let [_, mut watched] = pair();
    let mut stranger = TcpStream::connect(watched.address().unwrap()).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let start = Instant::now();
    // Until it is refused.
    while !matches!(stranger.write(&[7; 4096]), Err(error) if error.kind() != ErrorKind::WouldBlock) {
        assert_eq!(watched.look(), None);
        assert!(start.elapsed() < Duration::from_secs(10), "it is still heard");
    }
    assert!(watched.accepted.is_empty());
}

#[test]
fn withdrawals_arrive() {
    let [mut sender, mut receiver] = pair();
    let messages = [1, 2, 3].map(|serial| Withdrawal { tag: Tag(9), serial });
    messages.iter().for_each(|message| sender.withdraw(Rank(1), *message));
    let start = Instant::now();
    while receiver.withdrawn.len() < 3 && start.elapsed() < Duration::from_secs(10) {
        assert_eq!((sender.look(), receiver.look()), (None, None));
    }
    assert_eq!(receiver.withdrawn, messages);
}
