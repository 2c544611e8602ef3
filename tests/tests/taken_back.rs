//! Ranks that are killed while lost ones are taken back, and stopped ones, in jobs that start lost ranks
//! again as `brevity run --restart` does.

use std::fs;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use brevity::launch::{Ending, Launch, Outcome};
use brevity_testing::{Process, Wire};
use brevity_tests::faults::PATIENCE;

/// A running job, and the folder where its ranks say what they do.
struct Job {
    folder: tempfile::TempDir,
    world_size: u32,
    outcome: JoinHandle<Outcome>,
}

impl Job {
    fn launch(world_size: u32, wire: Wire, restarts: u32, environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let launch = Launch::new(env!("CARGO_BIN_EXE_back"), [folder.path()]);
        let mut launch = launch.ranks(world_size).transport(wire.choice()).restart(restarts).grace(PATIENCE);
        for (name, value) in wire.environment().iter().chain(environment) {
            launch = launch.env(*name, *value);
        }
        // Ranks die with the thread that starts them.
        let outcome = std::thread::spawn(move || launch.spawn().unwrap().wait().unwrap());
        Self { folder, world_size, outcome }
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.path().join(name)).ok()
    }

    fn process(&self, rank: u32) -> Option<Process> {
        Some(Process(self.read(&format!("process-{rank}"))?.parse().unwrap()))
    }

    fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(start.elapsed() < PATIENCE && !self.outcome.is_finished(), "{what}");
            sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the processes that run now have all made a call together.
    fn await_whole(&self) {
        self.until("the job does not get whole", || {
            let processes = (0..self.world_size).map(|rank| self.read(&format!("process-{rank}")));
            let all = processes.collect::<Option<Vec<_>>>()?.join(" ");
            let is_whole = |rank| self.read(&format!("whole-{rank}")).is_some_and(|whole| whole == all);
            (0..self.world_size).all(is_whole).then_some(())
        });
    }

    /// Waits until another process of this rank begins.
    fn await_next(&self, rank: u32, last: Process) {
        let is_next = |next: &Process| next.0 != last.0;
        self.until(&format!("rank {rank} does not come back"), || self.process(rank).filter(is_next));
    }

    /// Kills a rank; returns when it begins again.
    fn kill(&self, rank: u32) {
        let last = self.process(rank).unwrap();
        last.signal("KILL");
        self.await_next(rank, last);
    }

    /// Ends the job, of which all ranks are there; gives the number of restarts.
    fn end(self) -> u32 {
        fs::write(self.folder.path().join("end"), "").unwrap();
        let outcome = self.outcome.join().unwrap();
        assert!(outcome.endings.iter().all(|ending| *ending == Ending::Exited(0)), "{outcome:?}");
        outcome.restarts.iter().sum()
    }
}

/// The second victim dies so many milliseconds after the first one has begun to come back: before the others
/// have received it, while all join, or later.
const DELAYS: [u64; 5] = [0, 15, 40, 80, 150];

/// Rank 3 is lost, and the second rank while it is taken back: itself, another one, or the one that receives.
fn kill_another(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    // A quarter of it passes if one dies that was invited.
    let job = Job::launch(5, wire, 100, &[("BREVITY_JOIN_TIMEOUT", "20")]);
    let victims = [3, 1, 0];
    for (delay, second) in DELAYS.into_iter().zip(victims.into_iter().cycle()) {
        job.await_whole();
        job.kill(3);
        sleep(Duration::from_millis(delay));
        job.kill(second);
    }
    job.await_whole();
    let restarts = job.end();
    println!("{wire:?}: {restarts} restarts");
    assert!(restarts >= 2 * DELAYS.len() as u32, "{restarts}");
}

mod a_rank_that_dies_while_others_are_taken_back_is_taken_back_later {
    use super::*;

    #[test]
    fn over_tcp_and_shared_memory() {
        kill_another(Wire::TcpShared);
    }

    #[test]
    fn over_ucx_and_tcp() {
        kill_another(Wire::UcxTcp);
    }
}

/// A rank is stopped until the others have gone on without it, and then continued: it ends, is started again,
/// and is taken back.
fn stop(stopped: u32) {
    // Others may be out too, where the machine is busy.
    let job = Job::launch(4, Wire::TcpShared, 10, &[("BREVITY_TIMEOUT", "2")]);
    job.await_whole();
    let process = job.process(stopped).unwrap();
    process.signal("STOP");
    job.until("the others do not go on", || {
        let is_without = |rank| job.read(&format!("left-{rank}")).is_some();
        (0..4).any(|rank| rank != stopped && is_without(rank)).then_some(())
    });
    assert!(process.is_stopped());
    process.signal("CONT");
    job.await_next(stopped, process);
    job.await_whole();
    let restarts = job.end();
    assert!(restarts >= 1, "{restarts}");
}

#[test]
fn a_stopped_rank_ends_and_comes_back() {
    let jobs = [0, 2].map(|stopped| std::thread::spawn(move || stop(stopped)));
    jobs.into_iter().for_each(|job| job.join().unwrap());
}
