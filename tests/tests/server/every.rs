//! Processes that all serve and work: one is killed, and others go on with what was saved.

use std::fs;
use std::path::Path;

use brevity_testing::Wire;
use brevity_tests::faults::Job;
use brevity_tests::pushes::{Record, TOTAL, fits};

use super::processes::{SERVE, counts, record};

const RANKS: u32 = 3;

const VICTIM: usize = 1;

/// Steps of each rank before the death, and after it.
const STEPS: u32 = 20;

#[test]
fn over_tcp() {
    go_on(Wire::Tcp, RANKS);
}

#[test]
fn over_tcp_and_shared_memory() {
    go_on(Wire::TcpShared, RANKS);
}

#[test]
fn with_fewer_ranks() {
    go_on(Wire::Tcp, RANKS - 1);
}

/// The others hear of it within a second. Then so many ranks begin from all that was saved: nothing is lost,
/// and nothing doubled.
fn go_on(wire: Wire, later: u32) {
    if !wire.is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = start(folder, wire, RANKS);
    job.until("ranks do not step", || counts(folder, "steps").iter().all(|steps| *steps >= STEPS));
    job.ranks()[VICTIM].signal("KILL");
    for rank in [0, 2] {
        let lost = folder.join(format!("lost-{rank}"));
        job.until("a rank does not hear of the death", || lost.exists());
        let text = fs::read_to_string(&lost).unwrap();
        let [rank, shard, after] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!((rank, shard), ("1", "1"));
        assert!(after.parse::<u32>().unwrap() < 1000, "{after} ms");
    }
    drop(job);

    // It may have pushed once more than it has saved: that is applied on each of the other shards, or is not.
    let state = fs::read(folder.join(format!("state-{VICTIM}"))).unwrap();
    let behind = state.len() - Record::default().bytes().len();
    let last = Record::read(&state[behind..]).advanced(VICTIM as u32, 0.1, RANKS as usize).last();
    let job = start(folder, wire, later);
    let before = counts(folder, "steps");
    job.until("ranks do not go on", || {
        let after = counts(folder, "steps");
        (0..later as usize).all(|rank| after[rank] >= before[rank] + STEPS)
    });
    fs::write(folder.join("stop"), "").unwrap();
    let model = folder.join("model");
    job.until("ranks do not end", || model.exists());
    let bytes = fs::read(model).unwrap();
    let model: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(model.len(), TOTAL);
    let records: Vec<Record> = (0..later as usize).map(|rank| record(folder, rank)).collect();
    let fits = fits(&model, RANKS as usize, &records, std::slice::from_ref(&last));
    assert!(fits, "{model:?} of {records:?} and perhaps {last:?}");
}

fn start(folder: &Path, wire: Wire, ranks: u32) -> Job {
    let timeout = [("BREVITY_TIMEOUT", "30")];
    let job = Job::launch(SERVE, &[folder.to_str().unwrap(), "every"], ranks, wire, &timeout);
    job.await_ready();
    job
}
