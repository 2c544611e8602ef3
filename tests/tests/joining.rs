//! Joining without an environment: by an address, by rank 0's identifier, through an all-gather of the
//! program's own, and awaited. Ranks are threads here, and processes in `joining/processes.rs`.

mod awaited;
mod gathered;
mod planned;
mod processes;
mod settings;

use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use brevity::collectives::{Error, Result};
use brevity::transport::Error as Transport;
use brevity::transport::bootstrap::Choice;
use brevity::{Group, JobId, Join, ReduceOp};
use brevity_testing::ucx_is_here;
use brevity_testing::worlds::reserved_port;

/// Deadlines of joins that should succeed: only a hang reaches them.
const AMPLE: Duration = Duration::from_secs(60);

/// Deadlines of joins that can't succeed.
const SHORT: Duration = Duration::from_millis(1500);

const KEY: &str = "correct horse battery staple";

/// Runs `body` as each of these ranks, in threads that must end in time.
fn as_ranks<R: Send + 'static>(
    ranks: impl IntoIterator<Item = u32>,
    body: impl Fn(u32) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let (sender, results) = mpsc::channel();
    let ranks: Vec<u32> = ranks.into_iter().collect();
    for (place, &rank) in ranks.iter().enumerate() {
        let (body, sender) = (body.clone(), sender.clone());
        thread::spawn(move || sender.send((place, body(rank))));
    }
    drop(sender);
    let mut all: Vec<(usize, R)> = ranks
        .iter()
        .map(|_| results.recv_timeout(2 * AMPLE).unwrap_or_else(|_| panic!("a rank hangs or has panicked")))
        .collect();
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Makes a call on the group, and waits for all.
fn works(group: &Group) {
    let mut sum = [u64::from(group.rank()), 1];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let size = u64::from(group.world_size());
    assert_eq!(sum, [size * (size - 1) / 2, size]);
    group.barrier().unwrap();
}

fn loopback_id() -> JobId {
    Join::new(0, 2).interface("127.0.0.1").make_id().unwrap()
}

fn transport_error<T>(result: Result<T>) -> Transport {
    match result {
        Err(Error::Transport(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the rank has joined"),
    }
}

fn missing(error: &Transport) -> Vec<u32> {
    match error {
        Transport::MissingRanks { missing, .. } => missing.iter().map(|rank| rank.0).collect(),
        other => panic!("{other}"),
    }
}

/// The form of identifiers is public: the port is there.
fn port_of(id: &JobId) -> u16 {
    let bytes = id.to_bytes();
    u16::from_le_bytes([bytes[12], bytes[13]])
}

#[test]
fn by_an_identifier() {
    for world_size in [1, 2, 3, 5] {
        let bytes = JobId::new().unwrap().to_bytes();
        as_ranks(0..world_size, move |rank| {
            let group = Join::new(rank, world_size).id(JobId::from_bytes(&bytes).unwrap()).join().unwrap();
            assert_eq!((group.rank(), group.world_size()), (rank, world_size));
            works(&group);
        });
    }
}

#[test]
fn over_the_transport_that_is_asked_for() {
    let mut kinds = vec![("tcp", Choice::Tcp, true), ("tcp", Choice::Tcp, false)];
    if ucx_is_here() {
        kinds.extend([("ucx", Choice::Ucx, true), ("ucx", Choice::Ucx, false)]);
    }
    for (name, choice, is_shared) in kinds {
        let id = loopback_id();
        let groups = as_ranks(0..3, move |rank| {
            let join = Join::new(rank, 3).id(id.clone()).transport(choice).shared_memory(is_shared);
            let join = join.encrypt(choice == Choice::Tcp && !is_shared);
            join.join().inspect(works).unwrap()
        });
        for group in &groups {
            assert_eq!(group.transport(), name);
        }
    }
}

#[test]
fn by_an_address_with_a_key_or_a_name() {
    for with_key in [true, false] {
        let (_reserved, port) = reserved_port();
        as_ranks(0..3, move |rank| {
            let join = Join::new(rank, 3).address(&format!("127.0.0.1:{port}")).port_reserved(true);
            let join = if with_key { join.key(KEY).encrypt(true) } else { join.job("one of this test") };
            works(&join.join().unwrap());
        });
    }
}

#[test]
fn over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: no IPv6");
        return;
    }
    let id = Join::new(0, 3).interface("::1").make_id().unwrap();
    assert!(format!("{id:?}").contains("[::1]"), "{id:?}");
    as_ranks(0..3, move |rank| works(&Join::new(rank, 3).id(id.clone()).join().unwrap()));
    // Another identifier keeps its port from others.
    let port = port_of(&Join::new(0, 2).interface("::1").make_id().unwrap());
    as_ranks(0..2, move |rank| {
        let join = Join::new(rank, 2).address(&format!("[::1]:{port}")).port_reserved(true);
        works(&join.key(KEY).join().unwrap());
    });
}

#[test]
fn several_jobs_at_once_in_one_process() {
    let transports =
        [Some([Choice::Tcp; 3]), ucx_is_here().then_some([Choice::Ucx, Choice::Tcp, Choice::Ucx])];
    transports.into_iter().flatten().for_each(three_jobs);
}

