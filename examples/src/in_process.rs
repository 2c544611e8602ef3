//! Ranks that are threads of one process and average exactly. The network is checked against them, and they
//! run the training loop with several ranks without a network.

use crate::trainer::{BoxError, Exchange};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

/// One of several ranks in this process, each on a thread of its own.
///
/// Every call waits for all ranks. If a rank stops early, the others wait forever, so this is for tests and
/// trials only.
pub struct ThreadRank {
    rank: usize,
    shared: Arc<Shared>,
    bytes_sent: u64,
}

struct Shared {
    meeting: Barrier,
    /// What each rank contributed to the current call.
    brought: Mutex<Vec<Vec<Vec<f64>>>>,
}

/// The ranks 0 to `world_size - 1` of a new group.
pub fn ranks(world_size: usize) -> Vec<ThreadRank> {
    let shared = Arc::new(Shared {
        meeting: Barrier::new(world_size),
        brought: Mutex::new(vec![Vec::new(); world_size]),
    });
    (0..world_size).map(|rank| ThreadRank { rank, shared: shared.clone(), bytes_sent: 0 }).collect()
}

impl ThreadRank {
    /// The sums over all ranks, added in the order of the ranks.
    fn sums(&mut self, mine: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let lock = || self.shared.brought.lock().unwrap_or_else(PoisonError::into_inner);
        lock()[self.rank] = mine;
        self.shared.meeting.wait();
        let brought = lock();
        let mut sums = brought[0].clone();
        for other in &brought[1..] {
            for (sum, value) in sums.iter_mut().flatten().zip(other.iter().flatten()) {
                *sum += value;
            }
        }
        drop(brought);
        self.shared.meeting.wait();
        sums
    }
}

impl Exchange for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.shared.brought.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn average(&mut self, gradients: &mut [Vec<f32>]) -> Result<(), BoxError> {
        let wide = |gradient: &Vec<f32>| gradient.iter().map(|&g| f64::from(g)).collect();
        let sums = self.sums(gradients.iter().map(wide).collect());
        let world_size = self.world_size() as f64;
        for (gradient, sums) in gradients.iter_mut().zip(&sums) {
            for (value, sum) in gradient.iter_mut().zip(sums) {
                *value = (sum / world_size) as f32;
            }
        }
        self.bytes_sent += 4 * gradients.iter().map(|g| g.len() as u64).sum::<u64>();
        Ok(())
    }

    fn sum(&mut self, values: &mut [f64]) -> Result<(), BoxError> {
        let sums = self.sums(vec![values.to_vec()]);
        values.copy_from_slice(&sums[0]);
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_mean_and_the_sum() {
        let threads: Vec<_> = ranks(3)
            .into_iter()
            .map(|mut rank| {
                std::thread::spawn(move || {
                    let own = rank.rank() as f32;
                    let mut gradients = vec![vec![own, 3.0], vec![], vec![2.0 * own]];
                    rank.average(&mut gradients).unwrap();
                    let mut values = [1.0, f64::from(own)];
                    rank.sum(&mut values).unwrap();
                    (gradients, values, rank.bytes_sent())
                })
            })
            .collect();
        for thread in threads {
            let (gradients, values, bytes) = thread.join().unwrap();
            assert_eq!(gradients, [vec![1.0, 3.0], vec![], vec![2.0]]);
            assert_eq!(values, [3.0, 3.0]);
            assert_eq!(bytes, 12);
        }
    }
}
