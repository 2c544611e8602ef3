//! One rank of a host reports what is wrong there, and the job continues.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use brevity_testing::worlds::reserved_port;
use brevity_tests::command::{Ended, run_ranks, run_within};

const RANK: &str = env!("CARGO_BIN_EXE_rank");

/// Generous: it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often each rank prints something that contains `what`; all of them end successfully.
fn said(ranks: &[Ended], what: &str) -> Vec<usize> {
    assert!(ranks.iter().all(|ended| ended.status.is_some_and(|status| status.success())), "{ranks:?}");
    ranks.iter().map(|ended| ended.stderr.lines().filter(|line| line.contains(what)).count()).collect()
}

#[test]
fn a_key_that_others_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    fs::write(&path, "a key of this test alone").unwrap();
    for (mode, expected) in [(0o644, [1, 0, 0]), (0o600, [0; 3])] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let ranks = run_ranks(3, PATIENCE, |_| {
            let mut command = Command::new(RANK);
            command.arg("tell").env("BREVITY_TRANSPORT", "tcp").env("BREVITY_KEY_FILE", &path);
            command
        });
        assert_eq!(said(&ranks, "others can read the job's key in"), expected, "{ranks:?}");
    }
}

/// Each rank may have its own key file.
#[test]
fn keys_of_single_ranks_that_others_can_read() {
    let folder = tempfile::tempdir().unwrap();
    for (modes, expected) in [([0o600, 0o644, 0o600], [0, 1, 0]), ([0o640, 0o600, 0o644], [1, 0, 1])] {
        let ranks = run_ranks(3, PATIENCE, |rank| {
            let path = folder.path().join(format!("key {rank}"));
            fs::write(&path, "a key of this test alone").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(modes[rank as usize])).unwrap();
            let mut command = Command::new(RANK);
            command.arg("tell").env("BREVITY_TRANSPORT", "tcp").env("BREVITY_KEY_FILE", &path);
            command
        });
        assert_eq!(said(&ranks, "others can read the job's key in"), expected, "{ranks:?}");
    }
}

/// A launcher that counts the ranks of a host shows that others will come from elsewhere.
#[test]
fn a_rank_0_that_no_other_host_can_reach() {
    for (local_ranks, expected) in [("1", [1, 0]), ("2", [0, 0])] {
        let (_reserved, port) = reserved_port();
        let ranks = ["0", "1"].map(|rank| {
            let mut command = Command::new(RANK);
            command
                .arg("tell")
                .env("BREVITY_TRANSPORT", "tcp")
                .env("BREVITY_KEY", "a key of this test alone");
            command.env("BREVITY_MASTER", format!("127.0.0.1:{port}")).env("BREVITY_MASTER_RESERVED", "1");
            command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", local_ranks)]);
            std::thread::spawn(move || run_within(&mut command, PATIENCE))
        });
        let ranks = ranks.map(|rank| rank.join().unwrap());
        assert_eq!(said(&ranks, "rank 0 listens on loopback alone"), expected, "{ranks:?}");
    }
}

/// Without that count, rank 0 warns when no rank has come for a while.
#[test]
fn a_rank_0_on_loopback_for_which_nobody_comes() {
    let (_reserved, port) = reserved_port();
    let mut command = Command::new(RANK);
    command.arg("tell").env("BREVITY_JOB", "alone").env("BREVITY_JOIN_TIMEOUT", "8");
    command.env("BREVITY_MASTER", format!("127.0.0.1:{port}")).env("BREVITY_MASTER_RESERVED", "1");
    let ended = run_within(command.envs([("BREVITY_RANK", "0"), ("BREVITY_WORLD_SIZE", "2")]), PATIENCE);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        lines.len() == 2 && lines.iter().all(|line| line.contains("listens on loopback alone")),
        "{ended:?}"
    );
    assert!(lines[1].contains("rank 1 did not join within 8 s"), "{ended:?}");
}

/// If the launcher is not this library's, rank 0 warns.
#[test]
fn an_unknown_variable() {
    let ranks = run_ranks(3, PATIENCE, |_| {
        let mut command = Command::new(RANK);
        command.arg("groups").env("BREVITY_TRANSPORT", "tcp").env("BREVITY_TIMEOT", "3");
        command
    });
    let told = "unknown variables are ignored: BREVITY_TIMEOT (did you mean BREVITY_TIMEOUT?)";
    assert_eq!(said(&ranks, told), [1, 0, 0], "{ranks:?}");
}