/// Two jobs by identifiers and one by an address, all joined at the same time; then every thread is one rank
/// of each.
fn three_jobs(transports: [Choice; 3]) {
    let (_reserved, port) = reserved_port();
    let ids = [JobId::new().unwrap(), loopback_id()];
    let groups = as_ranks(0..9, move |place| {
        let (job, rank) = (place as usize % 3, (place / 3 + place) % 3);
        let join = Join::new(rank, 3).transport(transports[job]);
        let join = match ids.get(job) {
            Some(id) => join.id(id.clone()),
            None => join.address(&format!("127.0.0.1:{port}")).port_reserved(true).key(KEY),
        };
        (job, join.join().inspect(works).unwrap())
    });
    let mut of_rank: [Vec<(usize, Group)>; 3] = Default::default();
    for (job, group) in groups {
        of_rank[group.rank() as usize].push((job, group));
    }
    of_rank.iter_mut().for_each(|groups| groups.sort_by_key(|(job, _)| *job));
    as_ranks(0..3, move |rank| {
        for _ in 0..10 {
            of_rank[rank as usize].iter().for_each(|(_, group)| works(group));
        }
    });
}

#[test]
fn missing_ranks_are_named() {
    let id = loopback_id();
    let errors = as_ranks([0, 2], move |rank| {
        transport_error(Join::new(rank, 4).id(id.clone()).timeout(SHORT).join())
    });
    for error in errors {
        assert_eq!(missing(&error), [1, 3], "{error}");
    }
    let without_root = JobId::new().unwrap();
    let error = transport_error(Join::new(1, 2).id(without_root).timeout(SHORT).join());
    assert_eq!(missing(&error), [0], "{error}");
}

/// The second process of a rank is turned away, and the job comes together. The last rank joins after that.
#[test]
fn two_ranks_of_one_number() {
    let id = loopback_id();
    let (sender, turned_away) = mpsc::channel();
    let turned_away = Arc::new(Mutex::new(turned_away));
    let joined = as_ranks([0, 1, 1, 2], move |rank| {
        if rank == 2 {
            turned_away.lock().unwrap().recv().unwrap();
        }
        let joined = Join::new(rank, 3).id(id.clone()).join().inspect(works);
        if joined.is_err() {
            sender.send(()).unwrap();
        }
        joined
    });
    let (joined, refused): (Vec<_>, Vec<_>) = joined.into_iter().partition(Result::is_ok);
    assert_eq!((joined.len(), refused.len()), (3, 1));
    let error = refused.into_iter().map(transport_error).next().unwrap();
    assert!(error.to_string().starts_with("processes of one rank: rank 1 has"), "{error}");
}

/// A rank of another job at the port of this one learns that it is wrong, and this job comes together.
#[test]
fn a_stranger_does_not_disturb() {
    let id = loopback_id();
    let port = port_of(&id);
    let (sender, turned_away) = mpsc::channel();
    let turned_away = Arc::new(Mutex::new(turned_away));
    as_ranks([0, 1, 9], move |rank| {
        if rank == 9 {
            let stranger = Join::new(1, 2).address(&format!("127.0.0.1:{port}")).key(KEY);
            let error = transport_error(stranger.join());
            assert!(matches!(error, Transport::Unauthenticated { .. }), "{error}");
            sender.send(()).unwrap();
            return;
        }
        if rank == 1 {
            turned_away.lock().unwrap().recv().unwrap();
        }
        works(&Join::new(rank, 2).id(id.clone()).join().unwrap());
    });
}

#[test]
fn a_failed_join_may_be_tried_again_and_a_group_has_an_identifier_of_its_own() {
    let id = loopback_id();
    let join = |rank: u32| Join::new(rank, 2).id(id.clone());
    assert_eq!(missing(&transport_error(join(0).timeout(SHORT).join())), [1]);
    let again = id.clone();
    as_ranks(0..2, move |rank| works(&Join::new(rank, 2).id(again.clone()).join().unwrap()));
    for used in [id.clone(), JobId::from_bytes(&id.to_bytes()).unwrap()] {
        let error = transport_error(Join::new(0, 2).id(used).join());
        assert!(matches!(error, Transport::JobId { .. }), "{error}");
        assert!(error.to_string().contains("rank 0 makes a new one for each group"), "{error}");
    }
}

/// With a key of the program's own, the identifier contains none: the store need not be trusted.
#[test]
fn a_key_of_ones_own_is_not_in_the_identifier() {
    let id = Join::new(0, 2).interface("127.0.0.1").key(KEY).make_id().unwrap();
    assert_eq!(id.to_bytes()[22..54], [0; 32]);
    let error = transport_error(Join::new(1, 2).id(id.clone()).join());
    assert!(error.to_string().starts_with("key is not set: expected the same key on all ranks"), "{error}");
    as_ranks(0..2, move |rank| works(&Join::new(rank, 2).id(id.clone()).key(KEY).join().unwrap()));
}
