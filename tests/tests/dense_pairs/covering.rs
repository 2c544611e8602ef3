//! Few calls in which all pairs meet.

use std::collections::BTreeSet;

use super::plan::{FACTORS, KINDS, Plan, Values};

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as usize) % limit
    }
}

/// Two values of different factors.
pub(super) type Pair = ((usize, usize), (usize, usize));

/// Those that meet in a call.
fn pairs(values: &Values) -> Vec<Pair> {
    let kind = KINDS[values[0]];
    let mut met: Vec<(usize, usize)> = values.iter().copied().enumerate().collect();
    met.retain(|(index, _)| kind.has(FACTORS[*index].0));
    let of = |first: usize| met[first + 1..].iter().map(move |second| (first, *second));
    (0..met.len()).flat_map(of).map(|(first, second)| (met[first], second)).collect()
}

/// Calls in which all pairs meet, and the pairs for which none was found: greedily, each call has a pair that
/// none had before, and of some such calls it is the one with the most.
pub(super) fn covering() -> (Vec<Values>, Vec<Pair>) {
    const TRIES: usize = 2000;
    const FOUND: usize = 12;
    let mut numbers = Numbers(27);
    let mut left = BTreeSet::new();
    for (first, (_, of_first)) in FACTORS.into_iter().enumerate() {
        for (second, (_, of_second)) in FACTORS.into_iter().enumerate().skip(first + 1) {
            let values = (0..of_first).flat_map(|a| (0..of_second).map(move |b| (a, b)));
            left.extend(values.map(|(a, b)| ((first, a), (second, b))));
        }
    }
    let (mut calls, mut alone) = (Vec::new(), Vec::new());
    while let Some(pair) = left.first().copied() {
        let ((first, a), (second, b)) = pair;
        let candidates = (0..TRIES).map(|_| {
            let mut values = FACTORS.map(|(_, limit)| numbers.below(limit));
            (values[first], values[second]) = (a, b);
            values
        });
        let meets = |values: &Values| Plan::new(values).is_valid() && pairs(values).contains(&pair);
        let new = |values: &Values| pairs(values).iter().filter(|pair| left.contains(pair)).count();
        match candidates.filter(meets).take(FOUND).max_by_key(new) {
            Some(values) => {
                let met = pairs(&values);
                left.retain(|pair| !met.contains(pair));
                calls.push(values);
            }
            None => {
                left.remove(&pair);
                alone.push(pair);
            }
        }
    }
    (calls, alone)
}
