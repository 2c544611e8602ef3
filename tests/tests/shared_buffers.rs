//! Broadcasts from one buffer: the right elements, in the user's memory, and exactly the copies that the
//! transport needs.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use brevity::collectives::pattern::Binomial;
use brevity::collectives::{Description, Error, Operation, dense};
use brevity::transport::buffer::{Pool, SharedBuffer};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::transport::{Rank, Transport, local};
use brevity::{Element, Group, Handle, Settings};
use brevity_testing::ucx_is_here;
use brevity_testing::worlds::{boxed, joined, lanes, local_peers, over_sockets, over_ucx};
use brevity_tests::{on_host, on_local, on_transports, oracle};

const WORLD_SIZES: [u32; 6] = [1, 2, 3, 5, 7, 8];

/// None, one, an odd number, more than is packed, more than is sent eagerly.
const COUNTS: [usize; 5] = [0, 1, 1001, 20_000, 300_000];

/// Elements of a buffer that no transport packs and that tcp sends eagerly.
const LARGE: usize = 100_001;
const LARGE_BYTES: u64 = 4 * LARGE as u64;

fn on_threads(world_size: u32) -> Vec<Box<dyn Transport>> {
    boxed(local::world(world_size))
}

/// Ranks over sockets that share no memory.
fn on_sockets(world_size: u32) -> Vec<Box<dyn Transport>> {
    boxed(over_sockets(world_size))
}

/// The same, encrypted.
fn on_encrypted_sockets(world_size: u32) -> Vec<Box<dyn Transport>> {
    boxed(joined(world_size, true))
}

/// Ranks over sockets that share memory like those of one host; `may_read` lets them read each other's.
fn on_local_peers(world_size: u32, may_read: bool) -> Vec<Box<dyn Transport>> {
    boxed(local_peers(world_size, may_read))
}

fn on_ucx(world_size: u32, names: &str) -> Vec<Box<dyn Transport>> {
    boxed(over_ucx(world_size, &lanes(names)))
}

/// Broadcasts from every root, pieces and whole buffers, and passes on what was received.
fn broadcasts(group: &Group) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let pool = Pool::new();
    for count in COUNTS {
        for root in [0, world_size / 2, world_size - 1] {
            let mut buffer = pool.take::<f32>(count).unwrap();
            buffer.copy_from_slice(&oracle::vector(rank, count));
            let address = buffer.as_ptr();
            let shared = group.broadcast_shared(buffer, root).unwrap();
            assert_eq!(shared[..], oracle::vector(root, count), "{count} from {root} of {world_size}");
            assert_eq!(shared.as_ptr(), address, "the memory that was handed in");

            // What comes from one rank is sent on by the next one, a part of it.
            let (next, piece) = ((root + 1) % world_size, count / 3..count);
            if rank == next {
                group.broadcast_frozen(&shared.slice(piece)).unwrap();
            } else {
                let again = group.broadcast_shared(pool.take::<f32>(piece.len()).unwrap(), next).unwrap();
                assert_eq!(again[..], shared[piece]);
            }
            assert!(shared.thaw().is_ok(), "every send has given the buffer back");
        }
    }
    // No rank leaves while others still send.
    group.barrier().unwrap();
}

#[test]
fn every_rank_gets_the_roots_elements_between_threads() {
    for world_size in WORLD_SIZES.into_iter().chain([33]) {
        on_local(world_size, broadcasts);
    }
}

#[test]
fn every_rank_gets_the_roots_elements_over_sockets() {
    for world_size in WORLD_SIZES {
        on_transports(on_sockets(world_size), broadcasts);
    }
}

#[test]
fn every_rank_gets_the_roots_elements_over_encrypted_sockets() {
    on_transports(on_encrypted_sockets(5), broadcasts);
}

#[test]
fn every_rank_gets_the_roots_elements_over_links_of_shared_memory() {
    for may_read in [true, false] {
        on_transports(on_local_peers(5, may_read), broadcasts);
    }
}

