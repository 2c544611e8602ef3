//! Ranks that are processes, with an environment of another job's, which does not count.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::JobId;
use brevity_testing::ucx_is_here;
use brevity_tests::network::Network;

const RANK: &str = env!("CARGO_BIN_EXE_join");

const WORLD_SIZE: u32 = 3;

/// The limit for a job; generous, since it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(100);

/// Ends what is left of a job when its test fails.
struct Ranks(Vec<Child>);

impl Ranks {
    /// Waits for all, and returns what is wrong.
    fn end(mut self) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        let mut wrong = Vec::new();
        for (rank, mut child) in self.0.drain(..).enumerate() {
            while child.try_wait().unwrap().is_none() && Instant::now() < end {
                sleep(Duration::from_millis(5));
            }
            // One that has ended is none the worse for it.
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            if !output.status.success() {
                wrong.push(format!("rank {rank}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        wrong
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn rank(rank: u32, words: &[&str]) -> Command {
    let mut command = Command::new(RANK);
    command.args([rank.to_string(), WORLD_SIZE.to_string()]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    for (name, value) in [
        ("BREVITY_RANK", "7"),
        ("BREVITY_WORLD_SIZE", "9"),
        ("BREVITY_MASTER", "192.0.2.1:1"),
        ("BREVITY_KEY", "short"),
        ("BREVITY_TRANSPORT", "none"),
        ("BREVITY_SHARED_MEMORY", "maybe"),
        ("BREVITY_JOIN_TIMEOUT", "0.001"),
        ("BREVITY_TIMEOUT", "0.001"),
        ("BREVITY_INTERFACE", "nowhere0"),
        ("BREVITY_PORT_RANGE", "1-1"),
    ] {
        command.env(name, value);
    }
    command
}

/// Rank 0 writes its identifier to standard output, the others read it from standard input.
fn over_pipes(transport: &str) {
    let mut ranks = Ranks(vec![rank(0, &["-", transport]).stdout(Stdio::piped()).spawn().unwrap()]);
    let mut id = [0; 128];
    ranks.0[0].stdout.as_mut().unwrap().read_exact(&mut id).unwrap();
    for number in 1..WORLD_SIZE {
        let mut child = rank(number, &["-", transport]).stdin(Stdio::piped()).spawn().unwrap();
        let written = child.stdin.take().unwrap().write_all(&id);
        ranks.0.push(child);
        written.unwrap();
    }
    assert_eq!(ranks.end(), [""; 0]);
}

#[test]
fn an_identifier_over_a_pipe() {
    over_pipes("tcp");
    if ucx_is_here() {
        over_pipes("ucx");
    }
}

#[test]
fn an_identifier_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("id");
    let path = file.to_str().unwrap();
    let ranks = (0..WORLD_SIZE).rev().map(|number| rank(number, &[path, "tcp"]).spawn().unwrap());
    assert_eq!(Ranks(ranks.collect()).end(), [""; 0]);
    assert_eq!(fs::metadata(&file).unwrap().len(), 128);
}

/// The identifier holds the addresses of all of rank 0's interfaces, one of which leads nowhere.
#[test]
fn an_identifier_on_two_hosts() {
    let Some(network) = Network::new() else { return };
    for transport in ["tcp", "ucx"].into_iter().filter(|name| *name == "tcp" || ucx_is_here()) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("id");
        let ranks = (0..WORLD_SIZE).map(|number| {
            let mut command = network.command(number as usize % 2, RANK);
            command.args([number.to_string(), WORLD_SIZE.to_string()]).arg(&file).arg(transport);
            command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        });
        assert_eq!(Ranks(ranks.collect()).end(), [""; 0], "{transport}");
        let id = JobId::from_bytes(&fs::read(&file).unwrap()).unwrap();
        let shown = format!("{id:?}");
        let all = [network.address(0, 4), network.address(0, 6), network.dead_end(0).replace(":4000", "")];
        assert!(all.iter().all(|address| shown.contains(address)), "{shown}");
    }
}

/// The place to meet is the program's; the rest is the environment's.
#[test]
fn an_identifier_beside_an_environment() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("id");
    let ranks = (0..WORLD_SIZE).map(|number| {
        let mut command = Command::new(RANK);
        command.arg("env").arg(&file).stdin(Stdio::null()).stderr(Stdio::piped());
        command.env("BREVITY_RANK", number.to_string()).env("BREVITY_WORLD_SIZE", WORLD_SIZE.to_string());
        command.env("BREVITY_MASTER", "192.0.2.1:1").env("BREVITY_KEY", "correct horse battery staple");
        command.env("BREVITY_TRANSPORT", "tcp").env("BREVITY_JOIN_TIMEOUT", "60").spawn().unwrap()
    });
    assert_eq!(Ranks(ranks.collect()).end(), [""; 0]);
    assert_eq!(fs::read(&file).unwrap()[22..54], [0; 32], "the key is the environment's");
}

/// The store returns what it had of an earlier job, or a part of it.
#[test]
fn a_wrong_identifier_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("id");
    for (content, expected) in [
        (&[0; 128][..], "the job id is only zeros: has rank 0 stored it yet?"),
        (&[7; 128], "the job id is other data: are these the bytes that rank 0 has made?"),
        (&[7; 127], "the job id is 127 bytes, expected 128"),
    ] {
        write(&file, content);
        let ranks = Ranks(vec![rank(1, &[file.to_str().unwrap(), "tcp"]).spawn().unwrap()]);
        assert_eq!(ranks.end(), [format!("rank 0: {expected}\n")]);
    }
}

/// In a process of its own, whose threads and descriptors are counted.
#[test]
fn dropped_joins_leave_nothing_behind() {
    let mut command = Command::new(RANK);
    command.arg("drop").stdin(Stdio::null()).stderr(Stdio::piped());
    assert_eq!(Ranks(vec![command.spawn().unwrap()]).end(), [""; 0]);
}

fn write(file: &Path, content: &[u8]) {
    File::create(file).unwrap().write_all(content).unwrap();
}
