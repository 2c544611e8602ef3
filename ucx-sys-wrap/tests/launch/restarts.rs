//! Lost ranks that are started again.

use std::fs::read_to_string;

use super::signals::{GO_ON, Script, stands_still};
use super::*;

/// How often this program starts ranks again where it is a launcher, if it does.
const RESTARTS: &str = "LAUNCH_TEST_RESTARTS";

/// A script's ranks note each start.
const NOTE: &str = "echo $$ ${BREVITY_INCARNATION-first} >> $FOLDER/starts.$BREVITY_RANK";

/// The launch, with as many restarts as this program was told.
pub fn wanted(launch: Launch) -> Launch {
    match std::env::var(RESTARTS) {
        Ok(times) => launch.restart(times.parse().unwrap()),
        Err(_) => launch,
    }
}

/// A launcher that starts ranks again, of a script whose ranks note each start.
fn restarting(script: &str) -> Script {
    Script::start(&format!("export {RESTARTS}=100;"), script)
}

/// The processes that a rank of a script has had, once there are so many.
fn processes_of(script: &Script, rank: u32, count: usize) -> Vec<Process> {
    let starts = || script.read(&format!("starts.{rank}"));
    await_that("a rank is not started again", || starts().lines().count() >= count);
    starts().lines().map(|line| Process(line.split(' ').next().unwrap().parse().unwrap())).collect()
}

#[test]
fn a_lost_rank_gets_its_environment_again_and_the_number_of_the_restart() {
    let (_folder, path) = folder();
    let script = format!(
        "echo ${{BREVITY_INCARNATION-first}} >> {path}/$BREVITY_RANK; \
         env | grep ^BREVITY_ | grep -v INCARNATION | sort > {path}/$BREVITY_RANK.$BREVITY_INCARNATION; \
         if [ $BREVITY_RANK != 1 ]; then until [ -e {path}/back ]; do sleep 0.01; done; exit 0; fi; \
         case $BREVITY_INCARNATION in 1) exit 7;; 2) touch {path}/back;; *) kill -9 $$;; esac"
    );
    // What a first process inherits is not its own.
    let outcome = outcome(shell(3, &script).restart(5).env("BREVITY_INCARNATION", "9"));
    assert_eq!((outcome.endings.as_slice(), outcome.first_failure), (&[Ending::Exited(0); 3][..], None));
    assert_eq!((outcome.restarts.as_slice(), outcome.exit_status()), (&[0, 2, 0][..], 0));
    assert_eq!(outcome.report().as_deref(), Some("rank 1 ended with status 0 after 2 restarts"));
    let read = |name: &str| read_to_string(format!("{path}/{name}")).unwrap();
    assert_eq!(["0", "1", "2"].map(read), ["first\n", "first\n1\n2\n", "first\n"]);
    let before = read("1.");
    assert!(before.contains("BREVITY_KEY=") && before.contains("BREVITY_MASTER_RESERVED=1"), "{before}");
    assert_eq!([read("1.1"), read("1.2")], [before.clone(), before]);
}

#[test]
fn a_job_whose_every_rank_dies_has_its_number_of_starts_and_fails() {
    let (_folder, path) = folder();
    for (restarts, told) in
        [(0, ""), (1, "; one lost rank was started again"), (4, "; lost ranks were started again 4 times")]
    {
        let _ = std::fs::remove_file(format!("{path}/starts"));
        let outcome = outcome(shell(3, &format!("echo >> {path}/starts; exit 7")).restart(restarts));
        assert_eq!(outcome.endings, [Ending::Exited(7); 3]);
        assert_eq!(outcome.restarts.iter().sum::<u32>(), restarts);
        let starts = read_to_string(format!("{path}/starts")).unwrap();
        assert_eq!(starts.lines().count() as u32, 3 + restarts);
        let first = outcome.first_failure.unwrap();
        let report = format!("rank {first} ended with status 7{told}");
        assert_eq!((outcome.report(), outcome.exit_status()), (Some(report), 7));
    }
}

