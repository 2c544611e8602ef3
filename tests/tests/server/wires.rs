//! On every wire between threads: with and without dedicated servers, with workers that come late, leave
//! early, or send what no worker sends.

use std::sync::{Arc, Barrier, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::server::messages::{Kind, Trailer};
use brevity::server::{Method, Servers};
use brevity::{Error, Group, ParameterServer};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::on_transports;

use brevity_tests::pushes::{Record, TOTAL, builder, check_mass, gradients, zeros};

on_every_wire! {
    every_rank_serves => |wire: Wire| work(wire, 3, Servers::EveryRank);
    dedicated_servers => |wire: Wire| work(wire, 5, Servers::Dedicated(2));
    strangers_to_the_protocol => |wire: Wire| refuse(wire);
    a_server_that_ends => |wire: Wire| end(wire);
    a_server_that_ends_behind_a_slow_one => |wire: Wire| end_behind(wire);
    a_worker_that_hangs => |wire: Wire| hang(wire);
    a_push_before_a_leave => |wire: Wire| leave(wire);
    a_worker_that_joins_late => |wire: Wire| join_late(wire);
}

const STEPS: u32 = 25;

/// The tags of requests and replies, as docs/server.md gives them.
const REQUESTS: u32 = 1;
const REPLIES: u32 = 2;

/// Workers at their own pace, of which one comes late and one leaves early.
fn work(wire: Wire, ranks: u32, servers: Servers) {
    let (workers, shards) = match servers {
        Servers::EveryRank => (ranks, ranks),
        Servers::Dedicated(count) => (ranks - count, count),
    };
    for method in [Method::gradient_dropping(0.1), Method::asgd()] {
        let records = Arc::new(Mutex::new(vec![Record::default(); workers as usize]));
        let all_pushed = Arc::new(Barrier::new(workers as usize));
        let handed_in = Arc::clone(&records);
        let models = on_transports(wire.world(ranks), move |group| {
            let mut server = builder(group).method(method).servers(servers).build(&zeros()).unwrap();
            let rank = group.rank();
            assert_eq!(
                (server.is_worker(), server.shard().is_some()),
                (rank < workers, workers == ranks || rank >= workers)
            );
            if !server.is_worker() {
                let served = server.serve().unwrap().unwrap();
                assert_eq!((served.refused, served.pushes > 0), (0, true));
                return None;
            }
            if rank == 1 {
                sleep(Duration::from_millis(20));
            }
            let steps = if rank == 0 { STEPS / 2 } else { STEPS };
            let (mut parameters, mut record) = (zeros(), Record::default());
            server.fetch(&mut parameters).unwrap();
            for step in 0..steps {
                record.push(&mut server, rank, step).unwrap();
                let step = server.pull(&mut parameters).unwrap();
                assert!(step.clock > 0 && step.bytes > 0);
            }
            handed_in.lock().unwrap()[rank as usize] = record;
            all_pushed.wait();
            server.fetch(&mut parameters).unwrap();
            server.leave().unwrap();
            Some(parameters.concat())
        });
        let models: Vec<Vec<f32>> = models.into_iter().flatten().collect();
        assert_eq!(models.len(), workers as usize);
        for model in &models {
            check_mass(model, shards as usize, &records.lock().unwrap(), &[]);
        }
    }
}

/// Rank 1 sends nonsense; rank 0 does not notice.
fn refuse(wire: Wire) {
    let method = Method::gradient_dropping(0.1);
    on_transports(wire.world(3), move |group: &Group| {
        let mut server =
            builder(group).method(method).servers(Servers::Dedicated(1)).build(&zeros()).unwrap();
        let mut parameters = zeros();
        match group.rank() {
            0 => {
                server.fetch(&mut parameters).unwrap();
                // Rank 1 has sent its pushes, and the server has looked at the model.
                (0..4).for_each(|_| group.barrier().unwrap());
                for step in 0..STEPS {
                    server.step(&gradients(0, step), 1.0, &mut parameters).unwrap();
                }
                server.leave().unwrap();
            }
            1 => {
                server.fetch(&mut parameters).unwrap();
                server.step(&gradients(1, 0), 0.3, &mut parameters).unwrap();
                group.barrier().unwrap();
                group.barrier().unwrap();
                let longest = 8 * TOTAL + 10_000;
                for (bytes, reason) in [
                    (vec![0; 100], "no worker"),
                    (vec![], "0 bytes"),
                    (vec![7; longest], "which is more than any push has"),
                    (vec![7; 5_000_000], "which is more than any push has"),
                    (push_of(&[]), ""),
                    (push_of(&[0; 200]), ""),
                    (push_of(&[0xff; 200]), ""),
                    (push_of(&falling()), ""),
                    (push_of(&falling()[..60]), ""),
                ] {
                    let reply =
                        server.peers().start_recv(vec![0u8; 1000], 2, REPLIES, Duration::from_secs(60));
                    server.peers().start_send(bytes, 2, REQUESTS).wait().1.unwrap();
                    let (bytes, received) = reply.wait();
                    let bytes = &bytes[..received.unwrap().bytes];
                    let (text, trailer) = Trailer::split(bytes).unwrap();
                    let text = String::from_utf8_lossy(text);
                    assert!(text.contains(reason), "{text}, expected {reason}");
                    assert_eq!((trailer.kind, trailer.step, trailer.clock), (Kind::Refused, 1, 1), "{text}");
                }
                group.barrier().unwrap();
                group.barrier().unwrap();
                // More than it may, without waiting for replies.
                let sends: Vec<_> =
                    (0..50).map(|_| server.peers().start_send(vec![1u8; 200], 2, REQUESTS)).collect();
                sends.into_iter().for_each(|send| send.wait().1.unwrap());
                drop(server);
            }
            _ => {
                let bits = |server: &ParameterServer| {
                    server.model().unwrap().1.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
                };
                group.barrier().unwrap();
                let before = bits(&server);
                assert!(before.iter().any(|bits| *bits != 0));
                group.barrier().unwrap();
                group.barrier().unwrap();
                assert_eq!(bits(&server), before);
                group.barrier().unwrap();
                let served = server.serve().unwrap().unwrap();
                assert_eq!(served.pushes, u64::from(STEPS) + 1);
                assert!(served.refused >= 9);
            }
        }
    });
}

/// The second push of a worker, with this where a sparse vector should be.
fn push_of(payload: &[u8]) -> Vec<u8> {
    let mut message = payload.to_vec();
    Trailer { rate: 1.0, ..Trailer::new(Kind::Push, 0, 2) }.end(&mut message);
    message
}

/// A sparse vector with raw indices of which the last one is too low.
fn falling() -> Vec<u8> {
    let mut message = vec![0xb7, 1, 0, 0, 0, 0, 0, 0];
    [TOTAL as u64, 3, 12, 12].iter().for_each(|number| message.extend(number.to_le_bytes()));
    [1u32, 7, 2].iter().for_each(|index| message.extend(index.to_le_bytes()));
    [1.0f32, 2.0, 3.0].iter().for_each(|value| message.extend(value.to_le_bytes()));
    message
}

/// A short leave does not overtake a long push, and the push is applied when the worker has left; also where
/// its answer waits for a slower worker.
fn leave(wire: Wire) {
    const LONG: usize = 1 << 20;
    for (servers, ranks) in [(Servers::Dedicated(1), 3), (Servers::EveryRank, 2)] {
        for method in [Method::asgd(), Method::gradient_dropping(1.0)] {
            on_transports(wire.world(ranks), move |group: &Group| {
                let server = ParameterServer::builder(group).tensor("long", [LONG]).method(method);
                let mut parameters = [vec![0.0; LONG]];
                let mut server = server.servers(servers).staleness(1).build(&parameters).unwrap();
                if server.is_worker() {
                    server.fetch(&mut parameters).unwrap();
                    // Both are there.
                    group.barrier().unwrap();
                    if group.rank() == 0 {
                        server.step(&[vec![1.0; LONG]], 1.0, &mut parameters).unwrap();
                        server.push(&[vec![1.0; LONG]], 1.0).unwrap();
                    }
                } else {
                    group.barrier().unwrap();
                }
                // The second push is two steps ahead of the other worker, if that has not left.
                let served = server.leave().unwrap();
                assert!(served.is_none_or(|served| served.pushes == 2 && served.refused == 0), "{served:?}");
                group.barrier().unwrap();
            });
        }
    }
}

/// Rank 1, which serves, ends before its worker.
fn end(wire: Wire) {
    on_transports(wire.world(2), move |group: &Group| {
        let server = builder(group).servers(Servers::Dedicated(1)).build(&zeros());
        let mut server = server.unwrap();
        if group.rank() == 1 {
            drop(server);
            group.barrier().unwrap();
            return;
        }
        let mut parameters = zeros();
        // It answers what comes before its end.
        let begun = Instant::now();
        let mut ended = None;
        while ended.is_none() && begun.elapsed() < Duration::from_secs(10) {
            ended = server.fetch(&mut parameters).err();
        }
        assert!(matches!(ended, Some(Error::ServerLost { rank: 1, shard: 0 })), "{ended:?}");
        // The group goes on.
        group.barrier().unwrap();
    });
}

/// Rank 3 ends while the server before it holds an answer back for rank 1.
fn end_behind(wire: Wire) {
    on_transports(wire.world(4), move |group: &Group| {
        let server = builder(group).servers(Servers::Dedicated(2)).staleness(0).build(&zeros());
        let (mut server, mut parameters) = (server.unwrap(), zeros());
        if server.is_worker() {
            server.fetch(&mut parameters).unwrap();
        }
        // Both workers are there.
        group.barrier().unwrap();
        match group.rank() {
            0 => {
                let begun = Instant::now();
                let ended = server.step(&gradients(0, 0), 1.0, &mut parameters);
                assert!(matches!(ended, Err(Error::ServerLost { rank: 3, shard: 1 })), "{ended:?}");
                // Far from the timeout.
                assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
                group.barrier().unwrap();
                server.pull(&mut parameters).unwrap();
                server.leave().unwrap();
            }
            1 => {
                group.barrier().unwrap();
                server.leave().unwrap();
            }
            2 => {
                group.barrier().unwrap();
                assert_eq!(server.serve().unwrap().unwrap().pushes, 1);
            }
            _ => {
                sleep(Duration::from_millis(100));
                drop(server);
                group.barrier().unwrap();
            }
        }
        group.barrier().unwrap();
    });
}

/// Rank 1 is not heard of: the other goes on after the patience, though it is ahead of it.
fn hang(wire: Wire) {
    const PATIENCE: Duration = Duration::from_millis(200);
    on_transports(wire.world(3), move |group: &Group| {
        let server = builder(group).servers(Servers::Dedicated(1)).staleness(0).patience(PATIENCE);
        let (mut server, mut parameters) = (server.build(&zeros()).unwrap(), zeros());
        if server.is_worker() {
            server.fetch(&mut parameters).unwrap();
        }
        group.barrier().unwrap();
        if group.rank() == 0 {
            let begun = Instant::now();
            for step in 0..3 {
                server.step(&gradients(0, step), 1.0, &mut parameters).unwrap();
            }
            // Far from the timeout.
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        }
        group.barrier().unwrap();
        let served = server.leave().unwrap();
        assert!(served.is_none_or(|served| served.pushes == 3), "{served:?}");
        group.barrier().unwrap();
    });
}

/// Rank 1 makes its server when the others have pushed a hundred times; that of rank 2 is another one.
fn join_late(wire: Wire) {
    const PUSHES: u32 = 100;
    let records = Arc::new(Mutex::new(vec![Record::default(); 2]));
    let have_pushed = Arc::new(Barrier::new(2));
    let handed_in = Arc::clone(&records);
    let models = on_transports(wire.world(5), move |group: &Group| {
        let rank = group.rank();
        let mut builder =
            builder(group).method(Method::gradient_dropping(0.1)).servers(Servers::Dedicated(2));
        if rank == 2 {
            builder = builder.secondary_density(0.5);
        }
        if rank == 1 {
            have_pushed.wait();
        }
        let (mut server, mut parameters) = (builder.build(&zeros()).unwrap(), zeros());
        if !server.is_worker() {
            let served = server.serve().unwrap().unwrap();
            assert_eq!(served.pushes, u64::from(PUSHES + STEPS));
            return None;
        }
        if rank == 2 {
            let refused = server.fetch(&mut parameters);
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("a worker of another server: build equal ones"), "{text}");
            assert_eq!(parameters, zeros());
            server.leave().unwrap();
            return None;
        }
        let (steps, mut record) = (if rank == 0 { PUSHES } else { STEPS }, Record::default());
        server.fetch(&mut parameters).unwrap();
        assert_eq!(rank == 1, parameters != zeros());
        for step in 0..steps {
            record.push(&mut server, rank, step).unwrap();
            let step = server.pull(&mut parameters).unwrap();
            assert!(rank == 0 || step.clock > u64::from(PUSHES));
        }
        handed_in.lock().unwrap()[rank as usize] = record;
        if rank == 0 {
            have_pushed.wait();
        } else {
            server.fetch(&mut parameters).unwrap();
        }
        server.leave().unwrap();
        (rank == 1).then(|| parameters.concat())
    });
    let models: Vec<Vec<f32>> = models.into_iter().flatten().collect();
    check_mass(&models[0], 2, &records.lock().unwrap(), &[]);
}
