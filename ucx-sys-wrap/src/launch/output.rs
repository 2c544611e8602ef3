//! The output of many ranks, line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::thread::{JoinHandle, spawn};

use crate::Rank;

/// Copies lines to `to` with the rank before each, until `from` ends.
pub(super) fn tag_lines(
    rank: Rank,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<()> {
    spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            line.extend_from_slice(format!("[{rank}] ").as_bytes());
            let start = line.len();
            match from.read_until(b'\n', &mut line) {
                Ok(_) if line.len() > start => {}
                // The end, or a pipe that is gone.
                _ => return,
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // One write a line, so that ranks do not mix; a reader that has gone is no reason to stop the rank.
            let _ = to.write_all(&line).and_then(|()| to.flush());
        }
    })
}
