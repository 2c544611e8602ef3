//! A server that is a process, is killed, and is started again alone: the workers take it back, it goes on
//! from what it has saved, and nothing is lost or doubled.

use std::fs;
use std::path::Path;

use brevity_testing::Wire;
use brevity_tests::faults::Returning;
use brevity_tests::pushes::{Record, check_mass};

use super::processes::{SERVE, counts, record};

/// Three workers, and the server.
const RANKS: u32 = 4;
const SERVER: u32 = 3;

/// How often it is killed.
const KILLS: u32 = 3;

/// Steps of each worker before each death, and after the last.
const STEPS: u32 = 10;

#[test]
fn over_tcp() {
    go_on(Wire::Tcp);
}

#[test]
fn over_tcp_and_shared_memory() {
    go_on(Wire::TcpShared);
}

#[test]
fn over_ucx_as_it_comes() {
    go_on(Wire::Ucx);
}

fn go_on(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let words = [folder.to_str().unwrap(), "again"].map(String::from);
    let mut ranks = Returning::start(SERVE, &words, RANKS, wire);
    for _ in 0..KILLS {
        await_steps(&ranks, folder);
        ranks.process(SERVER).signal("KILL");
        for worker in 0..SERVER {
            let lost = folder.join(format!("lost-{worker}"));
            ranks.job.until("a worker does not hear of the server's death", || lost.exists());
            let text = fs::read_to_string(&lost).unwrap();
            assert!(text.starts_with("3 0 "), "{text}");
            fs::remove_file(lost).unwrap();
        }
        ranks.restart(SERVER);
    }
    await_steps(&ranks, folder);
    fs::write(folder.join("stop"), "").unwrap();
    let model = folder.join("model");
    ranks.job.until("the server does not end", || model.exists());
    let bytes = fs::read(model).unwrap();
    let model: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let records: Vec<Record> = (0..SERVER as usize).map(|worker| record(folder, worker)).collect();
    check_mass(&model, 1, &records, &[]);
}

/// Waits until each worker has made more steps, from a saved model.
fn await_steps(ranks: &Returning, folder: &Path) {
    let begun = counts(folder, "steps");
    let state = folder.join(format!("state-{SERVER}"));
    ranks.job.until("workers do not step", || {
        let now = counts(folder, "steps");
        state.exists() && now.iter().zip(begun).all(|(now, begun)| *now >= begun + STEPS)
    });
}
