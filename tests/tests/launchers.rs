//! Ranks that other programs start: Open MPI's `mpirun`, MPICH's `mpiexec`, Slurm's `srun`, and one inside
//! another.
//!
//! `BREVITY_TEST_MPIRUN` and `BREVITY_TEST_MPIEXEC` name other programs than Debian's. A missing one is a
//! failure if `BREVITY_REQUIRE_LAUNCHERS=1`.

mod forwarded;
mod programs;
mod torchrun;
mod worlds_of_one;

use std::net::TcpListener;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity_testing::slurm::Cluster;
use brevity_testing::{Process, ucx_is_here};
use brevity_tests::LOST_STATUS;
use brevity_tests::command::run_within;
use programs::{MPIEXEC, MPIRUN, PATIENCE, RANK, clean};

/// Runs the suite of all collectives, whose results the ranks check by the oracle.
fn run_suite(command: &mut Command, world_size: u32) {
    run_suite_over("tcp", command, world_size);
}

fn run_suite_over(transport: &str, command: &mut Command, world_size: u32) {
    let expected = if world_size == 1 { "local" } else { transport };
    command
        .env("EXPECTED_TRANSPORT", expected)
        .env("BREVITY_TRANSPORT", transport)
        .env("BREVITY_TIMEOUT", "60");
    let ended = run_within(command, PATIENCE);
    assert!(ended.status.is_some_and(|status| status.success()), "{command:?}: {ended:?}");
}

fn every_collective(ranks: impl Fn(u32) -> Command) {
    for world_size in [1, 2, 4] {
        run_suite(ranks(world_size).args([RANK, "suite"]), world_size);
    }
}

#[test]
fn every_collective_under_mpirun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    every_collective(|world_size| mpirun.ranks(world_size));
}

#[test]
fn every_collective_under_mpiexec() {
    let Some(mpiexec) = MPIEXEC.found() else { return };
    every_collective(|world_size| mpiexec.ranks(world_size));
}

/// Two ranks, each of which makes several groups.
fn several_groups(mut command: Command) {
    let ended = run_within(command.args([RANK, "groups"]).env("BREVITY_TRANSPORT", "tcp"), PATIENCE);
    assert!(ended.status.is_some_and(|status| status.success()), "{ended:?}");
    for rank in [0, 1] {
        assert!(ended.stdout.contains(&format!("rank {rank} of 2 had four groups")), "{ended:?}");
    }
}

#[test]
fn several_groups_under_mpirun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    several_groups(mpirun.ranks(2));
}

/// The descriptor in `PMI_FD` serves one client.
#[test]
fn several_groups_under_mpiexec() {
    let Some(mpiexec) = MPIEXEC.found() else { return };
    several_groups(mpiexec.ranks(2));
}

/// Ranks that share memory, and ranks that send everything over UCX.
fn over_ucx(ranks: impl Fn(u32) -> Command) {
    for shared_memory in ["on", "off"] {
        let mut command = ranks(3);
        command.args([RANK, "suite"]).env("BREVITY_SHARED_MEMORY", shared_memory);
        run_suite_over("ucx", &mut command, 3);
    }
}

#[test]
fn every_collective_over_ucx_under_mpirun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    if ucx_is_here() {
        over_ucx(|world_size| mpirun.ranks(world_size));
    }
}

#[test]
fn every_collective_over_ucx_under_mpiexec() {
    let Some(mpiexec) = MPIEXEC.found() else { return };
    if ucx_is_here() {
        over_ucx(|world_size| mpiexec.ranks(world_size));
    }
}