#[test]
fn every_rank_gets_the_roots_elements_over_ucx() {
    if ucx_is_here() {
        for lanes in ["all", "tcp,self"] {
            on_transports(on_ucx(5, lanes), broadcasts);
        }
    }
}

#[test]
fn every_rank_gets_the_roots_elements_where_memory_is_shared() {
    on_host(3, Settings::default(), broadcasts);
}

#[test]
fn every_rank_gets_the_roots_elements_in_virtual_time() {
    for world_size in WORLD_SIZES.into_iter().chain([33]) {
        for count in COUNTS {
            let root = world_size / 2;
            let cluster = Cluster::new(world_size, Links::new(1e-6, 1e-9));
            let ended = run(cluster, |transport| {
                let group = Group::new(transport, Settings::default());
                async move { start(&group, &Pool::new(), oracle::vector(group.rank(), count), root).await.1 }
            });
            for shared in ended.unwrap() {
                assert_eq!(
                    shared.unwrap()[..],
                    oracle::vector(root, count),
                    "{count} from {root} of {world_size}"
                );
            }
        }
    }
}

type Started<T> = Handle<((), Result<SharedBuffer<T>, Error>)>;

fn describe<T: Element>(count: usize, root: u32) -> Description {
    Description {
        root: Some(Rank(root)),
        ..Description::new(Operation::SHARED_BROADCAST, T::TYPE.number(), count)
    }
}

/// A shared broadcast as a non-blocking call. Its receive is posted when this returns.
fn start<T: Element>(group: &Group, pool: &Pool, own: Vec<T>, root: u32) -> Started<T> {
    let mut buffer = pool.take::<T>(own.len()).unwrap();
    buffer.copy_from_slice(&own);
    group.start(describe::<T>(own.len(), root), (), move |call, ()| {
        Box::pin(dense::broadcast_shared(call, buffer, root))
    })
}

/// Copies and copied bytes of each rank for a broadcast of [`LARGE`] elements from rank 0, with all receives
/// posted.
fn copied(world: Vec<Box<dyn Transport>>) -> Vec<(u64, u64)> {
    copied_of(LARGE, world)
}

/// The same for `elements` elements.
fn copied_of(elements: usize, world: Vec<Box<dyn Transport>>) -> Vec<(u64, u64)> {
    let posted = Arc::new(Barrier::new(world.len()));
    on_transports(world, move |group| {
        let before = group.statistics();
        let pool = Pool::new();
        let own = oracle::vector(group.rank(), elements);
        let shared = if group.rank() == 0 {
            posted.wait();
            start(group, &pool, own, 0).wait().1
        } else {
            let started = start(group, &pool, own, 0);
            posted.wait();
            started.wait().1
        };
        assert_eq!(shared.unwrap()[..], oracle::vector(0, elements));
        assert_eq!(pool.statistics().taken, 1, "one buffer for all that is received and sent");
        let after = group.statistics();
        // No rank leaves while others still send.
        group.barrier().unwrap();
        (after.copies - before.copies, after.bytes_copied - before.bytes_copied)
    })
}

#[test]
fn over_sockets_nobody_copies() {
    for world_size in WORLD_SIZES {
        assert_eq!(copied(on_sockets(world_size)), vec![(0, 0); world_size as usize]);
    }
}

/// Between threads a receiver copies what it gets, once; passing it on adds no copy.
#[test]
fn between_threads_only_receivers_copy() {
    for world_size in WORLD_SIZES {
        let mut expected = vec![(1, LARGE_BYTES); world_size as usize];
        expected[0] = (0, 0);
        assert_eq!(copied(on_threads(world_size)), expected);
    }
}

/// A rank that may read its parent's memory copies from there, once, and its children read what it passes on.
/// The message is longer than eight rings, so it is read although it may lie on ordinary pages.
#[test]
fn over_links_only_receivers_copy() {
    const TIMES: usize = 45;
    for world_size in WORLD_SIZES {
        let mut expected = vec![(1, TIMES as u64 * LARGE_BYTES); world_size as usize];
        expected[0] = (0, 0);
        assert_eq!(copied_of(TIMES * LARGE, on_local_peers(world_size, true)), expected);
    }
}

