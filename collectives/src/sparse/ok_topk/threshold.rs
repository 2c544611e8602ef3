//! The threshold of the sum, and the entries that pass it.

use std::ops::Range;

use brevity_compress::select::{RUNGS, ladder_counts, ladder_rungs};
use brevity_compress::{SparseVec, in_standard_float_mode};
use ucx_sys_wrap::buffer::Chunk;

use super::state::Regions;
use crate::call::Call;
use crate::data::ReduceOp;
use crate::dense::{all_gather, all_reduce};
use crate::error::Result;

/// The bits of infinity: above those of every finite magnitude.
const INFINITE: u32 = 0x7f80_0000;

/// Finds a threshold that at least `k` and about `k` entries of all ranks' sums reach: at most an eighth
/// more, unless magnitudes are equal. With fewer than `k` entries it is the least.
///
/// Each round adds up all ranks' counts at the rungs of a ladder: the first around the `guess`, if it is not
/// 0, the next between two rungs of the one before. At most 8 rounds.
pub(super) async fn search(call: &Call<'_, '_>, sums: &[f32], k: usize, guess: u32) -> Result<u32> {
    search_by(call, |rungs| ladder_counts(sums, rungs).map(u64::from), k, guess).await
}

/// Likewise, with this rank's counts at the rungs.
pub(super) async fn search_by(
    call: &Call<'_, '_>,
    mut counts_at: impl FnMut(&[u32; RUNGS]) -> [u64; RUNGS],
    k: usize,
    guess: u32,
) -> Result<u32> {
    let (mut bracket, most) = (Bracket::default(), k.saturating_add(k / 8));
    if k == 0 {
        return Ok(INFINITE - 1);
    }
    let mut rungs = if guess == 0 { bracket.rungs() } else { in_standard_float_mode(|| ladder_rungs(guess)) };
    loop {
        let own = counts_at(&rungs).to_vec();
        let counts = all_reduce(call, Chunk::from(own), ReduceOp::Sum).await?;
        let reaching = bracket.narrow(&rungs, &counts, k as u64);
        if reaching.is_some_and(|count| count <= most as u64) || bracket.is_closed() {
            return Ok(bracket.low);
        }
        rungs = bracket.rungs();
    }
}

/// What the wanted threshold is between: at least `low`, at most below `high`.
#[derive(Debug, PartialEq, Eq)]
struct Bracket {
    low: u32,
    high: u32,
}

impl Default for Bracket {
    fn default() -> Self {
        Self { low: 1, high: INFINITE }
    }
}

impl Bracket {
    /// Rungs in equal distances: all that are left, if they are few.
    fn rungs(&self) -> [u32; RUNGS] {
        let width = u64::from(self.high.saturating_sub(self.low));
        std::array::from_fn(|j| self.low + (width * (j as u64 + 1) / (RUNGS as u64 + 1)) as u32)
    }

    /// Takes the rungs around the `k`-th magnitude. Returns the count at the lower one, if it is a rung.
    fn narrow(&mut self, rungs: &[u32; RUNGS], counts: &[u64], k: u64) -> Option<u64> {
        let mut reaching = None;
        for (&rung, &count) in rungs.iter().zip(counts) {
            if count >= k && rung >= self.low && rung < INFINITE {
                self.low = rung;
                reaching = Some(count);
            } else if count < k {
                self.high = self.high.min(rung);
            }
        }
        reaching
    }

    const fn is_closed(&self) -> bool {
        self.high.saturating_sub(self.low) <= 1
    }
}

/// Bytes of a [`Share`] in a message.
pub(super) const SHARE_BYTES: usize = 3 * size_of::<u64>();

/// How a rank's sums lie to a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Those above it.
    pub(super) above: u64,
    /// Those that are equal to it.
    pub(super) ties: u64,
    /// All of them.
    pub(super) all: u64,
}

impl Share {
    pub(super) fn of(sums: &[f32], threshold: u32) -> Self {
        let magnitudes = || sums.iter().map(|value| magnitude(*value));
        Self {
            above: magnitudes().filter(|magnitude| *magnitude > threshold).count() as u64,
            ties: magnitudes().filter(|magnitude| *magnitude == threshold).count() as u64,
            all: sums.len() as u64,
        }
    }

    /// Whether a region of this length can have these counts.
    fn is_possible(&self, region: Range<usize>) -> bool {
        self.all <= region.len() as u64
            && self.above.checked_add(self.ties).is_some_and(|reaching| reaching <= self.all)
    }
}

fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The shares of all ranks, in rank order.
#[derive(Debug)]
pub(super) struct Shares(Vec<Share>);

/// Tells all ranks how the sums of each lie to a threshold.
pub(super) async fn share(
    call: &Call<'_, '_>,
    sums: &[f32],
    threshold: u32,
    regions: &Regions,
) -> Result<Shares> {
    tell(call, Share::of(sums, threshold), regions).await
}

/// Likewise, of this rank's share.
pub(super) async fn tell(call: &Call<'_, '_>, share: Share, regions: &Regions) -> Result<Shares> {
    let Share { above, ties, all } = share;
    let mut numbers = call.zeros::<u64>(3 * call.world_size() as usize)?;
    numbers[3 * call.rank() as usize..][..3].copy_from_slice(&[above, ties, all]);
    let numbers = all_gather(call, Chunk::from(numbers)).await?;
    let mut shares = Vec::with_capacity(call.world_size() as usize);
    for (rank, &[above, ties, all]) in (0..).zip(numbers.as_chunks::<3>().0) {
        let share = Share { above, ties, all };
        if !share.is_possible(regions.of(rank)) {
            return Err(call.refuse(rank, format!("impossible numbers of entries: {share:?}")));
        }
        shares.push(share);
    }
    Ok(Shares(shares))
}

impl Shares {
    /// Whether the threshold keeps `k / 2` to `2 k` entries, or all.
    pub(super) fn fit(&self, k: usize) -> bool {
        let (reaching, all) = self.total();
        reaching <= limit(k) && (reaching >= k.div_ceil(2) as u64 || reaching == all)
    }

    /// Whether a rank has over four times its share of all entries.
    pub(super) fn are_uneven(&self) -> bool {
        is_uneven(self.0.iter().map(|share| share.all))
    }

    /// How many entries above the threshold, and how many that are equal to it, each rank keeps: all, or, if
    /// these are more than `2 k`, the first `k`, those above it first.
    pub(super) fn quotas(&self, k: usize) -> Vec<Quota> {
        let (reaching, _) = self.total();
        let left = if reaching <= limit(k) { reaching } else { k as u64 };
        // Ranks that do not lie have fewer than `k` above a new threshold.
        let (above, left) = first(self.0.iter().map(|share| share.above), left);
        let (ties, _) = first(self.0.iter().map(|share| share.ties), left);
        above.into_iter().zip(ties).map(|(above, ties)| Quota { above, ties }).collect()
    }

    /// The entries that reach the threshold, and all.
    fn total(&self) -> (u64, u64) {
        let add = |(reaching, all), share: &Share| (reaching + share.above + share.ties, all + share.all);
        self.0.iter().fold((0, 0), add)
    }
}

/// The entries of a result at most.
const fn limit(k: usize) -> u64 {
    (k as u64).saturating_mul(2)
}

/// The first `left` of these numbers of entries, and what is left of it.
fn first(numbers: impl Iterator<Item = u64>, mut left: u64) -> (Vec<usize>, u64) {
    let taken = numbers.map(|number| {
        let taken = number.min(left);
        left -= taken;
        taken as usize
    });
    (taken.collect(), left)
}

/// Whether the largest number is over four times the mean, rounded up: then, by the paper, it pays to move
/// entries.
pub(super) fn is_uneven(numbers: impl ExactSizeIterator<Item = u64>) -> bool {
    let ranks = numbers.len().max(1) as u64;
    let (total, largest) = numbers.fold((0_u64, 0), |(total, largest), n| (total + n, n.max(largest)));
    largest > total.div_ceil(ranks).saturating_mul(4)
}

/// How many entries a rank keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    above: usize,
    ties: usize,
}

impl Quota {
    pub(super) const fn entries(self) -> usize {
        self.above + self.ties
    }

