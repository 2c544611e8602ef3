//! Ranks that are killed and come back, on every wire between processes: the steps that they make, against a
//! serial reference, and files and memory of those that stay.
//!
//! Continuous integration kills a few; `ci/exhaustive.sh` kills a hundred (`BREVITY_CYCLES=100`). UCX's own
//! shared memory is left out: its queues may be stuck after a death (see `group_kills`).

use std::thread::sleep;
use std::time::Duration;

use brevity_testing::{Wire, on_every_wire_of_processes};
use brevity_tests::cycles::{Life, check};
use brevity_tests::faults::{Kind, Returning};

const WORLD_SIZE: u32 = 4;

/// The cycles after which files and memory must stay as they are, in a long run and in a short one.
const WARM: usize = 20;
const FIRST: usize = 2;

/// What one more cycle may leave behind.
const KIB_A_CYCLE: u64 = 64;

/// What is in use for a moment, as messages that are on their way.
const SLACK_KIB: u64 = 4096;

on_every_wire_of_processes! {
    the_killed_come_back => |wire| kill(wire, [1, 3]);
    rank_0_comes_back_too => |wire| kill(wire, [0, 2]);
}

fn cycles() -> u32 {
    std::env::var("BREVITY_CYCLES").map_or(4, |cycles| cycles.parse().unwrap())
}

/// Open files and resident KiB of a process.
type Use = (usize, u64);

fn await_all(ranks: &Returning, cycle: u32) {
    (0..WORLD_SIZE).for_each(|rank| ranks.job.await_on(rank, cycle));
}

/// What ranks use, without what they open for a moment.
fn uses(ranks: &Returning, of: &[u32]) -> Vec<Use> {
    let now = |rank: &u32| (ranks.process(*rank).descriptors(), ranks.process(*rank).resident_kib());
    let mut least: Vec<Use> = of.iter().map(now).collect();
    for _ in 1..3 {
        sleep(Duration::from_millis(2));
        for (least, now) in least.iter_mut().zip(of.iter().map(now)) {
            *least = (least.0.min(now.0), least.1.min(now.1));
        }
    }
    least
}

/// What all processes have written.
fn lives(ranks: &Returning) -> Vec<Life> {
    let of = move |rank: u32| {
        let incarnations = 0..=ranks.incarnation(rank);
        incarnations.map(move |number| Life::read(rank, &ranks.job.notes(&format!("life-{number}"), rank)))
    };
    (0..WORLD_SIZE).flat_map(of).collect()
}

/// Victims die in turn, one in each cycle, and come back.
fn kill(wire: Wire, victims: [u32; 2]) {
    if wire == Wire::UcxShared {
        return;
    }
    let cycles = cycles();
    let words: Vec<String> = [cycles].iter().chain(&victims).map(u32::to_string).collect();
    let mut ranks = Returning::start(env!("CARGO_BIN_EXE_grow"), &words, WORLD_SIZE, wire);
    await_all(&ranks, 0);
    let stay: Vec<u32> = (0..WORLD_SIZE).filter(|rank| !victims.contains(rank)).collect();
    let mut used = vec![uses(&ranks, &stay)];
    for (cycle, victim) in (1..=cycles).zip(victims.iter().cycle()) {
        ranks.job.tell(&format!("die-{cycle}"));
        ranks.restart(*victim);
        await_all(&ranks, cycle);
        used.push(uses(&ranks, &stay));
    }
    ranks.job.go();
    for rank in 0..WORLD_SIZE {
        let report = ranks.job.report(rank);
        let is_whole = report.others.iter().all(|(_, on)| (on.kind, on.rank) == (Kind::On, WORLD_SIZE));
        assert!(is_whole && report.later.is_none(), "{report:?}");
    }
    let deaths = check(&lives(&ranks));
    println!("{wire:?}, {victims:?}: {deaths:?}");
    assert_eq!(deaths.within + deaths.at_the_end + deaths.between, cycles);
    assert!(cycles < WARM as u32 || deaths.within > 0, "nobody has died within a step");
    for (place, rank) in stay.iter().enumerate() {
        let of_rank: Vec<Use> = used.iter().map(|used| used[place]).collect();
        println!("{wire:?}: files and KiB of rank {rank} after each cycle: {of_rank:?}");
        check_uses(&of_rank);
    }
}

/// Checks what a rank that stays uses after each cycle. UCX makes some connections only when they are needed.
fn check_uses(uses: &[Use]) {
    let last = uses.len() - 1;
    let is_long = last > WARM;
    let (warm, later) = if is_long { (WARM, 0) } else { (FIRST, 2) };
    let files = uses[..=warm].iter().map(|used| used.0).max().unwrap() + later;
    for (cycle, used) in uses.iter().enumerate().skip(warm + 1) {
        // What was open for a moment is not open after the next cycle too.
        let open = uses.get(cycle + 1).map_or(used.0, |next| next.0.min(used.0));
        assert!(open <= files, "{open} files after cycle {cycle}: {uses:?}");
        let more = KIB_A_CYCLE * (cycle - warm) as u64;
        let slack = if cycle == last && is_long { 0 } else { SLACK_KIB };
        assert!(used.1 <= uses[warm].1 + more + slack, "{} KiB after cycle {cycle}: {uses:?}", used.1);
    }
}
