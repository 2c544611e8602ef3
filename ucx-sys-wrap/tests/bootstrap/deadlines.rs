//! Joining has one deadline, whatever the ranks are late with, and a clear error when it has passed.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ucx_sys_wrap::bootstrap::{Identity, JobKey, Master, connect_mesh};
use ucx_sys_wrap::{Error, Rank};

use crate::world::{AMPLE, Port, SHORT, error, joined, missing, rank};

/// Longer than a rank may be late in two steps, but not in one.
const LATE: Duration = Duration::from_secs(1);

#[test]
fn a_rank_that_is_late_at_every_step_does_not_join() {
    let port = Port::reserve();
    let slow = rank(port.identity(1, 2, AMPLE), |_, mut rendezvous| {
        for _ in 0..2 {
            thread::sleep(LATE);
            rendezvous.exchange(b"at last")?;
        }
        Ok(())
    });
    let patient = rank(port.identity(0, 2, SHORT), |_, mut rendezvous| {
        rendezvous.exchange(b"mine")?;
        rendezvous.exchange(b"mine")
    });
    assert_eq!(missing(&error(patient)), [1], "two seconds are more than one and a half");
    assert!(slow.join().unwrap().is_err());
}

#[test]
fn a_rank_that_never_calls_the_mesh_delays_nobody_beyond_the_deadline() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let port = Port::reserve();
    let start = Instant::now();
    let absent = rank(port.identity(1, 2, AMPLE), |_, mut rendezvous| {
        rendezvous.exchange(b"127.0.0.1:1")?;
        // Reports that it lacks nothing.
        rendezvous.exchange(b"")
    });
    let patient = rank(port.identity(0, 2, TIMEOUT), |identity, mut rendezvous| {
        connect_mesh(identity, &mut rendezvous)
    });
    let error = error(patient);
    assert_eq!(missing(&error), [1]);
    assert!(error.to_string().contains("within 3 s"), "{error}");
    assert!(start.elapsed() < 2 * TIMEOUT, "{:?}", start.elapsed());
    // Rank 0 has reported what it lacks within the deadline of both.
    absent.join().unwrap().unwrap();
}

#[test]
fn the_earliest_deadline_counts_for_the_mesh_as_well() {
    let port = Port::reserve();
    let start = Instant::now();
    let absent = rank(port.identity(2, 3, AMPLE), |_, mut rendezvous| {
        rendezvous.exchange(b"127.0.0.1:1")?;
        rendezvous.exchange(b"")
    });
    let ranks = [(0, SHORT), (1, AMPLE)].map(|(number, timeout)| {
        rank(port.identity(number, 3, timeout), |identity, mut rendezvous| {
            connect_mesh(identity, &mut rendezvous)
        })
    });
    for rank in ranks {
        assert_eq!(missing(&error(rank)), [2]);
    }
    assert!(absent.join().unwrap().is_ok() && start.elapsed() < AMPLE / 2, "{:?}", start.elapsed());
}

#[test]
fn an_address_that_is_none_is_a_fault_of_the_rank_that_sent_it() {
    let port = Port::reserve();
    let garbled = rank(port.identity(1, 2, AMPLE), |_, mut rendezvous| {
        rendezvous.exchange(b"next door")?;
        rendezvous.exchange(b"")
    });
    let other =
        rank(port.identity(0, 2, AMPLE), |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous));
    let error = error(other);
    assert!(matches!(error, Error::Protocol { rank: Rank(1), .. }), "{error}");
    assert!(error.to_string().starts_with("rank 1 sent the address \"next door\""), "{error}");
    garbled.join().unwrap().unwrap();
}

#[test]
fn whoever_finds_something_else_on_the_masters_port_is_told() {
    type Program = fn(TcpStream);
    let programs: [(&str, Program); 2] = [
        ("says nothing", |mut stream| drop(stream.read(&mut [0; 4096]).and_then(|_| stream.read(&mut [0])))),
        ("speaks another language", |mut stream| {
            drop(std::io::Write::write_all(&mut stream, b"220 mail.example.org ESMTP\r\n"));
            drop(stream.read(&mut [0; 4096]));
        }),
    ];
    for (what, program) in programs {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| drop(thread::spawn(move || program(stream))))
        });
        let mut identity = Identity::new(Rank(1), 2, Master { host: "127.0.0.1".into(), port });
        identity.join_timeout = SHORT;
        let error = error(rank(identity, joined));
        assert_eq!(missing(&error), [0]);
        let expected = format!("127.0.0.1:{port} (something listens there that does not answer as a rank");
        assert!(error.to_string().contains(&expected), "a program that {what}: {error}");
    }
    let nobody = error(rank(Port::reserve().identity(1, 2, SHORT), joined)).to_string();
    assert!(!nobody.contains("something listens"), "{nobody}");
}

#[test]
fn rank_0_says_that_it_has_turned_somebody_away() {
    let port = Port::reserve();
    let root = rank(port.identity(0, 2, SHORT), joined);
    let mut stranger = port.identity(1, 2, AMPLE);
    stranger.key = JobKey::parse("another key than that of the job");
    assert!(matches!(error(rank(stranger, joined)), Error::Unauthenticated { .. }));
    let error = error(root);
    assert_eq!(missing(&error), [1]);
    assert!(error.to_string().contains("was turned away: it does not hold this job's key"), "{error}");
}
