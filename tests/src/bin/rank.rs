//! One rank of a test of several processes: `rank suite`, `rank dense` (every dense collective by every
//! algorithm), `rank long BYTES`, `rank exchange-for-ever`, `rank all-reduce-for-ever`, `rank lose-one` (rank
//! 2 kills itself in the middle of it), `rank tell`, `rank groups` (several groups, one after the other and
//! at once), `rank levels HOSTS` (dense collectives by hosts, of which each rank has the number at its
//! place), `rank late-join`, `rank late-call` and `rank late-handle` (rank 2 comes late); or their launcher:
//! `rank launch-for-ever`.
//!
//! A rank that runs forever writes a file, named by its rank, to the folder `READY_FOLDER` once it is in the
//! middle of its work. In the modes in which rank 2 comes late, every rank writes the file before it joins or
//! makes the call, and rank 2 waits for the file `go` there.
//!
//! Ends with status 0 if everything was right; otherwise prints why and ends with another status.
#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};
use std::time::Duration;

use brevity::collectives::sparse::{Coder, LeaderSum};
use brevity::collectives::{Error as Collective, Topology};
use brevity::{Error, GradientExchange, Group, Join, Policy, PutBack, ReduceOp, launch};
use brevity_tests::block_on;
use brevity_tests::dense::{check_all, check_placed};
use brevity_tests::long::check_long;
use brevity_tests::suite::{self, COUNTS};
use brevity_tests::{LOST_STATUS, TIMEOUT_STATUS, oracle};

/// After this many steps a rank has met all others more than once.
const STEPS_TO_BE_READY: u32 = 3;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("launch-for-ever") {
        return launch_for_ever();
    }
    launch::die_with_parent();
    brevity::log::to_stderr();
    if std::env::args().nth(1).as_deref() == Some("late-join") {
        let rank = std::env::var("BREVITY_RANK").ok().and_then(|rank| rank.parse().ok());
        come_late(rank.unwrap_or_else(|| panic!("no launcher has started this")));
    }
    if std::env::args().nth(1).as_deref() == Some("levels") {
        return levels();
    }
    let outcome =
        Group::from_env().map_err(Error::from).and_then(|group| match std::env::args().nth(1).as_deref() {
            Some("tell") => tell(&group),
            Some("groups") => several_groups(group),
            Some("suite") => run_suite(&group),
            Some("dense") => run_dense(&group),
            Some("long") => {
                let bytes = std::env::args().nth(2).and_then(|bytes| bytes.parse().ok());
                check_long(&group, bytes.unwrap_or_else(|| panic!("no number of bytes")))?;
                Ok(group.barrier()?)
            }
            Some("exchange-for-ever") => exchange(&group, None),
            Some("lose-one") => exchange(&group, Some(20)),
            Some("all-reduce-for-ever") => all_reduce_for_ever(&group),
            Some("late-join") => Ok(group.barrier()?),
            Some("late-call") => {
                come_late(group.rank());
                Ok(group.barrier()?)
            }
            Some("late-handle") => {
                come_late(group.rank());
                Ok(group.start_all_reduce(vec![1.0f32; 100], ReduceOp::Sum).wait().1?)
            }
            mode => panic!("no such mode: {mode:?}"),
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Collective(Collective::PeerLost { rank })) => {
            assert_eq!(rank.0, 2, "another rank than the one that was killed is named");
            ExitCode::from(LOST_STATUS)
        }
        Err(Error::Collective(Collective::Timeout { rank, .. })) => {
            assert_eq!(rank.0, 2, "another rank than the one that was stopped is named");
            ExitCode::from(TIMEOUT_STATUS)
        }
        // Another rank was the first to see the deadline pass.
        Err(Error::Collective(Collective::Aborted { .. })) => ExitCode::from(TIMEOUT_STATUS),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every dense collective by every algorithm, and a hierarchical sum, as a rank of the host that the
/// argument has at its place.
fn levels() -> ExitCode {
    let hosts = std::env::args().nth(2).unwrap_or_default();
    let hosts: Vec<u32> = hosts.split(',').filter_map(|host| host.parse().ok()).collect();
    let rank = std::env::var("BREVITY_RANK").ok().and_then(|rank| rank.parse::<usize>().ok());
    let rank = rank.unwrap_or_else(|| panic!("no launcher has started this"));
    let group = Join::from_env().and_then(|join| join.host_id(&format!("host-{}", hosts[rank])).join());
    let topology = Topology::of(&hosts);
    let checked = group.and_then(|group| {
        for count in [0, 1, 1000, 300_001] {
            block_on(check_placed(&group, topology, count, None))?;
            check_hierarchical(&group, &hosts, count)?;
        }
        Ok(group.statistics().bytes_shared)
    });
    let has_neighbours = hosts.iter().filter(|host| **host == hosts[rank]).count() > 1;
    match checked {
        Ok(shared) if (shared > 0) == has_neighbours => ExitCode::SUCCESS,
        other => {
            eprintln!("{other:?}");
            ExitCode::FAILURE
        }
    }
}

/// A hierarchical sum of integers: nothing is lost, and what is left is on the first rank of each host.
fn check_hierarchical(group: &Group, hosts: &[u32], count: usize) -> Result<(), Collective> {
    let (rank, by) = (group.rank() as usize, LeaderSum::Gtopk(PutBack::Conserving));
    let same = |numbers: &[u32]| -> Vec<_> { numbers.iter().map(|host| *host == numbers[rank]).collect() };
    assert_eq!(same(&group.host_numbers()), same(hosts), "hosts have other ranks");
    let mut left = oracle::vector(group.rank(), count);
    let sum = group.hierarchical_all_reduce(&mut left, count / 10, by, &mut Coder::pairs())?;
    let is_leader = !hosts[..rank].contains(&hosts[rank]);
    assert!(is_leader || left.iter().all(|left| *left == 0.0), "something is left on rank {rank}");
    group.all_reduce(&mut left, ReduceOp::Sum)?;
    let given: Vec<_> = (0..group.world_size()).map(|rank| oracle::vector(rank, count)).collect();
    assert!(oracle::sum(&[left, sum.to_dense()]) == oracle::sum(&given), "something is lost of {count}");
    Ok(())
}

/// Launches ranks, prints their process ids, and waits.
fn launch_for_ever() -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let job = launch::Launch::new(program, ["exchange-for-ever"]).ranks(3).spawn();
    let job = job.unwrap_or_else(|error| panic!("{error}"));
    let ids: Vec<String> = job.process_ids().iter().map(u32::to_string).collect();
    println!("{}", ids.join(" "));
    match job.wait() {
        Ok(_) => ExitCode::FAILURE,
        Err(error) => panic!("{error}"),
    }
}

