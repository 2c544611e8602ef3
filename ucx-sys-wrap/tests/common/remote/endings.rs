//! Puts and gets that are cut short.

use super::*;

/// A borrowed buffer is no longer written once the scope is left, however that happens, and a source is no
/// longer read.
pub fn left_in_a_scope(port: &Arc<Port>) {
    for (round, (way, length)) in
        (0..3).flat_map(|way| [16, 10_000, 8 << 20].map(|length| (way, length))).enumerate()
    {
        let sequence = 1 + round as u32;
        match share(port, sequence, pattern(3, length)) {
            Ok(region) => {
                meet(port, 100, round as u32);
                let found = contents(&region);
                let (before, after) = (pattern(3, length), pattern(4, length));
                let is_either =
                    found.iter().zip(before.iter().zip(&after)).all(|(b, (x, y))| b == x || b == y);
                assert!(is_either, "way {way}, {length} bytes: bytes that nobody has put");
            }
            Err(remote) => {
                let (mut place, mut source) = (vec![UNTOUCHED; length], pattern(4, length));
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    block(port, async |comm| {
                        let get = comm.get(&remote, 0, &mut place[..]);
                        let put = comm.put(&remote, 0, &source[..]);
                        let flush = comm.flush(B);
                        match way {
                            0 => drop((get, put, flush)),
                            1 => forget((get, put, flush)),
                            _ => resume_unwind(Box::new("on purpose")),
                        }
                    });
                }));
                assert_eq!(panicked.is_err(), way == 2);
                let left = place.clone();
                source.fill(UNTOUCHED.wrapping_add(1));
                meet(port, 100, round as u32);
                assert!(place == left, "way {way}, {length} bytes: written after the scope was left");
            }
        }
    }
}

/// Puts and gets wake sleeping ranks.
pub fn sleep(port: &Arc<Port>) {
    const LONGEST: Duration = Duration::from_secs(100_000);
    let mut region = share(port, 1, vec![0; 100_000]);
    for round in 0..50 {
        let length = [8, 5000, 100_000][round as usize % 3];
        let asleep = |comm: &ucx_sys_wrap::buffer::Comm<'_>| {
            if !comm.port().progress() {
                comm.port().sleep(LONGEST);
            }
        };
        match &mut region {
            Err(remote) => scope(port, asleep, async |comm| {
                comm.put(remote, 0, vec![round as u8; length]).await.unwrap();
                comm.flush(B).await.unwrap();
                let (bytes, ()) = comm.get(remote, 0, vec![0u8; length]).await.unwrap();
                assert!(bytes.iter().all(|byte| *byte == round as u8));
                comm.send(B, envelope(A, 2, round), ()).await.unwrap();
                comm.recv(B, envelope(B, 2, round), ()).await.unwrap();
            }),
            Ok(region) => {
                scope(port, asleep, async |comm| {
                    comm.recv(A, envelope(A, 2, round), ()).await.map(|_| ()).unwrap()
                });
                assert!(contents(region)[..length].iter().all(|byte| *byte == round as u8));
                block(port, async |comm| comm.send(A, envelope(B, 2, round), ()).await.map(|_| ()).unwrap());
            }
        }
    }
}

/// B leaves while A puts and gets: all operations end, and A learns which rank has left.
pub fn peer_dropped(port: &Arc<Port>) {
    const LENGTH: usize = 8 << 20;
    let Err(remote) = share(port, 1, vec![1; LENGTH]) else { return };
    let start = Instant::now();
    block(port, async |comm| {
        while start.elapsed() < Duration::from_millis(200) {
            let put = comm.put(&remote, 0, vec![1u8; LENGTH]);
            let get = comm.get(&remote, 0, vec![0u8; LENGTH]);
            let flush = comm.flush(B);
            for result in [put.await.map(|_| ()), get.await.map(|_| ()), flush.await] {
                // Memory that peers access directly exists as long as its process.
                let is_gone =
                    matches!(result, Err(Error::PeerLost { rank: B } | Error::NoSuchRegion { rank: B }));
                assert!(is_gone || result.is_ok(), "{result:?}");
            }
        }
        let result = comm.recv(B, envelope(B, 2, 0), ()).await.map(|_| ());
        assert!(matches!(result, Err(Error::PeerLost { rank: B })), "{result:?}");
        assert!(matches!(comm.flush(B).await, Err(Error::PeerLost { rank: B })));
        let put = comm.put(&remote, 0, vec![1u8; 8]).await.map(|_| ());
        assert!(matches!(put, Err(Error::PeerLost { rank: B })), "{put:?}");
    });
}

/// B aborts a context while A puts and gets. Accesses belong to no context: they go on.
pub fn aborted(port: &Arc<Port>) {
    const LENGTH: usize = 8 << 20;
    port.open_context(1, 0, Rank::all(2).collect(), OnLoss::Close);
    let shared = share(port, 1, pattern(1, LENGTH));
    meet(port, 3, 0);
    match shared {
        Ok(region) => {
            (0..20).for_each(|_| turn(port));
            port.abort(0);
            block(port, async |comm| comm.recv(A, within(1, 0, A, 2), ()).await.map(|_| ()).unwrap());
            assert!(contents(&region) == pattern(2, LENGTH));
        }
        Err(remote) => block(port, async |comm| {
            let gets: Vec<_> = (0..4).map(|_| comm.get(&remote, 0, vec![0u8; LENGTH])).collect();
            let ended = comm.recv(B, envelope(B, 2, 0), ()).await.map(|_| ());
            assert!(matches!(ended, Err(Error::Aborted { rank: B })), "{ended:?}");
            for get in gets {
                assert!(get.await.unwrap().0 == pattern(1, LENGTH));
            }
            comm.put(&remote, 0, pattern(2, LENGTH)).await.unwrap();
            comm.flush(B).await.unwrap();
            drop(Region::register(port, vec![0u8; 8]).unwrap());
            comm.send(B, within(1, 0, A, 2), ()).await.unwrap();
        }),
    }
    assert_eq!((port.failure(0), port.failure(1)), (Some(Failure::Aborted(B)), None));
}
