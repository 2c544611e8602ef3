//! Runs a program that must end in time.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// How a program ended, and its output.
#[derive(Debug)]
pub struct Ended {
    /// Its status; `None` if it had to be killed.
    pub status: Option<ExitStatus>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

/// Runs a command to its end. After `patience`, it is terminated with its process group, and killed if that
/// does not help.
///
/// # Panics
/// If the command can't be started.
#[must_use]
pub fn run_within(command: &mut Command, patience: Duration) -> Ended {
    let start = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("can't start {command:?}: {error}"));
    let (stdout, stderr) = (listen(child.stdout.take()), listen(child.stderr.take()));
    let status = wait(&mut child, start + patience);
    let took = start.elapsed();
    if status.is_none() {
        for signal in ["-TERM", "-KILL"] {
            let _ = Command::new("kill").args([signal, "--", &format!("-{}", child.id())]).status();
            if wait(&mut child, Instant::now() + Duration::from_secs(10)).is_some() {
                break;
            }
        }
    }
    let text = |thread: JoinHandle<String>| thread.join().unwrap_or_default();
    Ended { status, stdout: text(stdout), stderr: text(stderr), took }
}

fn listen(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // After a failure, the output that was read so far counts.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => return None,
        }
    }
}