    /// The first entries above the threshold, and the first that are equal to it.
    pub(super) fn choose(self, sums: &SparseVec, threshold: u32) -> SparseVec {
        let Self { mut above, mut ties } = self;
        let mut chosen = SparseVec::with_capacity(sums.dim(), self.entries());
        for (index, value) in sums.iter() {
            let left = match magnitude(value).cmp(&threshold) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => &mut ties,
                std::cmp::Ordering::Greater => &mut above,
            };
            if *left > 0 {
                *left -= 1;
                chosen.push(index, value);
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The threshold that a search by one rank finds, and its rounds.
    fn found(values: &[f32], k: usize, guess: u32) -> (u32, usize) {
        let mut bracket = Bracket::default();
        let mut rungs = if guess == 0 { bracket.rungs() } else { ladder_rungs(guess) };
        for round in 1.. {
            let counts = ladder_counts(values, &rungs).map(u64::from);
            let reaching = bracket.narrow(&rungs, &counts, k as u64);
            if reaching.is_some_and(|count| count <= (k + k / 8) as u64) || bracket.is_closed() {
                return (bracket.low, round);
            }
            rungs = bracket.rungs();
        }
        unreachable!("there is a last round")
    }

    #[test]
    fn searches_end_near_the_kth_magnitude_from_any_guess() {
        let mut generator = brevity_compress::generator::Generator::new(5);
        for scale in [1e-44, 1e-30, 1.0, 1e37] {
            let values: Vec<f32> = (0..3000).map(|_| generator.normal() * scale).collect();
            for guess in [0, 1, 1.0_f32.to_bits(), (2.0 * scale).to_bits(), INFINITE - 1] {
                for k in [1, 7, 300, 2999] {
                    let (threshold, rounds) = found(&values, k, guess);
                    let reaching = values.iter().filter(|value| magnitude(**value) >= threshold).count();
                    let above = values.iter().filter(|value| magnitude(**value) > threshold).count();
                    // There are zeros among the smallest.
                    let fits = reaching >= k && (reaching <= k + k / 8 || above < k) || threshold == 1;
                    assert!(fits && rounds <= 8, "{scale}, {guess}, {k}: {reaching}, {rounds} rounds");
                }
            }
        }
    }

    #[test]
    fn searches_among_few_and_equal_values_end() {
        assert_eq!(found(&[], 3, 0).0, 1);
        assert_eq!(found(&[2.0, -0.5], 3, 1.0_f32.to_bits()).0, 1);
        assert_eq!(found(&[-3.0; 50], 3, 1.0_f32.to_bits()).0, 3.0_f32.to_bits());
        assert_eq!(found(&[f32::MAX; 50], 3, 0).0, f32::MAX.to_bits());
    }

    #[test]
    fn counts_that_contradict_each_other_end_a_search() {
        let mut bracket = Bracket::default();
        let mut rounds = 0;
        while !bracket.is_closed() {
            let rungs = bracket.rungs();
            let counts: [u64; RUNGS] = std::array::from_fn(|j| (j as u64 + rounds) % 2 * 9);
            bracket.narrow(&rungs, &counts, 5);
            rounds += 1;
        }
        assert!(rounds <= 8, "{rounds}");
    }

    #[test]
    fn ties_are_cut_to_k_by_rank_and_index() {
        let (above, tie) = (5.0, 2.0);
        let sums: Vec<SparseVec> = [vec![tie, above, tie], vec![tie, 1.0, -tie], vec![-above, tie, tie]]
            .into_iter()
            .map(|values| SparseVec::from_parts(9, vec![0, 4, 8], values).unwrap())
            .collect();
        let threshold = tie.to_bits();
        let shares = Shares(sums.iter().map(|sums| Share::of(sums.values(), threshold)).collect());
        assert_eq!(shares.total(), (8, 9));
        let chosen = |k| -> Vec<Vec<u32>> {
            let quotas = shares.quotas(k);
            let chosen = quotas.iter().zip(&sums).map(|(quota, sums)| quota.choose(sums, threshold));
            chosen.map(|chosen| chosen.indices().to_vec()).collect()
        };
        assert_eq!(chosen(4), [vec![0, 4, 8], vec![0, 8], vec![0, 4, 8]]);
        assert_eq!(chosen(3), [vec![0, 4], vec![], vec![0]]);
        assert_eq!(chosen(1), [vec![4], vec![], vec![]]);
        assert_eq!(chosen(0), [vec![], vec![], Vec::<u32>::new()]);
        assert!(shares.fit(4) && !shares.fit(3) && shares.fit(8) && !shares.fit(17));
    }

    #[test]
    fn shares_are_those_of_a_region() {
        let share = |above, ties, all| Share { above, ties, all };
        assert!(share(1, 1, 2).is_possible(5..7));
        assert!(!share(1, 1, 3).is_possible(5..7) && !share(2, 1, 2).is_possible(5..7));
        assert!(!share(u64::MAX, 2, 1).is_possible(5..7));
        assert!(is_uneven([5, 0, 0, 0, 0].into_iter()) && !is_uneven([4, 0, 0, 0, 0].into_iter()));
        assert!(!is_uneven([].into_iter()) && !is_uneven([9].into_iter()));
    }
}
