//! Ok-Topk by one program for all ranks, from the paper: every threshold by a full sort or count, one region.

use std::collections::BTreeMap;

use brevity::collectives::sparse::Periods;
use brevity::compress::select::ladder_rungs;
use brevity_tests::dense::in_order;
use brevity_tests::oracle;

/// The bits of infinity.
const INFINITE: u64 = 0x7f80_0000;

pub(super) struct Reference {
    k: usize,
    periods: Periods,
    step: u32,
    residuals: Vec<Vec<f32>>,
    local_thresholds: Vec<f32>,
    /// Its bits.
    threshold: u64,
}

impl Reference {
    pub(super) fn new(world_size: u32, count: usize, k: usize, periods: Periods) -> Self {
        let ranks = world_size as usize;
        let residuals = vec![vec![0.0; count]; ranks];
        Self { k, periods, step: 0, residuals, local_thresholds: vec![0.0; ranks], threshold: 0 }
    }

    /// The residuals of all ranks.
    pub(super) fn residuals(&self) -> &[Vec<f32>] {
        &self.residuals
    }

    /// The result of a step.
    pub(super) fn step(&mut self, gradients: &[Vec<f32>]) -> BTreeMap<u32, f32> {
        for (residual, gradient) in self.residuals.iter_mut().zip(gradients) {
            residual.iter_mut().zip(gradient).for_each(|(residual, value)| *residual += value);
        }
        let sent: Vec<Vec<f32>> = (0..gradients.len()).map(|rank| self.select(rank)).collect();
        let sum = in_order(sent.clone());
        let sum: BTreeMap<u32, f32> = (0..).zip(sum).filter(|(_, value)| *value != 0.0).collect();
        let magnitudes: Vec<u64> = sum.values().map(|value| bits(*value)).collect();
        if self.threshold == 0 || self.is_due(self.periods.global_threshold) || !self.fits(&magnitudes) {
            self.threshold = threshold(&magnitudes, self.k, self.threshold as u32);
        }
        let result = self.passing(sum);
        for (residual, sent) in self.residuals.iter_mut().zip(&sent) {
            let delivered = result.keys().filter(|index| sent[**index as usize] != 0.0);
            delivered.for_each(|index| residual[*index as usize] = 0.0);
        }
        self.step += 1;
        result
    }

    fn is_due(&self, period: u32) -> bool {
        self.step.is_multiple_of(period)
    }

    /// What a rank sends, as a dense vector.
    fn select(&mut self, rank: usize) -> Vec<f32> {
        let values = &self.residuals[rank];
        let tau = self.local_thresholds[rank];
        let mut sent: BTreeMap<u32, f32> =
            (0..).zip(values.iter().copied()).filter(|(_, value)| value.abs() >= tau).collect();
        let most = (2 * self.k).min(values.len());
        let fits = sent.len() <= most && sent.len() >= self.k.div_ceil(2);
        if tau == 0.0 || self.is_due(self.periods.local_threshold) || !fits {
            sent = oracle::top_k(values, self.k);
            let smallest = sent.values().map(|value| value.abs()).min_by(f32::total_cmp);
            self.local_thresholds[rank] = smallest.unwrap_or(0.0);
        }
        let mut dense = vec![0.0; values.len()];
        sent.into_iter().for_each(|(index, value)| dense[index as usize] = value);
        dense
    }

    fn fits(&self, magnitudes: &[u64]) -> bool {
        let reaching = reaching(magnitudes, self.threshold);
        reaching <= 2 * self.k && (reaching >= self.k.div_ceil(2) || reaching == magnitudes.len())
    }

    /// The entries that reach the threshold; the first `k` if equal ones make them more than `2 k`.
    fn passing(&self, sum: BTreeMap<u32, f32>) -> BTreeMap<u32, f32> {
        let passing = sum.into_iter().filter(|(_, value)| bits(*value) >= self.threshold);
        let (above, ties): (Vec<_>, Vec<_>) = passing.partition(|(_, value)| bits(*value) > self.threshold);
        let all = above.len() + ties.len();
        let most = if all > 2 * self.k { self.k } else { all };
        above.into_iter().chain(ties).take(most).collect()
    }
}

fn bits(value: f32) -> u64 {
    u64::from(value.abs().to_bits())
}

fn reaching(magnitudes: &[u64], threshold: u64) -> usize {
    magnitudes.iter().filter(|magnitude| **magnitude >= threshold).count()
}

/// The search of docs/algorithms.md: in each round the highest rung that `k` magnitudes reach, until at most
/// an eighth more do.
fn threshold(magnitudes: &[u64], k: usize, guess: u32) -> u64 {
    let spaced = |low: u64, high: u64| (1..=32).map(|j| low + (high - low) * j / 33).collect::<Vec<_>>();
    if k == 0 {
        return INFINITE - 1;
    }
    let (mut low, mut high) = (1, INFINITE);
    let mut rungs = match guess {
        0 => spaced(low, high),
        guess => ladder_rungs(guess).map(u64::from).to_vec(),
    };
    loop {
        let (kept, over): (Vec<u64>, Vec<u64>) =
            rungs.iter().partition(|rung| reaching(magnitudes, **rung) >= k);
        low = kept.iter().copied().fold(low, u64::max);
        high = over.iter().copied().fold(high, u64::min);
        let is_near = kept.contains(&low) && reaching(magnitudes, low) <= k + k / 8;
        if is_near || high.saturating_sub(low) <= 1 {
            return low;
        }
        rungs = spaced(low, high);
    }
}
