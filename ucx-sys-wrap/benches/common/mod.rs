//! What the benches of the transport share: words between ranks, pairs that play at the same time, medians.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag};

pub fn envelope(source: Rank) -> Envelope {
    Envelope { tag: Tag::new(source, 1, 2, 3), signature: Signature::default(), mark: Mark::NONE }
}

/// One turn of waiting.
pub fn turn(port: &Port, yields: bool) {
    if !port.progress() && yields {
        std::thread::yield_now();
    }
}

pub fn send(port: &Arc<Port>, to: Rank, yields: bool, bytes: &mut [u8]) {
    let own = port.rank();
    scope(
        port,
        |comm| turn(comm.port(), yields),
        async |comm| comm.send(to, envelope(own), bytes).await.map(drop),
    )
    .unwrap();
}

pub fn receive(port: &Arc<Port>, from: Rank, yields: bool, bytes: &mut [u8]) {
    scope(
        port,
        |comm| turn(comm.port(), yields),
        async |comm| comm.recv(from, envelope(from), bytes).await.map(drop),
    )
    .unwrap();
}

/// All ranks meet and play, each with its local peer; rank 0 gets the seconds that a message one way took, a
/// pair each.
pub fn everybody(port: &Arc<Port>, yields: bool, play: impl FnOnce() -> f64) -> Vec<f64> {
    let (ranks, own) = (port.world_size(), port.rank());
    let mut word = [0u8; 8];
    if own == Rank(0) {
        (1..ranks).for_each(|rank| receive(port, Rank(rank), yields, &mut word));
        (1..ranks).for_each(|rank| send(port, Rank(rank), yields, &mut word));
    } else {
        send(port, Rank(0), yields, &mut word);
        receive(port, Rank(0), yields, &mut word);
    }
    let seconds = play();
    let mut all = vec![seconds];
    if own == Rank(0) {
        for rank in (2..ranks).step_by(2) {
            receive(port, Rank(rank), yields, &mut word);
            all.push(f64::from_le_bytes(word));
        }
    } else if own.0.is_multiple_of(2) {
        send(port, Rank(0), yields, &mut seconds.to_le_bytes());
    }
    all
}

/// What [`everybody`] has measured of two sides, in turns.
#[derive(Default)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    /// Prints a round and keeps the ratio of its means.
    pub fn add(&mut self, floor: &str, theirs: &[f64], ours: &[f64]) {
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        let spread = |times: &[f64]| {
            times.iter().copied().fold(0.0, f64::max) / times.iter().copied().fold(f64::MAX, f64::min)
        };
        self.0.push(mean(ours) / mean(theirs));
        println!(
            "8 B: {floor} {:.3} us (spread {:.2}), ours {:.3} us (spread {:.2})",
            mean(theirs) * 1e6,
            spread(theirs),
            mean(ours) * 1e6,
            spread(ours)
        );
    }

    pub fn finish(self) {
        println!("ratio of the means, median: {:.3}", median(self.0));
    }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
