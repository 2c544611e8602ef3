//! NumPy in a process of its own, which waits at its standard input between its turns.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{find_program, folder, printed};
use crate::{Error, Result};

/// What it runs.
const PROGRAM: &str = include_str!("../../peers/gradient_drop.py");

const NAME: &str = "numpy";

/// A Python that has NumPy.
#[derive(Clone, Debug)]
pub struct Numpy {
    python: PathBuf,
    /// Of NumPy and of Python.
    pub version: String,
}

impl Numpy {
    /// That of `bench/peers/install.sh`, else that of the first `python3` in `PATH`, if there is one.
    #[must_use]
    pub fn find() -> Option<Self> {
        let ask = "import sys, numpy; print('found', numpy.__version__, 'on Python', sys.version.split()[0])";
        [folder().join(NAME).join("bin/python3"), PathBuf::from("python3")].into_iter().find_map(|name| {
            let python = find_program(Path::new(&name))?;
            let said = printed(&python, &["-c", ask]);
            Some(Self { version: said.trim().strip_prefix("found ")?.to_owned(), python })
        })
    }

    /// Starts one that drops `gradient` onto the residual `start`, as often as it is told, and keeps `k` entries.
    ///
    /// # Errors
    /// When it can't be started, or ends before it has read everything.
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
        let mut numpy = NumpyDrop { child, orders: Some(orders), answers: BufReader::new(answers) };
        let mut bytes = Vec::new();
        for values in [start, gradient] {
            for part in values.chunks(1 << 16) {
                bytes.clear();
                part.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                numpy.order(&bytes)?;
            }
        }
        Ok(numpy)
    }
}

/// What one gradient drop of NumPy's has given.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    /// Milliseconds that it took.
    pub ms: f64,
    /// Entries selected.
    pub entries: usize,
    /// The smallest magnitude among them.
    pub least: f32,
}

/// A process that waits for its next turn. Ends with this object.
pub struct NumpyDrop {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl NumpyDrop {
    /// One gradient drop.
    ///
    /// # Errors
    /// When it has ended, or says something else.
    pub fn turn(&mut self) -> Result<Dropped> {
        self.order(b"\n")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(Error::system("can't read what numpy says"))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let dropped = match words[..] {
            [ms, entries, least] => ms.parse().ok().zip(entries.parse().ok()).zip(least.parse().ok()),
            _ => None,
        };
        let dropped = dropped.map(|((ms, entries), least)| Dropped { ms, entries, least });
        dropped.ok_or_else(|| Error::contestant(NAME, format!("says {line:?} in place of a time, a count and a value")))
    }

    fn order(&mut self, bytes: &[u8]) -> Result<()> {
        let orders = self.orders.iter_mut();
        let told = orders.map(|orders| orders.write_all(bytes).and_then(|()| orders.flush())).next();
        told.unwrap_or(Ok(())).map_err(Error::system("numpy has ended"))
    }
}

impl Drop for NumpyDrop {
    fn drop(&mut self) {
        // The end of its input is the end of its work.
        self.orders = None;
        if self.child.wait().is_err() {
            let _ = self.child.kill();
        }
    }
}
