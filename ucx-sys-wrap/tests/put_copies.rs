//! How often the bytes of puts and gets are copied between the memory of the accessing rank and that of the
//! owner.
#![allow(clippy::unwrap_used)] // Nothing here but tests.

#[allow(dead_code, reason = "the battery belongs to others")]
mod common;

use std::sync::Arc;

use brevity_testing::{Wire, on_every_wire};
use common::{block, envelope, pattern, run};
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::{Port, Region, RemoteRegion};

const VISITOR: Rank = Rank(0);
const OWNER: Rank = Rank(1);

/// Less than tcp sends in one fragment.
const BYTES: usize = 400 << 10;

/// What may be copied besides: data that comes with a header, and the messages by which the ranks
/// synchronise.
const BESIDE: u64 = 16 << 10;

on_every_wire! {
    puts_and_gets => |wire: Wire| run(&format!("{wire:?}"), wire.world(2), move |port| copies(&port, wire));
}

/// How many of the bytes are copied at least and at most: for a put at the visitor and the owner, and for a
/// get.
fn expected(wire: Wire) -> [[(u64, u64); 2]; 2] {
    const NONE: (u64, u64) = (0, 0);
    const ALL: (u64, u64) = (BYTES as u64, BYTES as u64);
    match wire {
        // The rank that puts or gets copies.
        Wire::Local => [[ALL, NONE], [ALL, NONE]],
        // What is encrypted from several places, and decrypted where it does not fit.
        Wire::TcpEncrypted => {
            let some = BYTES as u64 / 2;
            [[(0, some), (0, some)], [(0, some), (BYTES as u64, BYTES as u64 + some)]]
        }
        // The owner's memory may change while its bytes wait for the socket.
        Wire::Tcp | Wire::TcpShared | Wire::TcpRings => [[NONE, NONE], [NONE, ALL]],
        // UCX moves them.
        Wire::UcxShared | Wire::UcxTcp | Wire::UcxLocalPeers | Wire::Ucx => [[NONE, NONE], [NONE, NONE]],
    }
}

fn copies(port: &Arc<Port>, wire: Wire) {
    let own = usize::from(port.rank() == OWNER);
    let check = |what: &str, before: u64, [visitor, owner]: [(u64, u64); 2]| {
        let copied = port.statistics().bytes_copied - before;
        let (least, most) = [visitor, owner][own];
        assert!((least..=most + BESIDE).contains(&copied), "{what}: rank {own} has copied {copied} bytes");
    };
    let [put, get] = expected(wire);
    let copied = || port.statistics().bytes_copied;
    if port.rank() == OWNER {
        let region = Region::register(port, vec![0u8; BYTES]).unwrap();
        let key = region.key().to_bytes();
        block(port, async |comm| comm.send(VISITOR, envelope(OWNER, 1, 0), key).await.map(drop).unwrap());
        for (round, (what, expected)) in (1..).zip([("a put", put), ("a get", get)]) {
            let before = copied();
            block(port, async |comm| {
                comm.recv(VISITOR, envelope(VISITOR, 1, round), ()).await.map(drop).unwrap()
            });
            check(what, before, expected);
            block(port, async |comm| {
                comm.send(VISITOR, envelope(OWNER, 1, round), ()).await.map(drop).unwrap()
            });
        }
        return;
    }
    let (mut key, arrived) =
        block(port, async |comm| comm.recv(OWNER, envelope(OWNER, 1, 0), vec![0u8; 16 << 10]).await.unwrap());
    key.truncate(arrived.lengths[0]);
    let remote = RemoteRegion::open(port, OWNER, &key).unwrap();
    let bytes = pattern(1, BYTES);
    let mut place = vec![0u8; BYTES];
    let meet = |round| {
        block(port, async |comm| {
            comm.send(OWNER, envelope(VISITOR, 1, round), ()).await.unwrap();
            comm.recv(OWNER, envelope(OWNER, 1, round), ()).await.unwrap();
        });
    };
    let before = copied();
    block(port, async |comm| {
        comm.put(&remote, 0, &bytes[..]).await.unwrap();
        comm.flush(OWNER).await.unwrap();
    });
    check("a put", before, put);
    meet(1);
    let before = copied();
    block(port, async |comm| comm.get(&remote, 0, &mut place[..]).await.map(drop).unwrap());
    check("a get", before, get);
    meet(2);
    assert!(place == bytes);
}