/// Through rings every byte is copied in once for each child, and out once.
#[test]
fn through_rings_each_side_copies() {
    for world_size in WORLD_SIZES {
        for (rank, (_, bytes)) in (0..).zip(copied(on_local_peers(world_size, false))) {
            let place = Binomial::new(rank, 0, world_size);
            let times = place.children().count() as u64 + u64::from(place.parent().is_some());
            assert_eq!(bytes, times * LARGE_BYTES, "rank {rank} of {world_size}");
        }
    }
}

/// Bytes are encrypted from the buffer and decrypted into it. Only the part of a record that spans two places
/// or two reads is copied; less than half of a record for each.
#[test]
fn over_encrypted_sockets_little_is_copied() {
    for world_size in WORLD_SIZES {
        for (rank, (_, bytes)) in (0..).zip(copied(on_encrypted_sockets(world_size))) {
            let place = Binomial::new(rank, 0, world_size);
            let times = place.children().count() as u64 + u64::from(place.parent().is_some());
            assert!(bytes <= times * LARGE_BYTES / 2, "rank {rank} of {world_size}: {bytes} bytes");
        }
    }
}

#[test]
fn over_ucx_nobody_copies() {
    if ucx_is_here() {
        for lanes in ["all", "tcp,self"] {
            assert_eq!(copied(on_ucx(8, lanes)), [(0, 0); 8], "{lanes}");
        }
    }
}

/// The sends to all children have the buffer until the last of them is complete.
#[test]
fn the_buffer_is_lent_until_all_children_have_it() {
    let mut groups = on_threads(3).into_iter().map(|transport| Group::new(transport, Settings::default()));
    let groups: [Group; 3] = std::array::from_fn(|_| groups.next().unwrap());
    let pool = Pool::new();
    let mut buffer = pool.take::<u64>(LARGE).unwrap();
    buffer.fill(7);
    let address = buffer.as_ptr();
    let mut shared = buffer.freeze();
    let lent = shared.clone();
    let root = groups[0].start(describe::<u64>(LARGE, 0), (), move |call, ()| {
        Box::pin(async move { dense::broadcast_frozen(call, lent).await.map(drop) })
    });
    for child in &groups[1..] {
        assert!(!root.test());
        shared = shared.thaw().unwrap_err();
        let received = start(child, &pool, vec![0; LARGE], 0).wait().1.unwrap();
        assert!(received.iter().all(|element| *element == 7) && received.as_ptr() != address);
    }
    root.wait().1.unwrap();
    assert_eq!(shared.thaw().unwrap().as_ptr(), address);
}

#[test]
fn who_expects_another_length_is_named() {
    let results = on_transports(on_threads(2), |group| {
        group.broadcast_shared(Pool::new().take::<f32>(10 + group.rank() as usize).unwrap(), 0)
    });
    assert!(matches!(results[1], Err(Error::Mismatch { rank: Rank(0), .. })), "{results:?}");
}

#[test]
fn a_root_that_does_not_come_is_a_timeout_and_a_root_that_is_none_an_error() {
    let hasty = Settings { timeout: Duration::from_millis(100), ..Settings::default() };
    let groups: Vec<_> = on_threads(2).into_iter().map(|transport| Group::new(transport, hasty)).collect();
    let pool = Pool::new();
    let none = groups[1].broadcast_shared(pool.take::<f32>(10).unwrap(), 2);
    assert!(matches!(none, Err(Error::NoSuchRoot { root: Rank(2), world_size: 2 })), "{none:?}");
    let late = groups[1].broadcast_shared(pool.take::<f32>(LARGE).unwrap(), 0);
    assert!(matches!(late, Err(Error::Timeout { rank: Rank(0), .. })), "{late:?}");
    let statistics = pool.statistics();
    assert_eq!(statistics.kept_bytes, statistics.mapped_bytes, "the memory went back to the pool");
}