/// Rank 2 of 4 kills itself in the middle of an exchange: the launcher ends all ranks with a status that says
/// so. If the launcher does not notice, the others end by themselves.
fn lose_one(ranks: impl Fn(u32) -> Command) {
    let run = |words: &[&str]| {
        let mut command = ranks(4);
        let ended = run_within(command.args(words).env("BREVITY_TRANSPORT", "tcp"), PATIENCE);
        let ranks = ended.stdout.lines().filter_map(|line| line.strip_prefix("process ")?.parse().ok());
        let ranks: Vec<u32> = ranks.collect();
        assert_eq!(ranks.len(), 4, "{ended:?}");
        // mpirun may end before the ranks that it has signalled.
        let deadline = Instant::now() + PATIENCE;
        while ranks.iter().any(|&rank| Process(rank).is_running()) {
            assert!(Instant::now() < deadline, "a rank is left: {ended:?}");
            sleep(Duration::from_millis(10));
        }
        println!("ended after {:?}", ended.took);
        ended
    };
    let ended = run(&[RANK, "lose-one"]);
    assert!(ended.status.is_some_and(|status| !status.success()), "{ended:?}");
    let ended = run(&["sh", "-c", &format!("{RANK} lose-one; echo status $?")]);
    assert!(ended.status.is_some_and(|status| status.success()), "{ended:?}");
    let count = |status: u8| ended.stdout.lines().filter(|&line| line == format!("status {status}")).count();
    assert_eq!((count(LOST_STATUS), count(128 + 9)), (3, 1), "{ended:?}");
}

#[test]
fn a_rank_that_dies_ends_the_job_under_mpirun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    lose_one(|world_size| mpirun.ranks(world_size));
}

#[test]
fn a_rank_that_dies_ends_the_job_under_mpiexec() {
    let Some(mpiexec) = MPIEXEC.found() else { return };
    lose_one(|world_size| mpiexec.ranks(world_size));
}

