//! Which tensors that do not shrink travel with which bucket of matrices.

use super::bucket::in_buckets;

/// A tensor's number and its elements.
pub(super) type Vector = (usize, usize);

/// Gives each of the `vectors`, in the builder's order, to a bucket of matrices, by the first tensor of each
/// bucket: the one that leaves first of those that need not wait for it, if gradients are ready from the last
/// tensor on; otherwise the last one to leave. A bucket takes at most `most` elements. Returns the vectors of
/// each bucket, and those that no bucket takes.
fn along(vectors: Vec<Vector>, firsts: &[usize], most: usize) -> (Vec<Vec<Vector>>, Vec<Vector>) {
    let (mut taken, mut left) = (vec![Vec::new(); firsts.len()], Vec::new());
    let mut held = vec![0_usize; firsts.len()];
    for (tensor, count) in vectors.into_iter().rev() {
        let buckets = || (0..firsts.len()).zip(firsts);
        let earlier = buckets().filter(|(_, first)| **first < tensor).max_by_key(|(_, first)| **first);
        let bucket = earlier.or_else(|| buckets().min_by_key(|(_, first)| **first));
        match bucket {
            Some((bucket, _)) if held[bucket].saturating_add(count) <= most => {
                held[bucket] += count;
                taken[bucket].push((tensor, count));
            }
            _ => left.push((tensor, count)),
        }
    }
    taken.iter_mut().for_each(|vectors| vectors.reverse());
    left.reverse();
    (taken, left)
}

/// The matrices of a bucket, and the vectors that travel with them.
pub(super) type Members<S> = (Vec<(usize, S)>, Vec<Vector>);

/// Puts matrices that have a key in common into buckets of at most `most` elements, each with the vectors of
/// [`along`]. Returns also the vectors that travel otherwise.
pub(super) fn with_matrices<K: Copy + PartialEq, S>(
    matrices: Vec<(K, (usize, S))>,
    elements: impl Fn(&S) -> usize,
    vectors: Vec<Vector>,
    most: usize,
    most_of_vectors: usize,
) -> (Vec<(K, Members<S>)>, Vec<Vector>) {
    let buckets = in_buckets(matrices, |(_, state)| elements(state), most);
    let firsts: Vec<usize> = buckets.iter().map(|(_, members)| members[0].0).collect();
    let (taken, left) = along(vectors, &firsts, most_of_vectors);
    let with_vectors = |((key, members), vectors)| (key, (members, vectors));
    (buckets.into_iter().zip(taken).map(with_vectors).collect(), left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_joins_the_bucket_that_leaves_next() {
        let vectors = vec![(0, 1), (2, 1), (5, 1), (6, 1), (9, 1)];
        let (taken, left) = along(vectors.clone(), &[7, 4, 1], 10);
        assert_eq!(taken, [vec![(9, 1)], vec![(5, 1), (6, 1)], vec![(0, 1), (2, 1)]]);
        assert!(left.is_empty());
        assert_eq!(along(vectors.clone(), &[], 10), (vec![], vectors));
    }

    #[test]
    fn a_bucket_takes_so_many_elements_and_no_more() {
        let vectors = vec![(1, 4), (2, 0), (3, 5), (4, 3), (5, 2)];
        assert_eq!(along(vectors, &[0], 5), (vec![vec![(2, 0), (4, 3), (5, 2)]], vec![(1, 4), (3, 5)]));
    }
}
