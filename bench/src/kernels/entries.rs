//! Random sparse vectors.

use brevity::compress::SparseVec;
use brevity::compress::generator::Generator;
use brevity::compress::select::random_k;

use super::refused;
use crate::Result;

/// Random entries, divided into `count` vectors of `k` each (fewer if `n` does not have that many places). No
/// two have an index in common; values are normal.
pub(super) fn disjoint(n: usize, count: usize, k: usize) -> Result<Vec<SparseVec>> {
    let mut generator = Generator::new(3);
    let (mut all, mut drawn) = (SparseVec::new(n), Vec::new());
    random_k(&vec![0.0; n], count * k, &mut generator, &mut all, &mut drawn)
        .map_err(refused("random entries"))?;
    let mut owners: Vec<usize> = (0..all.len()).map(|place| place % count).collect();
    for place in 0..owners.len() {
        let other = place + generator.below((owners.len() - place) as u64) as usize;
        owners.swap(place, other);
    }
    let mut hands = vec![SparseVec::with_capacity(n, k); count];
    all.indices().iter().zip(owners).for_each(|(&index, owner)| hands[owner].push(index, generator.normal()));
    Ok(hands)
}
