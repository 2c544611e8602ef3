//! A processor for each rank.
//!
//! Two processes that have just been woken may share a processor until the system moves one of them, which takes
//! milliseconds: longer than a slice. So every process that is measured stays on one, ours and theirs alike, where there
//! are enough of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors that this process may use, rising.
#[must_use]
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// Keeps the calling thread on the processor of `place`, counted round among those allowed. Does nothing when the system
/// does not allow it: figures spread more then, and are no less right.
pub fn pin(place: usize) {
    let processors = allowed();
    if processors.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    set.set(processors[place % processors.len()]);
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("bench: a process is not kept on its processor: {error}");
    }
}

/// [`pin`] where each of `ranks` ranks has a processor of its own.
pub fn pin_rank(rank: u32, ranks: u32) {
    if ranks as usize <= allowed().len() {
        pin(rank as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_processor() {
        let before = allowed();
        let inside = std::thread::spawn(|| {
            pin(1);
            allowed()
        });
        assert_eq!(inside.join().unwrap(), [before[1 % before.len()]]);
        assert_eq!(allowed(), before);
    }
}