/// Prints the transport, and the set of signals that this process has handlers for.
fn tell(group: &Group) -> brevity::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    println!("{} {}", group.transport(), caught.trim());
    Ok(group.barrier()?)
}

/// Makes a second group beside the first, a third when the first has just been dropped, and a fourth when no
/// other is left. All existing groups work.
fn several_groups(first: Group) -> brevity::Result<()> {
    let sum = |group: &Group| -> brevity::Result<()> {
        let mut data = vec![group.rank() as f32; 1000];
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        let size = group.world_size() as f32;
        assert!(data.iter().all(|&found| found == size * (size - 1.0) / 2.0), "a wrong sum");
        Ok(())
    };
    sum(&first)?;
    let second = Group::from_env()?;
    sum(&second)?;
    sum(&first)?;
    drop(first);
    let third = Group::from_env()?;
    sum(&third)?;
    sum(&second)?;
    drop((second, third));
    let fourth = Group::from_env()?;
    sum(&fourth)?;
    println!("rank {} of {} had four groups", fourth.rank(), fourth.world_size());
    Ok(fourth.barrier()?)
}

fn run_suite(group: &Group) -> brevity::Result<()> {
    let expected = std::env::var("EXPECTED_TRANSPORT").unwrap_or_default();
    assert_eq!(group.transport(), expected, "the ranks talk over another transport than was asked for");
    for count in COUNTS {
        group.run(suite::description(), async |call| suite::run(call, count).await);
    }
    for count in suite::HOST_COUNTS {
        suite::run_on_group(group, count);
    }
    // No rank leaves while another still needs it.
    Ok(group.barrier()?)
}

/// Vectors and blocks of a few lengths, and of one element less and more than a segment.
fn run_dense(group: &Group) -> brevity::Result<()> {
    let segment: Option<usize> = group
        .settings_in_force()
        .iter()
        .find(|(name, _)| *name == "segment")
        .and_then(|(_, bytes)| bytes.parse().ok());
    let segment = segment.unwrap_or_else(|| panic!("no segment")) / size_of::<f32>();
    for count in [0, 1, 7, 1000, segment - 1, segment + 1] {
        block_on(check_all(group, count, None))?;
    }
    Ok(group.barrier()?)
}

/// In chunks, so that a rank is stopped in the middle of a call.
fn all_reduce_for_ever(group: &Group) -> brevity::Result<()> {
    let mut data = vec![0.0f32; 1 << 20];
    for step in 0.. {
        if step == STEPS_TO_BE_READY {
            say_ready(group.rank());
        }
        group.all_reduce(&mut data, ReduceOp::Sum)?;
    }
    Ok(())
}

fn say_ready(rank: u32) {
    if let Some(folder) = std::env::var_os("READY_FOLDER") {
        let file = std::path::Path::new(&folder).join(rank.to_string());
        std::fs::write(file, "").unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Reports that this rank is ready; rank 2 waits until it may continue.
fn come_late(rank: u32) {
    say_ready(rank);
    let go = std::env::var_os("READY_FOLDER").map(|folder| std::path::Path::new(&folder).join("go"));
    while rank == 2 && go.as_ref().is_some_and(|go| !go.exists()) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Exchanges forever. If rank 2 is to kill itself after some steps, it first prints its process id.
fn exchange(group: &Group, last_step: Option<u32>) -> brevity::Result<()> {
    if last_step.is_some() {
        println!("process {}", std::process::id());
    }
    let mut exchange = GradientExchange::builder(group)
        .tensor("weight", [300, 200], Policy::gtopk(0.01))
        .tensor("projection", [300, 200], Policy::low_rank(2))
        .tensor("bias", [300], Policy::dense())
        .tensor("by hosts", [300, 200], Policy::gtopk(0.01).hierarchical())
        .build()?;
    for step in 0.. {
        if step == STEPS_TO_BE_READY {
            say_ready(group.rank());
        }
        let vector = |count| oracle::vector(group.rank() + step, count);
        exchange.average(&mut [vector(60_000), vector(60_000), vector(300), vector(60_000)])?;
        if group.rank() == 2 && Some(step + 1) == last_step {
            let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        }
    }
    Ok(())
}