/// Rank 1 fails at once, again and again; rank 0 ends while another restart is planned.
#[test]
fn pauses_become_longer_and_a_success_ends_them() {
    let (_folder, path) = folder();
    let script = format!(
        "if [ $BREVITY_RANK = 1 ]; then echo >> {path}/starts; exit 7; fi; \
         until [ $(wc -l < {path}/starts) -ge 4 ]; do sleep 0.01; done"
    );
    std::fs::write(format!("{path}/starts"), "").unwrap();
    let start = Instant::now();
    let outcome = outcome(shell(2, &script).restart(u32::MAX));
    // 100, 200 and 400 ms.
    assert!(start.elapsed() >= Duration::from_millis(700));
    assert_eq!(outcome.endings, [Ending::Exited(0), Ending::Exited(7)]);
    let restarts = outcome.restarts[1];
    assert!(restarts >= 3, "{outcome:?}");
    assert_eq!(read_to_string(format!("{path}/starts")).unwrap().lines().count() as u32, 1 + restarts);
    let report = format!("rank 1 ended with status 7 after {restarts} restarts; the others went on");
    assert_eq!((outcome.report(), outcome.exit_status()), (Some(report), 0));
}

#[test]
fn a_rank_that_is_lost_after_a_success_stays_lost() {
    let (_folder, path) = folder();
    // Rank 1 fails when rank 0 has ended.
    let script = format!(
        "if [ $BREVITY_RANK = 0 ]; then echo $$ > {path}/new; mv {path}/new {path}/0; exit 0; fi; \
         until [ -e {path}/0 ]; do sleep 0.01; done; \
         until grep -q '^State:.Z' /proc/$(cat {path}/0)/status; do sleep 0.01; done; \
         sleep 0.2; kill -9 $$"
    );
    let outcome = outcome(shell(2, &script).restart(5));
    assert_eq!(outcome.endings, [Ending::Exited(0), Ending::Killed(9)]);
    assert_eq!(outcome.restarts, [0, 0]);
    assert_eq!(outcome.report().as_deref(), Some("rank 1 was killed by signal 9; the others went on"));
}

/// As one that writes what the job has found.
#[test]
fn a_rank_has_its_time_after_the_others_unless_one_was_lost() {
    let grace = Duration::from_millis(300);
    let slow = "if [ $BREVITY_RANK = 0 ]; then sleep 1.5; fi";
    for restarts in [None, Some(5)] {
        let run = |script: &str| {
            let launch = shell(3, script).keep_going(true).grace(grace);
            outcome(restarts.map_or(launch.clone(), |times| launch.restart(times)))
        };
        assert_eq!(run(slow).endings, [Ending::Exited(0); 3]);
        let lost = "if [ $BREVITY_RANK$BREVITY_INCARNATION = 1 ]; then exit 7; fi";
        let found = run(&format!("{lost}; {slow}"));
        assert_eq!((found.endings[0], found.exit_status()), (Ending::Killed(9), 0), "{found:?}");
    }
}

#[test]
fn replaced_processes_are_reaped_and_the_first_one_at_the_end() {
    let script = restarting(&format!("{NOTE}; {GO_ON}"));
    let launcher = script.launcher.id();
    let exists = |process: Process| Path::new(&format!("/proc/{}", process.0)).exists();
    let mut killed = Vec::new();
    for (rank, life) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
        let last = processes_of(&script, rank, life)[life - 1];
        last.signal("KILL");
        processes_of(&script, rank, life + 1);
        killed.push(last);
    }
    assert!(exists(killed[0]) && !killed[0].is_running(), "its number is that of the job's group");
    for process in &killed[1..] {
        await_that("a replaced process is left", || !exists(*process));
    }
    assert_eq!(children(launcher).len(), 4, "three ranks, and the first process");
    assert!(script.read("starts.0").ends_with(" 2\n") && script.read("starts.2").ends_with(" first\n"));
    script.end();
    assert_eq!(script.status(), Some(0));
    assert!(!exists(killed[0]));
}

