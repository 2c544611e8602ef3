//! Messages on the simulated network, whose ranks can only await.

use std::time::Duration;

use brevity::collectives::Error;
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, ReduceOp, Settings};

use super::random::{Draws, LONGEST, Planned, RANKS};

const TIMEOUT: Duration = Duration::from_secs(1000);

fn group(transport: Box<dyn brevity::transport::Transport>) -> Group {
    Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() })
}

#[test]
fn random_messages_arrive_in_order() {
    let mut draws = Draws(5);
    let plan: Vec<Planned> = (0..1500).map(|_| Planned::draw(&mut draws)).collect();
    let links = || Links::new(20e-6, 1e-9);
    let ended = run(Cluster::new(RANKS, links()), |transport| {
        let (group, plan) = (group(transport), plan.clone());
        async move {
            let own = group.rank();
            let mine = plan.iter().enumerate().filter(|(_, planned)| planned.from == own);
            let sends: Vec<_> = mine
                .map(|(number, planned)| group.start_send(planned.bytes(number), planned.to, planned.tag))
                .collect();
            let mut sum = Some(group.start_all_reduce(vec![1u32; 1000], ReduceOp::Sum));
            let mut last = std::collections::BTreeMap::new();
            for turn in 0..plan.iter().filter(|planned| planned.to == own).count() {
                let (bytes, received) = if turn % 2 == 0 {
                    group.start_recv_vec(Vec::<u8>::new(), LONGEST, None, None).await
                } else {
                    let found = group.start_probe(None, None).await.1.unwrap();
                    group.start_recv(vec![0u8; found.bytes], found.source, found.tag).await
                };
                let message = received.unwrap();
                let number = u32::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
                let planned = plan[number];
                assert_eq!((planned.from, planned.to, planned.tag), (message.source, own, message.tag));
                assert!(bytes == planned.bytes(number));
                let before = last.insert((message.source, message.tag), number);
                assert!(before.is_none_or(|before| before < number));
                if turn % 50 == 49
                    && let Some(sum) = sum.take()
                {
                    assert_eq!(sum.await.0, [RANKS; 1000]);
                }
            }
            for send in sends {
                send.await.1.unwrap();
            }
            let (_, ended) = group.start_all_reduce(vec![1u32], ReduceOp::Sum).await;
            ended.unwrap();
        }
    });
    assert_eq!(ended.unwrap().len(), RANKS as usize);
}

#[test]
fn a_death_ends_the_receives_of_any_rank() {
    let at = Duration::from_millis(40);
    let cluster = Cluster::new(4, Links::new(100e-6, 1e-9)).with_faults([Fault::Kill { rank: Rank(2), at }]);
    let ended = run(cluster.clone(), |transport| {
        let (group, cluster) = (group(transport), cluster.clone());
        async move {
            let (_, received) = group.start_recv_vec(vec![0u8], 9, None, None).await;
            (received.unwrap_err(), cluster.now())
        }
    });
    for (error, now) in ended.unwrap() {
        assert!(matches!(error, Error::PeerLost { rank: Rank(2) }), "{error}");
        assert!(now < at + Duration::from_millis(20), "{now:?}");
    }
}

#[test]
fn a_timeout_closes_nothing() {
    let ended = run(Cluster::new(2, Links::new(100e-6, 1e-9)), |transport| {
        let group = group(transport);
        async move {
            let peer = 1 - group.rank();
            let soft = group.with_timeout(Duration::from_millis(50));
            for (source, tag) in [(None, None), (Some(peer), Some(3)), (Some(group.rank()), None)] {
                let (_, received) = soft.start_recv(vec![0u8; 9], source, tag).await;
                assert!(matches!(received, Err(Error::MessageTimeout { .. })), "{received:?}");
            }
            let sending = group.start_send(vec![7u8], peer, 3);
            assert_eq!(group.start_recv(vec![0u8], peer, 3).await.0, [7]);
            sending.await.1.unwrap();
            group.start_all_reduce(vec![1u32], ReduceOp::Sum).await.1.unwrap();
        }
    });
    assert_eq!(ended.unwrap().len(), 2);
}
