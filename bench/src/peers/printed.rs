//! The output of a program that is asked for something short, such as its version.

use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The limit for all of it; the first start of a Python takes seconds.
const PATIENCE: Duration = Duration::from_secs(20);

const LOOK: Duration = Duration::from_millis(1);

/// The output of a program; empty if it can't be started or takes longer than 20 s. Then the program and the
/// processes it has started are killed.
pub(crate) fn printed(program: &Path, arguments: &[&str]) -> String {
    printed_within(PATIENCE, program, arguments).unwrap_or_default()
}

fn printed_within(patience: Duration, program: &Path, arguments: &[&str]) -> io::Result<String> {
    // A file, because a pipe stays open as long as any process has it, such as one that the program has left
    // behind.
    let mut said = tempfile::tempfile()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?);
    let mut child = command.process_group(0).spawn()?;
    if !has_ended_within(patience, &mut child) {
        // It may have ended just now.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        child.wait()?;
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut text = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn has_ended_within(patience: Duration, child: &mut Child) -> bool {
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if start.elapsed() > patience {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: &str = "/bin/sh";

    #[test]
    fn all_that_it_prints_is_there_and_the_rest_is_nothing() {
        assert_eq!(
            printed(Path::new(SHELL), &["-c", "echo a word; echo and another >&2"]),
            "a word\nand another\n"
        );
        // More than a pipe holds.
        assert_eq!(printed(Path::new(SHELL), &["-c", "head -c 300000 /dev/zero"]).len(), 300_000);
        assert_eq!(printed(Path::new("/no/such/program"), &[]), "");
    }

    #[test]
    fn one_that_hangs_is_ended_with_what_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("started");
        let line = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let patience = Duration::from_millis(500);
        let error = printed_within(patience, Path::new(SHELL), &["-c", &line]).expect_err("a deadline");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // On a slow machine the shell may not have got this far.
        let Ok(started) = std::fs::read_to_string(&file) else { return };
        let Ok(started) = started.trim().parse::<u32>() else { return };
        let status = format!("/proc/{started}/status");
        let lives = || std::fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ"));
        while lives() {
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn what_it_leaves_behind_is_not_waited_for() {
        let said = printed(Path::new(SHELL), &["-c", "sleep 1000 & echo $!"]);
        let left = said.trim().parse().ok().and_then(Pid::from_raw).unwrap();
        rustix::process::kill_process(left, Signal::KILL).unwrap();
    }
}