#[test]
fn signals_reach_ranks_that_were_started_again_and_none_is_started_after_them() {
    let trap = "trap 'touch $FOLDER/told.$BREVITY_RANK; exit 3' TERM";
    let script = restarting(&format!("{trap}; {NOTE}; {GO_ON}"));
    // The leader of the process group.
    processes_of(&script, 0, 1)[0].signal("KILL");
    processes_of(&script, 0, 2);
    script.signal("TERM");
    (0..3).for_each(|rank| script.await_file(&format!("told.{rank}")));
    assert_eq!(wait_for_status(script), (Some(3), vec![2, 1, 1]));
}

#[test]
fn a_signal_ends_a_job_that_pauses_before_a_restart() {
    let fails = "if [ $BREVITY_RANK = 1 ]; then touch $FOLDER/1; exit 7; fi";
    let script = restarting(&format!("{NOTE}; {fails}; {GO_ON}"));
    // The next pause is 1.6 s.
    let last = processes_of(&script, 1, 5)[4];
    await_that("rank 1 does not fail", || !last.is_running());
    script.signal("TERM");
    let (status, starts) = wait_for_status(script);
    // Which of them the launcher has found first is not certain.
    assert!(matches!(status, Some(7 | 143)), "{status:?}");
    assert_eq!((starts[0], starts[2]), (1, 1));
}

#[test]
fn nothing_is_started_while_the_job_is_stopped() {
    let script = restarting(&format!("{NOTE}; {GO_ON}"));
    processes_of(&script, 0, 1)[0].signal("KILL");
    processes_of(&script, 0, 2);
    let (launcher, ranks) = script.processes();
    script.signal("TSTP");
    await_that("the launcher goes on", || launcher.is_stopped());
    await_that("ranks go on", || ranks.iter().all(stands_still));
    ranks[1].signal("KILL");
    await_that("a killed rank is left", || !ranks[1].is_running());
    thread::sleep(Duration::from_millis(300));
    assert_eq!(processes_of(&script, 1, 1), [ranks[1]]);
    script.signal("CONT");
    processes_of(&script, 1, 2);
    await_that("they stay stopped", || !ranks[0].is_stopped() && !ranks[2].is_stopped());
    script.end();
    assert_eq!(wait_for_status(script), (Some(0), vec![2, 2, 1]));
}

/// The status of a script's launcher, and how often each rank was started.
fn wait_for_status(mut script: Script) -> (Option<i32>, Vec<usize>) {
    let status = wait(&mut script.launcher).code();
    (status, (0..3).map(|rank| script.read(&format!("starts.{rank}")).lines().count()).collect())
}

#[test]
fn a_killed_launcher_leaves_neither_ranks_that_were_started_again_nor_what_lost_ones_have_started() {
    let mut launcher = playing("launcher")
        .envs([(GUARD_SHELL, "/bin/sh"), (RESTARTS, "2")])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(launcher.stderr.take().unwrap()).lines().map(Result::unwrap);
    // A rank, and what it has started.
    let mut next = || {
        let line = lines.find(|line| line.starts_with("processes")).unwrap();
        let mut numbers = line.split(' ').skip(1).map(|number| Process(number.parse().unwrap()));
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    let lost = [next(), next()];
    lost.iter().for_each(|[rank, _]| rank.signal("KILL"));
    let all = [lost[0], lost[1], next(), next()];
    assert!(all[2..].as_flattened().iter().all(|process| process.is_running()));
    assert!(lost.iter().all(|[_, started]| started.is_running()));
    guard_of(&launcher, &[]);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    all.as_flattened().iter().for_each(|process| assert_ends(process.0));
}

#[test]
fn a_program_that_is_gone_is_not_started_for_ever() {
    let (_folder, path) = folder();
    let program = format!("{path}/program");
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let script = format!("rm -f {program}; exit 7");
    let outcome = outcome(Launch::new(&program, ["-c", &script]).restart(3));
    assert_eq!((outcome.endings, outcome.restarts), (vec![Ending::Exited(7)], vec![0]));
    assert_eq!(outcome.first_failure, Some(Rank(0)));
}
