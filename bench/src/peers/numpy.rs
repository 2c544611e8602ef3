//! NumPy in a separate process, which waits on its standard input between turns.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::{find_programs, folder, printed};
use crate::{Error, Result};

/// The program it runs.
const PROGRAM: &str = include_str!("../../peers/gradient_drop.py");

const NAME: &str = "numpy";

/// The limit for one answer.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long it may take to end by itself.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A Python that has NumPy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numpy {
    python: PathBuf,
    /// The version of NumPy alone.
    pub version: String,
    /// The versions of NumPy and Python, and where they were found.
    pub said: String,
}

/// The program that prints a Python's versions.
const ASK: &str =
    "import sys, numpy; print('has numpy', numpy.__version__, 'on Python', sys.version.split()[0])";

impl Numpy {
    /// The Python of `bench/peers/install.sh`, and every `python3` in `PATH`; the first for each version of
    /// NumPy.
    #[must_use]
    pub fn find() -> Vec<Self> {
        let of_peers =
            if std::env::var_os("BREVITY_PEERS").is_some() { "BREVITY_PEERS" } else { "target/peers" };
        let installed = (folder().join(NAME).join("bin/python3"), of_peers.to_owned());
        let on_path = find_programs(Path::new("python3")).into_iter().map(|file| (file, "PATH".to_owned()));
        let places = [installed].into_iter().filter(|(file, _)| file.is_file()).chain(on_path);
        Self::of_each_version(places, |python| printed(python, &["-c", ASK]))
    }

    /// The first Python of each version, with where it was found; `ask` returns a Python's answer.
    fn of_each_version(
        places: impl Iterator<Item = (PathBuf, String)>,
        ask: impl Fn(&Path) -> String,
    ) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for (python, place) in places {
            let said = ask(&python);
            // Warnings may precede it.
            let Some(versions) = said.lines().find_map(|line| line.strip_prefix("has numpy ")) else {
                continue;
            };
            let version = versions.split(' ').next().unwrap_or_default().to_owned();
            if found.iter().all(|numpy| numpy.version != version) {
                let said = format!("{}, found by {place}", versions.trim());
                found.push(Self { python, version, said });
            }
        }
        found
    }

    /// Starts a process that drops `gradient` onto the residual `start`, once for each order, and keeps `k`
    /// entries.
    ///
    /// # Errors
    /// If it can't be started, ends before it has read everything, or takes longer than a minute.
    pub fn gradient_drop(&self, start: &[f32], gradient: &[f32], k: usize) -> Result<NumpyDrop> {
        let mut command = Command::new(&self.python);
        command.args(["-c", PROGRAM, &start.len().to_string(), &k.to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::system(format!("can't start {}", self.python.display())))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::contestant(NAME, "has no pipes"));
        };
        let mut numpy =
            NumpyDrop { child: Mutex::new(child), orders: Some(orders), answers: BufReader::new(answers) };
        within(DEADLINE, &numpy.child, || {
            let mut bytes = Vec::new();
            for part in [start, gradient].into_iter().flat_map(|values| values.chunks(1 << 16)) {
                bytes.clear();
                part.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                order(&mut numpy.orders, &bytes)?;
            }
            Ok(())
        })?;
        Ok(numpy)
    }
}

/// The result of one gradient drop of NumPy.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    /// Milliseconds that it took.
    pub ms: f64,
    /// Entries selected.
    pub entries: usize,
    /// The smallest magnitude among them.
    pub least: f32,
}

/// A process that waits for its next turn. Ends on drop.
pub struct NumpyDrop {
    child: Mutex<Child>,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl NumpyDrop {
    /// One gradient drop.
    ///
    /// # Errors
    /// If it has ended, takes longer than a minute, or answers something else.
    pub fn turn(&mut self) -> Result<Dropped> {
        let Self { child, orders, answers } = self;
        let line = within(DEADLINE, child, || {
            order(orders, b"\n")?;
            let mut line = String::new();
            answers.read_line(&mut line).map_err(Error::system("can't read what numpy says"))?;
            Ok(line)
        })?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let dropped = match words[..] {
            [ms, entries, least] => ms.parse().ok().zip(entries.parse().ok()).zip(least.parse().ok()),
            _ => None,
        };
        let dropped = dropped.map(|((ms, entries), least)| Dropped { ms, entries, least });
        dropped.ok_or_else(|| {
            Error::contestant(NAME, format!("says {line:?} in place of a time, a count and a value"))
        })
    }
}

fn order(orders: &mut Option<ChildStdin>, bytes: &[u8]) -> Result<()> {
    let told = orders.iter_mut().map(|orders| orders.write_all(bytes).and_then(|()| orders.flush())).next();
    told.unwrap_or(Ok(())).map_err(Error::system("numpy has ended"))
}

/// Does `work`, which waits for a process. When the time is over, the process is killed, so that the wait
/// ends.
fn within<T>(deadline: Duration, child: &Mutex<Child>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let is_late = is_done.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout);
            is_late && child.lock().is_ok_and(|mut child| child.kill().is_ok())
        });
        let result = work();
        drop(done);
        match watch.join() {
            Ok(true) => Err(Error::contestant(NAME, format!("does not answer within {deadline:?}"))),
            _ => result,
        }
    })
}

impl Drop for NumpyDrop {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.orders = None;
        let Ok(child) = self.child.get_mut() else { return };
        let late = Instant::now() + LAST_WORDS;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < late {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_found_once_and_a_python_without_any_is_passed_over() {
        let answers = [
            ("/wheels/python3", "has numpy 2.4.6 on Python 3.11.7\n"),
            (
                "/own/python3",
                "Traceback (most recent call last):\nModuleNotFoundError: No module named 'numpy'\n",
            ),
            ("/slow/python3", ""),
            ("/usr/bin/python3", "a warning\nhas numpy 1.24.2 on Python 3.11.2\n"),
            ("/other/python3", "has numpy 2.4.6 on Python 3.13.0\n"),
        ];
        let places = answers.iter().map(|(python, _)| (PathBuf::from(python), "PATH".to_owned()));
        let ask =
            |python: &Path| answers.iter().find(|(file, _)| Path::new(file) == python).unwrap().1.to_owned();
        let found = Numpy::of_each_version(places, ask);
        let said: Vec<&str> = found.iter().map(|numpy| numpy.said.as_str()).collect();
        assert_eq!(said, ["2.4.6 on Python 3.11.7, found by PATH", "1.24.2 on Python 3.11.2, found by PATH"]);
        let versions: Vec<&str> = found.iter().map(|numpy| numpy.version.as_str()).collect();
        assert_eq!(versions, ["2.4.6", "1.24.2"]);
    }

    #[test]
    fn a_process_that_says_nothing_is_ended_at_the_deadline() {
        let mut command = Command::new("sleep");
        let mut child = command.arg("1000").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut silent = NumpyDrop { child: Mutex::new(child), orders, answers };
        let mut line = String::new();
        let answers = &mut silent.answers;
        let read = || answers.read_line(&mut line).map_err(Error::system("can't read"));
        let error = within(Duration::from_millis(20), &silent.child, read).expect_err("a deadline");
        assert_eq!(error.to_string(), "numpy: does not answer within 20ms");
    }
}