/// Shared memory counts as a file: beyond the limit, the system would end the ranks by a signal.
#[test]
fn a_limit_of_file_sizes() {
    let ranks = run_ranks(3, PATIENCE, |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 100; exec \"$0\" tell", RANK]).env("BREVITY_TRANSPORT", "tcp");
        command
    });
    assert_eq!(said(&ranks, "the ranks of this host share no memory"), [1, 0, 0], "{ranks:?}");
    assert_eq!(said(&ranks, "ulimit -f"), [1, 0, 0], "{ranks:?}");
}

/// Ranks over tcp with a limit of open files.
fn with_few_files(ranks: u32, limit: u32) -> Vec<Ended> {
    run_ranks(ranks, PATIENCE, |_| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" tell"), RANK]);
        command.envs([("BREVITY_TRANSPORT", "tcp"), ("BREVITY_JOIN_TIMEOUT", "20")]);
        command
    })
}

/// Enough for connections, but not for shared memory as well.
#[test]
fn too_few_files_to_share_memory() {
    let ranks = with_few_files(12, 46);
    assert_eq!(said(&ranks, "the ranks of this host share no memory").iter().sum::<usize>(), 1, "{ranks:?}");
    assert_eq!(said(&ranks, "ulimit -n").iter().sum::<usize>(), 1, "{ranks:?}");
}

/// Not even enough for connections: each rank reports what is missing, and none reports that others could not
/// be reached.
#[test]
fn too_few_files_to_connect() {
    let ranks = with_few_files(12, 24);
    for ended in &ranks {
        assert!(ended.status.is_some_and(|status| !status.success()), "{ranks:?}");
        assert!(ended.stderr.contains("can't connect to 11 ranks: "), "{ranks:?}");
        assert!(ended.stderr.contains("24 are allowed (raise the limit with ulimit -n)"), "{ranks:?}");
        assert!(!ended.stderr.contains("did not join"), "{ranks:?}");
    }
}

/// All other ranks connect to rank 0.
#[test]
fn too_few_files_to_be_called() {
    let ranks = run_ranks(12, PATIENCE, |rank| {
        let mut command = Command::new("sh");
        let limit = if rank == 0 { "ulimit -n 12" } else { "true" };
        command.args(["-c", &format!("{limit}; exec \"$0\" tell"), RANK]);
        command.envs([("BREVITY_TRANSPORT", "tcp"), ("BREVITY_JOIN_TIMEOUT", "3")]);
        command
    });
    assert!(ranks.iter().all(|ended| ended.status.is_some_and(|status| !status.success())), "{ranks:?}");
    assert!(ranks[0].stderr.contains("can't be called by 11 ranks: "), "{ranks:?}");
    assert!(ranks[0].stderr.contains("ulimit -n"), "{ranks:?}");
}

/// If standard error can't be written to (a closed terminal, a full disk), the work continues.
#[test]
fn nobody_who_listens() {
    for level in ["trace", "loud"] {
        let ranks = run_ranks(2, PATIENCE, |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "exec \"$0\" tell 2>/dev/full", RANK]);
            command.envs([("BREVITY_TRANSPORT", "tcp"), ("BREVITY_LOG", level)]);
            command
        });
        assert!(
            ranks.iter().all(|ended| ended.status.is_some_and(|status| status.success())),
            "{level}: {ranks:?}"
        );
    }
}

/// What decides an algorithm is rank 0's. A rank that was given nothing of that kind has nothing to say.
#[test]
fn a_rank_with_other_settings_than_rank_0() {
    let own = [("BREVITY_ALGORITHM", "all-reduce:ring"), ("BREVITY_ANY_ORDER", "1")];
    for (odd, expected) in [(0, [0, 0, 0]), (1, [0, 1, 0])] {
        let ranks = run_ranks(3, PATIENCE, |rank| {
            let mut command = Command::new(RANK);
            command.arg("suite").envs([("BREVITY_TRANSPORT", "tcp"), ("EXPECTED_TRANSPORT", "tcp")]);
            if rank == odd {
                command.envs(own);
            }
            command
        });
        assert_eq!(said(&ranks, "the settings of rank 0 count"), expected, "{ranks:?}");
        let text = "rank 1 was given any_order true, but on rank 0 false; algorithm all-reduce:ring, but on \
                    rank 0 none";
        assert_eq!(said(&ranks, text), expected, "{ranks:?}");
    }
}
