//! Cases of puts and gets. A is rank 0, which accesses the memory of B, rank 1.

mod endings;

pub use endings::{aborted, left_in_a_scope, peer_dropped, sleep};

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{OnLoss, Pool, Port, Region, RemoteRegion, scope};
use ucx_sys_wrap::{Error, Failure, Rank, RegionKey};

use super::{block, envelope, pattern, turn, within};

const A: Rank = Rank(0);
const B: Rank = Rank(1);

/// The contents of memory before anything is put there.
const UNTOUCHED: u8 = 0xa5;

const LENGTHS: [usize; 9] = [0, 1, 8, 511, 4096, 4097, 100_000, (1 << 20) + 3, 5 << 20];

/// B registers memory and tells A.
fn share(port: &Arc<Port>, sequence: u32, memory: Vec<u8>) -> Result<Region<Vec<u8>>, RemoteRegion> {
    if port.rank() == B {
        let region = Region::register(port, memory).unwrap();
        block(port, async |comm| {
            comm.send(A, envelope(B, sequence, 0), region.key().to_bytes()).await.unwrap()
        });
        return Ok(region);
    }
    Err(RemoteRegion::open(port, B, &key(port, sequence)).unwrap())
}

/// A receives a key.
fn key(port: &Arc<Port>, sequence: u32) -> Vec<u8> {
    let (mut bytes, arrival) =
        block(port, async |comm| comm.recv(B, envelope(B, sequence, 0), vec![0u8; 16 << 10]).await.unwrap());
    bytes.truncate(arrival.lengths[0]);
    bytes
}

/// Each learns that the other has come this far; both make progress until then.
fn meet(port: &Arc<Port>, sequence: u32, round: u32) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    block(port, async |comm| {
        let send = comm.send(peer, envelope(own, sequence, round), ());
        comm.recv(peer, envelope(peer, sequence, round), ()).await.unwrap();
        send.await.unwrap();
    });
}

