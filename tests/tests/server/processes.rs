//! Workers and servers that are processes, and are killed or stopped.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use brevity_testing::Wire;
use brevity_tests::faults::Job;
use brevity_tests::pushes::{Record, TOTAL, fits};

pub(super) const SERVE: &str = env!("CARGO_BIN_EXE_serve");

/// Three workers, and the server.
const RANKS: u32 = 4;
const SERVER: usize = 3;

/// The worker that something is done to.
const VICTIM: usize = 1;

/// How long steps are counted.
const WINDOW: Duration = Duration::from_millis(600);

/// The longest time between two steps of a worker to which nothing is done, in milliseconds: other programs
/// may have the processors.
const CALM: u32 = 5000;

/// Steps of all workers before the server is killed.
const STEPS: u32 = 1000;

#[test]
fn over_tcp() {
    work(Wire::Tcp);
}

#[test]
fn over_tcp_and_shared_memory() {
    work(Wire::TcpShared);
}

#[test]
fn over_ucx_as_it_comes() {
    work(Wire::Ucx);
}

/// A worker is stopped, and goes on; it is killed. That leaves the others' rate as it was. Then the server is
/// killed, which the others hear of within a second; they go on with another one, which begins from what was
/// saved. In the end nothing is lost, and nothing doubled.
fn work(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = start(folder, wire);
    let rate = steps(folder, WINDOW);
    assert!(rate[0] > 10 && rate[2] > 10, "{rate:?}");
    for signal in ["STOP", "CONT", "KILL"] {
        job.ranks()[VICTIM].signal(signal);
        // Other programs may have had the processors for a while.
        let mut windows = (0..20).map(|_| steps(folder, WINDOW)).inspect(|now| {
            assert!(now[VICTIM] < 2 || signal == "CONT", "{signal}: {now:?}");
        });
        let has_rate = |now: [u32; 3]| [0, 2].iter().all(|worker| now[*worker] * 10 > rate[*worker] * 8);
        assert!(windows.any(has_rate), "{signal}: less than {rate:?} in each window");
    }
    job.until("workers do not go on", || counts(folder, "steps").iter().sum::<u32>() >= STEPS);
    let gaps = counts(folder, "gap");
    assert!([0, 2].iter().all(|worker| gaps[*worker] < CALM), "{gaps:?} ms between two steps");
    job.ranks()[SERVER].signal("KILL");
    for worker in [0, 2] {
        let lost = folder.join(format!("lost-{worker}"));
        job.until("a worker does not hear of the server's death", || lost.exists());
        let text = fs::read_to_string(&lost).unwrap();
        let [rank, shard, after] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!((rank, shard), ("3", "0"));
        assert!(after.parse::<u32>().unwrap() < 1000, "{after} ms");
    }
    drop(job);

    // The victim begins anew, and its residuals are lost with it: what it has pushed is in the model, or was
    // in flight.
    let dead = record(folder, VICTIM);
    for name in ["record", "steps", "state"] {
        let _ = fs::remove_file(folder.join(format!("{name}-{VICTIM}")));
    }
    let job = start(folder, wire);
    let rate = steps(folder, WINDOW);
    assert!(rate.iter().all(|steps| *steps > 10), "{rate:?}");
    fs::write(folder.join("stop"), "").unwrap();
    let model = folder.join("model");
    job.until("the server does not end", || model.exists());
    let bytes = fs::read(model).unwrap();
    let model: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(model.len(), TOTAL);
    let records = [0, 1, 2].map(|worker| record(folder, worker));
    // It may have been killed between a push and its record.
    let later = dead.advanced(VICTIM as u32, 0.1, 1);
    let fits = fits(&model, 1, &records, std::slice::from_ref(&dead)) || fits(&model, 1, &records, &[later]);
    assert!(fits, "{model:?} of {records:?} and perhaps {dead:?}");
}

fn start(folder: &Path, wire: Wire) -> Job {
    let timeout = [("BREVITY_TIMEOUT", "30")];
    let job = Job::launch(SERVE, &[folder.to_str().unwrap()], RANKS, wire, &timeout);
    job.await_ready();
    job
}

/// The steps of each worker in so long.
fn steps(folder: &Path, during: Duration) -> [u32; 3] {
    let before = counts(folder, "steps");
    sleep(during);
    let after = counts(folder, "steps");
    [0, 1, 2].map(|worker| after[worker] - before[worker])
}

/// A number that each worker has written.
pub(super) fn counts(folder: &Path, name: &str) -> [u32; 3] {
    [0, 1, 2].map(|worker| {
        let text = fs::read_to_string(folder.join(format!("{name}-{worker}"))).unwrap_or_default();
        text.parse::<u32>().unwrap_or_default()
    })
}

pub(super) fn record(folder: &Path, worker: usize) -> Record {
    Record::read(&fs::read(folder.join(format!("record-{worker}"))).unwrap())
}
