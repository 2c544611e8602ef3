//! Ranks that are killed, stopped, cut off or deaf, and groups that are aborted, on every wire between
//! processes.
//!
//! The requirement: every pending call, and every later one, fails before its deadline with the right error.

mod in_process;
mod namespaces;

use std::thread::sleep;
use std::time::Duration;

use brevity_testing::{Wire, on_every_wire_of_processes};
use brevity_tests::faults::{Ended, Job, Kind, Report};

const FAULT: &str = env!("CARGO_BIN_EXE_fault");

/// The deadline of calls whose peers are dead: an error must come long before.
const FAR: &str = "50";

/// The deadline of calls whose peers are silent: nothing else ends them.
const NEAR: Duration = Duration::from_secs(2);

/// What a call may take beyond its deadline, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(8);

const VICTIM: u32 = 2;

/// Small messages are sent eagerly; large ones by RTS.
const SMALL: &str = "100";
const LARGE: &str = "1000000";

on_every_wire_of_processes! {
    a_killed_rank_is_named_by_all_others => killed;
    a_killed_rank_is_named_by_calls_by_hosts => killed_between_hosts;
    a_killed_rank_is_named_by_barriers => killed_among_barriers;
    a_killed_rank_is_named_by_calls_that_a_thread_moves => killed_beside_threads;
    a_killed_rank_ends_receives_of_any_rank => killed_beside_receives;
    a_death_while_nobody_calls_is_found_by_the_next_call => killed_in_silence;
    an_owner_killed_under_puts_and_gets_is_named => killed_under_puts;
    a_stopped_rank_ends_calls_by_their_deadline => stopped;
    a_stopped_rank_ends_barriers_by_their_deadline => stopped_among_barriers;
    the_names_lead_to_a_rank_that_was_stopped_between_calls => stopped_in_silence;
    a_peer_that_never_reads_costs_the_sender_no_memory => deaf;
    an_abort_ends_all_pending_and_later_calls_on_all_ranks => aborted;
}

fn survivors(job: &Job) -> Vec<(u32, Report)> {
    (0..job.ranks().len() as u32)
        .filter(|rank| *rank != VICTIM)
        .map(|rank| (rank, job.report(rank)))
        .collect()
}

/// The pending call and the next one name the lost rank.
fn assert_lost(job: &Job) {
    for (rank, report) in survivors(job) {
        for ended in [report.call, report.later] {
            let is_right = matches!(ended, Some(Ended { kind: Kind::Lost, rank: VICTIM, .. }));
            assert!(is_right, "rank {rank}: {report:?}");
        }
    }
}

fn killed(wire: Wire) {
    for elements in [SMALL, LARGE] {
        let job = Job::launch(FAULT, &["reduce", elements], 4, wire, &[("BREVITY_TIMEOUT", FAR)]);
        job.await_ready();
        // In the middle of one of many calls.
        sleep(Duration::from_millis(100));
        job.ranks()[VICTIM as usize].signal("KILL");
        assert_lost(&job);
    }
}

fn killed_among_barriers(wire: Wire) {
    let job = Job::launch(FAULT, &["barrier"], 4, wire, &[("BREVITY_TIMEOUT", FAR)]);
    job.await_ready();
    sleep(Duration::from_millis(100));
    job.ranks()[VICTIM as usize].signal("KILL");
    assert_lost(&job);
}

/// Ranks of its host wait at the slots, the other host for messages.
fn killed_between_hosts(wire: Wire) {
    for elements in [SMALL, LARGE] {
        let job = Job::launch(FAULT, &["hosts", elements], 4, wire, &[("BREVITY_TIMEOUT", FAR)]);
        job.await_ready();
        // In the middle of one of many calls.
        sleep(Duration::from_millis(100));
        job.ranks()[VICTIM as usize].signal("KILL");
        assert_lost(&job);
    }
}

/// No operation of the transport waits for the rank.
fn killed_beside_receives(wire: Wire) {
    let job = Job::launch(FAULT, &["mail"], 4, wire, &[("BREVITY_TIMEOUT", FAR)]);
    job.await_ready();
    // The receives sleep.
    sleep(Duration::from_millis(100));
    job.ranks()[VICTIM as usize].signal("KILL");
    for (rank, report) in survivors(&job) {
        for ended in [report.call, report.pending, report.later] {
            let is_right = matches!(ended, Some(Ended { kind: Kind::Lost, rank: VICTIM, .. }));
            assert!(is_right, "rank {rank}: {report:?}");
        }
    }
}

/// No thread of the application polls the engine.
fn killed_beside_threads(wire: Wire) {
    for elements in [SMALL, LARGE] {
        killed_beside_threads_under(wire, (4, elements), Duration::from_millis(100));
    }
}

/// Survivors read large messages from the memory of the rank that dies; about every second death happens
/// during a read.
#[test]
fn deaths_under_large_messages_over_ucx_end_nobody_else() {
    if Wire::UcxShared.is_here() {
        for round in 0..3 {
            killed_beside_threads_under(
                Wire::UcxShared,
                (3, "8000000"),
                Duration::from_millis(50 + 17 * round),
            );
        }
    }
}

