//! Entry points for fuzzing of all code that reads foreign bytes. No input may panic, hang, or allocate
//! memory that was only announced. Built for tests and with the feature `fuzzing`; not part of the interface.

pub use crate::bootstrap::fuzzing::bootstrap_messages;
pub use crate::link::fuzzing::shared_memory;
pub use crate::tcp::fuzzing::tcp_stream;
pub use crate::tcp::wire::fuzzing::tcp_wire;
pub use crate::ucx::fuzzing::{ucx_cards, ucx_messages};

/// Takes values off the front of the fuzzer's input.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next two bytes, little-endian.
    pub(crate) fn word(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) | usize::from(self.byte()?) << 8)
    }

    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `target` on every file of its corpus.
    fn replay(target: &str, run: fn(&[u8])) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            run(&std::fs::read(path).unwrap());
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }

    #[test]
    fn the_corpus_of_tcp_wires_does_no_harm() {
        replay("tcp_wire", tcp_wire);
    }

    #[test]
    fn the_corpus_of_tcp_streams_does_no_harm() {
        replay("tcp_stream", tcp_stream);
    }

    #[test]
    fn the_corpus_of_shared_memory_does_no_harm() {
        replay("shared_memory", shared_memory);
    }

    #[test]
    fn the_corpus_of_bootstrap_messages_does_no_harm() {
        replay("bootstrap_messages", bootstrap_messages);
    }

    #[test]
    fn the_corpus_of_ucx_cards_does_no_harm() {
        replay("ucx_cards", ucx_cards);
    }

    #[test]
    fn the_corpus_of_ucx_messages_does_no_harm() {
        replay("ucx_messages", ucx_messages);
    }
}
