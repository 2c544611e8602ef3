//! The effects of signals to a launcher on it and on its ranks.

use super::*;

/// The ranks' script, if this program has the role "script".
const SCRIPT: &str = "LAUNCH_TEST_SCRIPT";

/// The number of ranks of a script, unless it has fewer.
const RANKS: u32 = 3;

/// Runs until there is a file `end`.
pub const GO_ON: &str = "touch $FOLDER/$BREVITY_RANK; until [ -e $FOLDER/end ]; do sleep 0.01; done; exit 0";

/// What this program does as the launcher of a script: ends with its status.
pub fn launch_script() {
    let script = std::env::var(SCRIPT).unwrap();
    let script = format!("ulimit -c 0; echo $$ > $FOLDER/process.$BREVITY_RANK; {script}");
    std::process::exit(outcome(restarts::wanted(shell(RANKS, &script))).exit_status().into());
}

/// The launcher of a script.
pub struct Script {
    pub launcher: Child,
    folder: tempfile::TempDir,
}

impl Script {
    /// Starts it, and waits until every rank has made a file named by its number. `before` is what a shell
    /// does before it becomes the launcher.
    pub fn start(before: &str, script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (program, words) = playing_words();
        let launcher = Command::new("/bin/sh")
            .args(["-c", &format!("{before} exec \"$0\" \"$@\"")])
            .arg(program)
            .args(words)
            .envs([(PART, "script"), (SCRIPT, script)])
            .env("FOLDER", folder.path())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let script = Self { launcher, folder };
        (0..RANKS).for_each(|rank| script.await_file(&rank.to_string()));
        script
    }

    pub fn signal(&self, name: &str) {
        signal(self.launcher.id(), name);
    }

    pub fn await_file(&self, name: &str) {
        await_that(&format!("there is no {name}"), || self.folder.path().join(name).exists());
    }

    pub fn end(&self) {
        std::fs::write(self.folder.path().join("end"), "").unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// The launcher, and the processes of the ranks.
    pub fn processes(&self) -> (Process, Vec<Process>) {
        let process = |rank| Process(self.read(&format!("process.{rank}")).trim().parse().unwrap());
        (Process(self.launcher.id()), (0..RANKS).map(process).collect())
    }

    pub fn status(mut self) -> Option<i32> {
        wait(&mut self.launcher).code()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It has ended, unless the test has failed; its ranks see the file.
        self.end();
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Whether a rank has stopped. A shell that starts a program waits (state `D`) until that runs, also while
/// both are stopped.
pub fn stands_still(rank: &Process) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", rank.0)).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 'D']))
}

#[test]
fn what_was_ignored_at_the_start_stays_ignored_in_the_ranks_too() {
    let script = Script::start("trap '' HUP INT;", &format!("trap 'touch $FOLDER/told' USR1; {GO_ON}"));
    let (_, ranks) = script.processes();
    for rank in &ranks {
        let status = std::fs::read_to_string(format!("/proc/{}/status", rank.0)).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        assert_eq!(ignored & 0b11, 0b11, "SIGHUP and SIGINT: {ignored:x}");
    }
    script.signal("HUP");
    script.signal("INT");
    // A signal that was sent later has arrived.
    script.signal("USR1");
    script.await_file("told");
    assert!(ranks.iter().all(|rank| rank.is_running()));
    script.end();
    assert_eq!(script.status(), Some(0));
}

#[test]
fn a_message_reaches_every_rank_once_and_the_launcher_lives() {
    // USR1, USR2, ALRM, XCPU, VTALRM, PROF, WINCH, IO, PWR and some real-time signals.
    let numbers = [10, 12, 14, 24, 26, 27, 28, 29, 30, 36, 40, 64];
    let list = numbers.map(|number| number.to_string()).join(" ");
    let traps = format!("for s in {list}; do trap \"echo $s >> $FOLDER/got.$BREVITY_RANK\" $s; done");
    let script = Script::start("", &format!("{traps}; {GO_ON}"));
    let mut expected = String::new();
    for number in numbers {
        script.signal(&number.to_string());
        expected += &format!("{number}\n");
        for rank in 0..RANKS {
            await_that("a signal does not arrive", || script.read(&format!("got.{rank}")) == expected);
        }
    }
    script.signal("TERM");
    assert_eq!(script.status(), Some(128 + 15));
}

#[test]
fn a_job_stops_and_goes_on_with_its_launcher() {
    // A shell runs a trap only after the program in its foreground has ended, so rank 1 runs none.
    let own_ways = "case $BREVITY_RANK in 1) trap 'touch $FOLDER/handled; kill -STOP $$' TSTP; \
                    touch $FOLDER/1; until [ -e $FOLDER/end ]; do :; done; exit 0;; \
                    2) trap '' TSTP;; esac";
    let script = Script::start("", &format!("{own_ways}; {GO_ON}"));
    let (launcher, ranks) = script.processes();
    for _ in 0..2 {
        script.signal("TSTP");
        await_that("the launcher goes on", || launcher.is_stopped());
        // It has stopped them, which may take a moment where processors are busy.
        await_that("ranks go on", || ranks.iter().all(stands_still));
        script.signal("CONT");
        await_that("they stay stopped", || ranks.iter().all(|rank| !rank.is_stopped()));
    }
    script.await_file("handled");
    script.end();
    assert_eq!(script.status(), Some(0));
}

#[test]
fn a_stopped_job_can_be_told_to_end() {
    let script = Script::start("", GO_ON);
    let (launcher, _) = script.processes();
    script.signal("TSTP");
    await_that("the launcher goes on", || launcher.is_stopped());
    script.signal("TERM");
    script.signal("CONT");
    assert_eq!(script.status(), Some(128 + 15));
}

#[test]
fn a_second_interrupt_kills_ranks_that_do_not_heed_the_first() {
    let mut script = Script::start("", &format!("trap '' INT; {GO_ON}"));
    let start = Instant::now();
    while script.launcher.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE);
        script.signal("INT");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "one interrupt that came twice");
    assert_eq!(script.status(), Some(128 + 9));
}

#[test]
fn a_signal_that_launcher_and_ranks_both_get_leaves_ranks_their_time() {
    let script = Script::start("", &format!("trap 'sleep 0.5; exit 0' TERM; {GO_ON}"));
    let (launcher, ranks) = script.processes();
    for process in ranks.iter().chain([&launcher]).chain(&ranks) {
        process.signal("TERM");
    }
    launcher.signal("TERM");
    assert_eq!(script.status(), Some(0));
}

#[test]
fn ranks_have_half_a_minute_unless_they_are_given_another_time() {
    assert!(format!("{:?}", shell(1, "")).contains("grace: 30s"));
}
