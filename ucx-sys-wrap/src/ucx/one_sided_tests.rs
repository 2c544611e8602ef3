//! Tests of which way puts and gets go.

use std::sync::Arc;

use brevity_testing::ucx_is_here;

use super::Ucx;
use super::worlds::world_with_infos;
use crate::buffer::{Port, Region, RemoteRegion, scope};
use crate::{Error, OneSided, Rank};

/// Where a card says which descriptor its rank's word is, and whether it has hardware.
const WORD_AT: usize = 20;
const HARDWARE_AT: usize = 80;

/// Two ranks of which the first can't look up the second, whose memory is open nevertheless.
fn lopsided() -> Vec<Ucx> {
    let change = |rank: Rank, card: &mut Vec<u8>| {
        if rank == Rank(1) {
            card[WORD_AT..WORD_AT + 4].copy_from_slice(&9999u32.to_le_bytes());
        }
    };
    world_with_infos(2, &[], &change)
}

#[test]
fn one_rank_asks_and_the_other_reaches() {
    if !ucx_is_here() {
        return;
    }
    let world = lopsided();
    assert_eq!(
        world.iter().map(|ucx| ucx.is_reached.clone()).collect::<Vec<_>>(),
        [[false, false], [true, false]]
    );
    assert!(world.iter().all(|ucx| ucx.is_open));
    let ports: Vec<Arc<Port>> = world.into_iter().map(|ucx| Port::new(Box::new(ucx))).collect();
    for (visitor, owner) in [(0, 1), (1, 0)] {
        let region = Region::register(&ports[owner], vec![0u8; 100_000]).unwrap();
        let remote =
            RemoteRegion::open(&ports[visitor], Rank(owner as u32), &region.key().to_bytes()).unwrap();
        let turn = |_: &_| ports.iter().for_each(|port| _ = port.progress());
        let got = scope(&ports[visitor], turn, async |comm| {
            comm.put(&remote, 5, vec![visitor as u8 + 1; 90_000]).await.unwrap();
            comm.put(&remote, 90_005, &[9u8; 8][..]).await.unwrap();
            comm.flush(remote.owner()).await.unwrap();
            comm.get(&remote, 4, vec![7u8; 90_010]).await.unwrap().0
        });
        let expected = [&[0][..], &vec![visitor as u8 + 1; 90_000], &[9; 8], &[0]].concat();
        assert!(got == expected, "{visitor} at {owner}");
        assert!(region.unregister().is_none(), "peers may reach it");
    }
}

/// Only one of two ranks that says it has hardware makes none; and a key without UCX's is not read as one.
#[test]
fn what_one_rank_has_alone_reaches_nobody() {
    if !ucx_is_here() {
        return;
    }
    let change = |rank: Rank, card: &mut Vec<u8>| card[HARDWARE_AT] = u8::from(rank == Rank(1));
    let mut world = world_with_infos(2, &[("TLS", "tcp,self")], &change);
    assert!(world.iter().all(|ucx| !ucx.is_open && ucx.is_reached == [false, false]));
    let region = crate::buffer::RegionMemory::of_zeroes(8);
    let key = world[1].expose(region).unwrap();
    assert!(world[0].attach(&key).is_ok());
    world[0].is_reached[1] = true;
    assert!(matches!(world[0].attach(&key), Err(Error::Protocol { rank: Rank(1), .. })));
}