fn contents(region: &Region<Vec<u8>>) -> Vec<u8> {
    let mut bytes = vec![0; region.byte_count()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// A puts, flushes and sends a message: B then finds exactly those bytes. A gets them back, and also what B
/// has written.
pub fn put_and_get(port: &Arc<Port>) {
    for (sequence, length) in (1..).zip(LENGTHS) {
        let offset = length % 13;
        let memory = vec![UNTOUCHED; length + 20];
        match share(port, sequence, memory) {
            Err(remote) => {
                assert_eq!((remote.owner(), remote.region_bytes()), (B, length as u64 + 20));
                block(port, async |comm| {
                    let sent = comm.put(&remote, offset, pattern(1, length)).await.unwrap().0;
                    assert!(sent == pattern(1, length));
                    comm.flush(B).await.unwrap();
                });
                meet(port, sequence, 1);
                meet(port, sequence, 2);
                let mut place = vec![0u8; length];
                block(port, async |comm| {
                    comm.get(&remote, offset, &mut place[..]).await.map(|_| ()).unwrap()
                });
                assert!(place == pattern(2, length), "{length} bytes");
                meet(port, sequence, 3);
            }
            Ok(region) => {
                meet(port, sequence, 1);
                let found = contents(&region);
                assert!(found[offset..offset + length] == pattern(1, length), "{length} bytes");
                let around = [&found[..offset], &found[offset + length..]].concat();
                assert_eq!(around, [UNTOUCHED; 20], "{length} bytes");
                region.write(offset, &pattern(2, length)).unwrap();
                meet(port, sequence, 2);
                meet(port, sequence, 3);
            }
        }
    }
}

pub fn parts(port: &Arc<Port>) {
    let lengths = [(16, 400, 400), (16, 400_000, 400_000), (0, 3, 0), (5000, 0, 70_000)];
    for (sequence, (a, b, c)) in (1..).zip(lengths) {
        let all = [pattern(1, a), pattern(2, b), pattern(3, c)].concat();
        match share(port, sequence, vec![UNTOUCHED; 7 + a + b + c]) {
            Err(remote) => {
                block(port, async |comm| {
                    comm.put(&remote, 7, ((pattern(1, a), pattern(2, b)), pattern(3, c))).await.unwrap();
                    comm.flush(B).await.unwrap();
                    let places = ((vec![0u8; a], vec![0u8; b]), vec![0u8; c]);
                    let (((first, second), third), ()) = comm.get(&remote, 7, places).await.unwrap();
                    assert!([first, second, third].concat() == all);
                });
                meet(port, sequence, 1);
            }
            Ok(region) => {
                meet(port, sequence, 1);
                assert!(contents(&region)[7..] == all);
            }
        }
    }
}

/// The same on memory of a pool, and on memory that the transport has allocated; both are zero when they are
/// reused.
pub fn allocated(port: &Arc<Port>) {
    let pool = Pool::new();
    for (round, length) in (0..).zip([0, 8, 5000, 5000, 1 << 20, 1 << 20]) {
        let sequence = 10 * round;
        if port.rank() == A {
            for step in [1, 2] {
                let remote = RemoteRegion::open(port, B, &key(port, sequence + step)).unwrap();
                let bytes = pattern(1, length);
                block(port, async |comm| {
                    let (zeroes, ()) = comm.get(&remote, 0, vec![1u8; length]).await.unwrap();
                    assert!(zeroes.iter().all(|byte| *byte == 0), "{length} bytes");
                    comm.put(&remote, 0, &bytes[..]).await.unwrap();
                    comm.flush(B).await.unwrap();
                    let (found, ()) = comm.get(&remote, 0, pool.take::<u8>(length).unwrap()).await.unwrap();
                    assert!(found[..] == bytes, "{length} bytes");
                });
                meet(port, sequence + step, 1);
            }
            continue;
        }
        for step in [1, 2] {
            let region = match step {
                1 => Region::allocate(port, &pool, length).unwrap(),
                _ => Region::register(port, pool.take_zeroed::<u8>(length).unwrap()).unwrap(),
            };
            assert_eq!(region.byte_count(), length);
            let key = region.key().to_bytes();
            block(port, async |comm| {
                comm.send(A, envelope(B, sequence + step, 0), key).await.map(|_| ()).unwrap()
            });
            meet(port, sequence + step, 1);
            let mut found = vec![0; length];
            region.read(0, &mut found).unwrap();
            assert!(found == pattern(1, length), "{length} bytes");
        }
    }
}

/// Many at once, small and large, with messages in between and different tags.
pub fn many(port: &Arc<Port>) {
    const SIZE: usize = 70_000;
    let length = |index: usize| if index.is_multiple_of(4) { SIZE } else { 1 + index % 50 };
    match share(port, 1, vec![0; 100 * SIZE]) {
        Err(remote) => block(port, async |comm| {
            let puts: Vec<_> = (0..100)
                .map(|index| comm.put(&remote, index * SIZE, pattern(index, length(index))))
                .collect();
            let message = comm.send(B, envelope(A, 2, 0), pattern(7, 100_000));
            let flush = comm.flush(B);
            let gets: Vec<_> =
                (0..100).map(|index| comm.get(&remote, index * SIZE + SIZE - 5, vec![7u8; 5])).collect();
            message.await.unwrap();
            flush.await.unwrap();
            for put in puts {
                put.await.unwrap();
            }
            for get in gets {
                get.await.unwrap();
            }
            comm.send(B, envelope(A, 2, 1), ()).await.unwrap();
        }),
        Ok(region) => {
            block(port, async |comm| {
                comm.recv(A, envelope(A, 2, 0), vec![0u8; 100_000]).await.unwrap();
                comm.recv(A, envelope(A, 2, 1), ()).await.unwrap();
            });
            let found = contents(&region);
            for index in 0..100 {
                let place = &found[index * SIZE..][..length(index)];
                assert!(place == pattern(index, length(index)), "put {index}");
            }
        }
    }
}

/// An access outside of the region is refused, and nothing of it is written.
pub fn bounds(port: &Arc<Port>) {
    match share(port, 1, vec![UNTOUCHED; 100]) {
        Err(remote) => {
            block(port, async |comm| {
                for (offset, length) in [(0, 101), (100, 1), (99, 2), (101, 0), (usize::MAX, 2), (1 << 40, 8)]
                {
                    let put = comm.put(&remote, offset, vec![1u8; length]).await.map(|_| ());
                    let get = comm.get(&remote, offset, vec![1u8; length]).await.map(|_| ());
                    for result in [put, get] {
                        assert!(
                            matches!(result,
                                Err(Error::OutOfRegion { rank: B, offset: at, bytes, region_bytes: 100 })
                                if (at, bytes) == (offset as u64, length as u64)),
                            "{length} bytes at {offset}: {result:?}"
                        );
                    }
                }
                comm.put(&remote, 100, vec![] as Vec<u8>).await.unwrap();
            });
            meet(port, 2, 0);
        }
        Ok(region) => {
            meet(port, 2, 0);
            assert_eq!(contents(&region), [UNTOUCHED; 100]);
            assert!(matches!(region.write(99, &[1u8, 2]), Err(Error::OutOfRegion { .. })));
            assert!(matches!(region.read(1, &mut [0u64; 13]), Err(Error::OutOfRegion { .. })));
        }
    }
}

/// Forged keys give no access: they are refused when they are opened, or by the peer.
pub fn forged_keys(port: &Arc<Port>) {
    match share(port, 1, vec![UNTOUCHED; 100]) {
        Ok(region) => {
            block(port, async |comm| comm.send(A, envelope(B, 2, 0), region.key().to_bytes()).await.unwrap());
            meet(port, 3, 0);
            assert_eq!(contents(&region), [UNTOUCHED; 100]);
        }
        Err(_) => {
            let bytes = key(port, 2);
            // The number, the random bytes, the length, and what the transport adds.
            for at in (16..bytes.len()).filter(|at| *at < 64 || at % 7 == 0) {
                let mut forged = bytes.clone();
                forged[at] ^= 0x10;
                let Ok(remote) = RemoteRegion::open(port, B, &forged) else { continue };
                assert_ne!(port.name(), "ucx", "byte {at}: a peer's UCX does not check");
                let length = remote.region_bytes().min(1 << 20) as usize;
                let result =
                    block(port, async |comm| comm.put(&remote, 0, vec![1u8; length]).await.map(|_| ()));
                let is_refused = match at {
                    40..48 => matches!(result, Err(Error::OutOfRegion { rank: B, .. })) || length < 100,
                    _ => matches!(result, Err(Error::NoSuchRegion { rank: B })),
                };
                assert!(is_refused || at == 40, "byte {at}: {result:?}");
            }
            let own = RegionKey::from_bytes(&bytes, B).unwrap();
            assert_eq!((own.owner(), own.region_bytes()), (B, 100));
            for wrong in [&bytes[..20], &[], &[0; 48]] {
                assert!(matches!(RemoteRegion::open(port, B, wrong), Err(Error::Protocol { rank: B, .. })));
            }
            assert!(RemoteRegion::open(port, A, &bytes).is_err(), "a key of another rank");
            meet(port, 3, 0);
        }
    }
}

/// After a region is gone its key is invalid, another region works, and the owner gets its buffer back,
/// unless peers access it directly, over `ucx`.
pub fn unregistered(port: &Arc<Port>) {
    for drops in [false, true] {
        let sequence = 1 + 10 * u32::from(drops);
        // Whether a third region's memory is given back shows whether peers have to ask.
        let asks = gives_back(port, sequence + 3);
        assert!(asks || port.name() == "ucx");
        let (first, second) =
            (share(port, sequence, vec![3; 1000]), share(port, sequence + 1, vec![UNTOUCHED; 1000]));
        match (first, second) {
            (Ok(first), Ok(second)) => {
                meet(port, sequence + 2, 0);
                if drops {
                    drop(first);
                } else {
                    assert_eq!(first.unregister(), asks.then(|| vec![3; 1000]));
                }
                meet(port, sequence + 2, 1);
                meet(port, sequence + 2, 2);
                assert_eq!(contents(&second)[..4], [7, 7, UNTOUCHED, UNTOUCHED]);
            }
            (Err(first), Err(second)) => {
                meet(port, sequence + 2, 0);
                meet(port, sequence + 2, 1);
                block(port, async |comm| {
                    for length in [0, 8, 1000].into_iter().filter(|_| asks) {
                        let put = comm.put(&first, 0, vec![9u8; length]).await.map(|_| ());
                        let get = comm.get(&first, 0, vec![9u8; length]).await.map(|_| ());
                        for result in [put, get] {
                            assert!(matches!(result, Err(Error::NoSuchRegion { rank: B })), "{result:?}");
                        }
                    }
                    comm.put(&second, 0, vec![7u8; 2]).await.unwrap();
                    comm.flush(B).await.unwrap();
                });
                meet(port, sequence + 2, 2);
            }
            _ => unreachable!("both are the owner's or the peer's"),
        }
    }
}

/// Whether B gets the memory of a region back, as it tells A.
fn gives_back(port: &Arc<Port>, sequence: u32) -> bool {
    match share(port, sequence, vec![5; 10]) {
        Ok(region) => {
            let is_back = region.unregister().is_some();
            block(port, async |comm| {
                comm.send(A, envelope(B, sequence, 99), vec![u8::from(is_back)]).await.map(drop).unwrap()
            });
            is_back
        }
        Err(_) => block(port, async |comm| {
            comm.recv(B, envelope(B, sequence, 99), vec![0u8]).await.unwrap().0 == [1]
        }),
    }
}

/// B takes its memory back during puts and gets: the memory is no longer accessed, and they end.
pub fn unregistered_in_flight(port: &Arc<Port>) {
    const LENGTH: usize = 4 << 20;
    for turns in [0, 1, 3, 10, 30] {
        match share(port, 1 + turns, vec![0; LENGTH]) {
            Ok(region) => {
                (0..turns).for_each(|_| turn(port));
                let mut back = region.unregister();
                if let Some(memory) = &mut back {
                    memory.fill(UNTOUCHED);
                }
                meet(port, 100 + turns, 0);
                assert!(
                    back.is_none_or(|memory| memory.iter().all(|byte| *byte == UNTOUCHED)),
                    "written afterwards"
                );
            }
            Err(remote) => {
                let bytes = pattern(1, LENGTH);
                let mut place = vec![0u8; LENGTH];
                block(port, async |comm| {
                    let puts: Vec<_> = (0..4).map(|_| comm.put(&remote, 0, &bytes[..])).collect();
                    let get = comm.get(&remote, 0, &mut place[..]);
                    let flush = comm.flush(B);
                    for put in puts {
                        expect_ended(put.await.map(|_| ()));
                    }
                    expect_ended(get.await.map(|_| ()));
                    flush.await.unwrap();
                });
                meet(port, 100 + turns, 0);
            }
        }
    }
}

fn expect_ended(result: ucx_sys_wrap::Result<()>) {
    assert!(matches!(result, Ok(()) | Err(Error::NoSuchRegion { rank: B })), "{result:?}");
}