fn killed_beside_threads_under(wire: Wire, (ranks, elements): (u32, &str), delay: Duration) {
    let environment = [("BREVITY_TIMEOUT", FAR), ("BREVITY_PROGRESS_THREAD", "1")];
    let job = Job::launch(FAULT, &["exchange", elements], ranks, wire, &environment);
    job.await_ready();
    sleep(delay);
    job.ranks()[VICTIM as usize].signal("KILL");
    for (rank, report) in survivors(&job) {
        for ended in [report.call, report.pending, report.later] {
            let is_right = matches!(ended, Some(Ended { kind: Kind::Lost, rank: VICTIM, .. }));
            assert!(is_right, "rank {rank}: {report:?}");
        }
    }
}

/// A rank puts into the memory of a rank that is killed, and gets from it.
fn killed_under_puts(wire: Wire) {
    let job = Job::launch(env!("CARGO_BIN_EXE_put"), &[], 2, wire, &[]);
    job.await_ready();
    sleep(Duration::from_millis(50));
    job.ranks()[1].signal("KILL");
    let report = job.report(0);
    for ended in [report.call, report.later] {
        assert!(matches!(ended, Some(Ended { kind: Kind::Lost, rank: 1, .. })), "{report:?}");
    }
}

fn killed_in_silence(wire: Wire) {
    let job = Job::launch(FAULT, &["quiet", SMALL], 4, wire, &[("BREVITY_TIMEOUT", FAR)]);
    job.await_ready();
    job.ranks()[VICTIM as usize].signal("KILL");
    job.until("the killed rank lives", || !job.ranks()[VICTIM as usize].is_running());
    sleep(Duration::from_millis(200));
    job.go();
    assert_lost(&job);
}

/// Calls end by the deadline of the first one, and each names the rank it waited for: the names lead to the
/// stopped rank.
///
/// UCX's own shared memory is an exception: one queue of a rank receives from all others, and nothing is
/// delivered behind a slot that was reserved and not yet written. Survivors may then wait for each other.
fn stopped(wire: Wire) {
    for elements in [SMALL, LARGE] {
        let job = reducing(wire, "reduce", elements);
        job.ranks()[VICTIM as usize].signal("STOP");
        assert_timeouts(&job, wire != Wire::UcxShared);
    }
}

fn stopped_among_barriers(wire: Wire) {
    let job = reducing(wire, "barrier", SMALL);
    job.ranks()[VICTIM as usize].signal("STOP");
    assert_timeouts(&job, wire != Wire::UcxShared);
}

/// As above, for a rank that is not in any call.
fn stopped_in_silence(wire: Wire) {
    let job = reducing(wire, "quiet", SMALL);
    job.ranks()[VICTIM as usize].signal("STOP");
    job.until("the rank is not stopped", || job.ranks()[VICTIM as usize].is_stopped());
    job.go();
    assert_timeouts(&job, true);
}

/// Three ranks whose calls reach their deadlines soon.
fn reducing(wire: Wire, mode: &str, elements: &str) -> Job {
    let seconds = NEAR.as_secs().to_string();
    let job = Job::launch(FAULT, &[mode, elements], 3, wire, &[("BREVITY_TIMEOUT", &seconds)]);
    job.await_ready();
    job
}

fn assert_timeouts(job: &Job, do_names_lead: bool) {
    let reports = survivors(job);
    for (rank, report) in &reports {
        let ended = report.call.unwrap();
        assert!(ended.kind == Kind::Timeout && ended.rank != *rank, "rank {rank}: {report:?}");
        assert!(ended.after < NEAR + SLACK, "rank {rank}: {report:?}");
        assert!(matches!(report.later, Some(Ended { kind: Kind::Aborted, .. })), "rank {rank}: {report:?}");
    }
    let is_named = reports.iter().any(|(_, report)| report.call.unwrap().rank == VICTIM);
    assert!(is_named || !do_names_lead, "{reports:?}");
    assert!(job.ranks()[VICTIM as usize].is_stopped());
}

/// The largest memory of a sender whose peer reads nothing: the program, and the data in transit.
const SENDER_KIB: u64 = 256 << 10;

fn deaf(wire: Wire) {
    for elements in [SMALL, "30000", LARGE] {
        let seconds = NEAR.as_secs().to_string();
        let job = Job::launch(FAULT, &["flood", elements], 2, wire, &[("BREVITY_TIMEOUT", &seconds)]);
        job.await_ready();
        let report = job.report(0);
        let ended = report.call.unwrap();
        assert!(matches!(ended, Ended { kind: Kind::Timeout, rank: 1, .. }), "{report:?}");
        assert!(ended.after < NEAR + SLACK, "{report:?}");
        println!("{wire:?}, {elements} elements: {} KiB", report.peak_kib);
        assert!(report.peak_kib < SENDER_KIB, "{elements} elements: {report:?}");
        let receiver = job.ranks()[1].peak_kib();
        assert!(
            receiver > 0 && receiver < SENDER_KIB,
            "{elements} elements: the receiver has {receiver} KiB"
        );
    }
}

fn aborted(wire: Wire) {
    let job = Job::launch(FAULT, &["abort"], 4, wire, &[("BREVITY_TIMEOUT", FAR)]);
    job.await_ready();
    sleep(Duration::from_millis(100));
    job.go();
    for rank in 0..4 {
        let report = job.report(rank);
        for ended in [report.call, report.pending, report.later] {
            assert!(
                matches!(ended, Some(Ended { kind: Kind::Aborted, rank: 1, .. })),
                "rank {rank}: {report:?}"
            );
        }
    }
}
