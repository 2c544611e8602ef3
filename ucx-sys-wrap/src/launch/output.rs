//! Tags the output of ranks, line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::Rank;

/// Longer lines are cut.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// The threads that prefix each line with its rank. Each ends when its pipe is closed.
pub(super) struct Taggers {
    /// Every thread holds a sender, and drops it when it ends.
    alive: Sender<()>,
    all_ended: Receiver<()>,
}

impl Taggers {
    pub(super) fn new() -> Self {
        let (alive, all_ended) = channel();
        Self { alive, all_ended }
    }

    /// Copies lines to `to` with the rank before each, until `from` ends.
    pub(super) fn tag(&self, rank: Rank, from: impl Read + Send + 'static, to: impl Write + Send + 'static) {
        let alive = self.alive.clone();
        thread::spawn(move || {
            copy(rank, from, to);
            drop(alive);
        });
    }

    /// Waits at most `patience` until all output is written. A process outside the job may keep a pipe open.
    pub(super) fn finish(self, patience: Duration) {
        let Self { alive, all_ended } = self;
        drop(alive);
        // Nobody sends: this ends when the last thread drops its sender.
        let _ = all_ended.recv_timeout(patience);
    }
}

fn copy(rank: Rank, from: impl Read, mut to: impl Write) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(format!("[{rank}] ").as_bytes());
        let start = line.len();
        match from.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(_) if line.len() > start => {}
            // The end, or a broken pipe.
            _ => return,
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // One write per line, so that ranks do not mix. If the reader is gone, the rank still goes on.
        let _ = to.write_all(&line).and_then(|()| to.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(text: &[u8]) -> String {
        let mut output = Vec::new();
        copy(Rank(3), text, &mut output);
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn every_line_is_tagged_also_the_last_one_without_an_end() {
        assert_eq!(tagged(b"one\n\ntwo"), "[3] one\n[3] \n[3] two\n");
        assert_eq!(tagged(b""), "");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let lines = tagged(&vec![b'x'; 150_000]);
        assert_eq!(lines.lines().count(), 3);
        assert_eq!(lines.matches('x').count(), 150_000);
    }
}