#[test]
fn a_missing_pmix_library_is_told_in_one_line_with_the_remedy() {
    let Some(mpirun) = MPIRUN.found() else { return };
    let mut command = mpirun.ranks(2);
    let ended =
        run_within(command.args([RANK, "suite"]).env("BREVITY_PMIX_LIB", "/nowhere/libpmix.so.2"), PATIENCE);
    assert!(ended.status.is_some_and(|status| !status.success()), "{ended:?}");
    let line = ended
        .stderr
        .lines()
        .find(|line| line.contains("/nowhere/libpmix.so.2"))
        .unwrap_or_else(|| panic!("{ended:?}"));
    for word in
        ["mpirun can't tell the ranks where to meet", "libpmix2", "BREVITY_PMIX_LIB", "BREVITY_MASTER"]
    {
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn a_descriptor_that_is_not_there_is_told_in_one_line_with_the_remedy() {
    let mut command = clean(Command::new(RANK));
    command.arg("suite").envs([("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "250")]);
    let ended = run_within(&mut command, PATIENCE);
    assert!(ended.status.is_some_and(|status| !status.success()), "{ended:?}");
    assert!(ended.stderr.contains("mpiexec can't tell the ranks where to meet"), "{ended:?}");
    assert!(ended.stderr.contains("BREVITY_MASTER") && ended.stderr.lines().count() == 1, "{ended:?}");
}

/// With an address given by the user, the launcher's store is not used: its library may be missing.
#[test]
fn an_own_address_and_key_count_under_mpirun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    let port = programs::free_port();
    let mut command = mpirun.ranks(2);
    command.env("BREVITY_MASTER", format!("127.0.0.1:{port}")).env("BREVITY_PMIX_LIB", "/nowhere");
    run_suite(command.args([RANK, "suite"]), 2);
    let mut command = mpirun.ranks(2);
    run_suite(command.args([RANK, "suite"]).env("BREVITY_KEY", "correct horse battery staple"), 2);
}

/// Ranks whose key differs from rank 0's are refused, whatever the launcher's store says.
#[test]
fn a_key_that_only_rank_0_has_is_named() {
    let Some(mpirun) = MPIRUN.found() else { return };
    let mut command = mpirun.ranks(1);
    command.args([
        "-x",
        "BREVITY_KEY=correct horse battery staple",
        RANK,
        "suite",
        ":",
        "-n",
        "1",
        RANK,
        "suite",
    ]);
    let ended = run_within(command.env("BREVITY_JOIN_TIMEOUT", "5"), PATIENCE);
    assert!(ended.status.is_some_and(|status| !status.success()), "{ended:?}");
    assert!(ended.stderr.contains("BREVITY_KEY is not set"), "{ended:?}");
}

/// An mpirun started by a rank of torchrun: the variables of both are set, and mpirun's apply.
#[test]
fn mpirun_inside_torchrun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    let mut command = mpirun.ranks(2);
    command.envs([
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ]);
    run_suite(command.args([RANK, "suite"]), 2);
}

/// A torchrun started by mpirun, imitated by a shell that sets torchrun's variables: torchrun's apply.
#[test]
fn torchrun_inside_mpirun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    let script = format!(
        "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none MASTER_ADDR=no.such.host \
            MASTER_PORT={}\n\
         RANK=0 {RANK} suite & RANK=1 {RANK} suite; status=$?; wait $! && exit $status",
        programs::free_port() - 1
    );
    // Rank 1 of mpirun has nothing to do.
    let mut command = mpirun.ranks(1);
    command.args(["sh", "-c", &script, ":", "-n", "1", "true"]);
    run_suite(&mut command, 2);
}

#[test]
fn ports_of_a_range_under_mpiexec() {
    let Some(mpiexec) = MPIEXEC.found() else { return };
    let first = 26_000 + (std::process::id() % 250) as u16 * 16;
    let mut command = mpiexec.ranks(2);
    command.env("BREVITY_PORT_RANGE", format!("{first}-{}", first + 15));
    run_suite(command.args([RANK, "suite"]), 2);
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().port();
    let mut command = mpiexec.ranks(2);
    command.args([RANK, "suite"]).env("BREVITY_PORT_RANGE", format!("{taken}-{taken}"));
    let ended = run_within(command.env("BREVITY_JOIN_TIMEOUT", "2"), PATIENCE);
    assert!(ended.status.is_some_and(|status| !status.success()), "{ended:?}");
    let told = format!("no port of BREVITY_PORT_RANGE={taken}-{taken} is free");
    assert!(ended.stderr.contains(&told), "{ended:?}");
}

/// Open MPI leaves variables in a process without a launcher: they do not make it a job.
#[test]
fn an_mpi_program_without_a_launcher_is_alone() {
    let mut command = clean(Command::new(RANK));
    command.arg("suite").envs([
        ("PMIX_RANK", "0"),
        ("PMIX_NAMESPACE", "254017537"),
        ("PMIX_SERVER_URI41", "254017536.0;tcp4://127.0.0.1:1"),
        ("OMPI_APP_CTX_NUM_PROCS", "1"),
        ("OMPI_MCA_ess", "singleton"),
    ]);
    run_suite(&mut command, 1);
}

/// Slurm without PMI, with PMI-1 and with PMIx: one cluster for all, since starting it takes a second.
#[test]
fn every_way_of_srun_and_sbatch() {
    let Some(cluster) = Cluster::start() else { return };
    for way in ["none", "pmi2", "pmix"] {
        let ranks = |world_size: u32| {
            let mut command = cluster.command("srun");
            command.arg(format!("--mpi={way}")).args(["-n", &world_size.to_string()]);
            command
        };
        every_collective(ranks);
        // The way of joining does not affect the transport.
        if way == "pmix" && ucx_is_here() {
            over_ucx(ranks);
        }
        several_groups(ranks(2));
        lose_one(ranks);
    }
    // A batch script has a task number and count, but is not a rank.
    let batch = |script: &str| {
        let mut command = cluster.command("sbatch");
        let output = cluster.path("batch.out");
        let arguments = ["--wait", "-n", "4", "-o", &output, "--wrap", script];
        run_suite(command.args(arguments), if script.contains("srun") { 4 } else { 1 });
    };
    batch(&format!("{RANK} suite"));
    batch(&format!("srun {RANK} suite"));
}
