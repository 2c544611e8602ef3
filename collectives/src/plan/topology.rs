//! Which ranks of a group are on one host.

use std::sync::Arc;

/// How the ranks of a group are spread over hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The hosts.
    pub hosts: u32,
    /// The ranks of the host that has the fewest.
    pub least: u32,
    /// The ranks of the host that has the most.
    pub most: u32,
    /// Whether sums inside the hosts, and then over the hosts, have the fixed order: the number of hosts is a
    /// power of two, and each has an aligned block of `2^j` ranks.
    pub is_aligned: bool,
}

impl Topology {
    /// All ranks on one host.
    #[must_use]
    pub const fn one_host(ranks: u32) -> Self {
        Self { hosts: 1, least: ranks, most: ranks, is_aligned: true }
    }

    /// Every rank on a host of its own.
    #[must_use]
    pub const fn apart(ranks: u32) -> Self {
        Self { hosts: ranks, least: 1, most: 1, is_aligned: ranks.is_power_of_two() }
    }

    /// Ranks on these hosts, by rank.
    #[must_use]
    pub fn of(hosts: &[u32]) -> Self {
        Places::new(hosts).topology
    }

    /// Whether a host has several ranks, and there are several hosts.
    #[must_use]
    pub const fn has_levels(&self) -> bool {
        self.hosts > 1 && self.most > 1
    }

    /// Likewise, and all hosts have as many: then each rank has one at its place on every other host.
    #[must_use]
    pub const fn is_even(&self) -> bool {
        self.has_levels() && self.least == self.most
    }
}

/// The ranks of each host of a group.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) topology: Topology,
    /// The ranks of each host, rising; hosts in the order of their first ranks.
    ranks: Vec<Arc<[u32]>>,
    /// The host of each rank, and the rank's place there.
    of: Vec<(u32, u32)>,
}

impl Places {
    /// Of ranks on these hosts, by rank: numbers of any kind.
    pub(crate) fn new(hosts: &[u32]) -> Self {
        let mut numbers: Vec<u32> = hosts.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let mut order = vec![u32::MAX; numbers.len()];
        let mut ranks: Vec<Vec<u32>> = Vec::new();
        let mut of = Vec::with_capacity(hosts.len());
        for (rank, host) in (0..).zip(hosts) {
            let number = numbers.binary_search(host).unwrap_or_default();
            if order[number] == u32::MAX {
                order[number] = ranks.len() as u32;
                ranks.push(Vec::new());
            }
            let here = &mut ranks[order[number] as usize];
            of.push((order[number], here.len() as u32));
            here.push(rank);
        }
        let lengths = || ranks.iter().map(|ranks| ranks.len() as u32);
        let (least, most) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
        let is_block =
            |ranks: &[u32]| ranks[0].is_multiple_of(most) && ranks[ranks.len() - 1] - ranks[0] == most - 1;
        let is_aligned = least == most
            && most.is_power_of_two()
            && ranks.len().is_power_of_two()
            && ranks.iter().all(|ranks| is_block(ranks));
        let topology = Topology { hosts: ranks.len() as u32, least, most, is_aligned };
        Self { topology, ranks: ranks.into_iter().map(Arc::from).collect(), of }
    }

    /// The ranks of the host of `rank`.
    pub(crate) fn here(&self, rank: u32) -> &Arc<[u32]> {
        &self.ranks[self.host(rank) as usize]
    }

    /// The host of a rank.
    pub(crate) fn host(&self, rank: u32) -> u32 {
        self.of[rank as usize].0
    }

    /// The place of a rank among those of its host.
    pub(crate) fn place(&self, rank: u32) -> u32 {
        self.of[rank as usize].1
    }

    /// The rank at `place` of each host; all hosts have one.
    pub(crate) fn across(&self, place: u32) -> Arc<[u32]> {
        self.ranks.iter().map(|ranks| ranks[place as usize]).collect()
    }

    /// All ranks, host after host.
    pub(crate) fn by_host(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranks.iter().flat_map(|ranks| ranks.iter().copied())
    }

    /// Whether the ranks of a host have numbers behind each other, on all hosts.
    pub(crate) fn are_in_order(&self) -> bool {
        self.by_host().zip(0..).all(|(rank, place)| rank == place)
    }

    /// The number of ranks of each host.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.ranks.iter().map(|ranks| ranks.len())
    }

    /// A rank of each host: the first one, but `root` on its own.
    pub(crate) fn representatives(&self, root: u32) -> Arc<[u32]> {
        let of = |ranks: &Arc<[u32]>| if self.here(root)[0] == ranks[0] { root } else { ranks[0] };
        self.ranks.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_aligned_or_not() {
        for (hosts, expected) in [
            (&[0, 0, 1, 1][..], (2, 2, 2, true)),
            (&[5, 5, 5, 5, 2, 2, 2, 2], (2, 4, 4, true)),
            (&[0, 1, 0, 1], (2, 2, 2, false)),
            (&[0, 0, 1, 1, 2, 2], (3, 2, 2, false)),
            (&[0, 0, 0, 1, 1, 1], (2, 3, 3, false)),
            (&[0, 0, 1], (2, 1, 2, false)),
            (&[7, 3, 1, 0], (4, 1, 1, true)),
            (&[4, 4, 4], (1, 3, 3, false)),
        ] {
            let Topology { hosts: count, least, most, is_aligned } = Topology::of(hosts);
            assert_eq!((count, least, most, is_aligned), expected, "{hosts:?}");
        }
    }

    #[test]
    fn ranks_are_found_by_host() {
        let places = Places::new(&[9, 4, 9, 4, 9]);
        assert_eq!((&**places.here(2), &**places.here(3)), (&[0, 2, 4][..], &[1, 3][..]));
        assert_eq!((places.host(3), places.place(3), places.place(4)), (1, 1, 2));
        assert_eq!((&*places.across(0), &*places.across(1)), (&[0, 1][..], &[2, 3][..]));
        assert_eq!(places.by_host().collect::<Vec<_>>(), [0, 2, 4, 1, 3]);
        assert!(!places.are_in_order() && Places::new(&[9, 9, 4]).are_in_order());
        assert_eq!(places.sizes().collect::<Vec<_>>(), [3, 2]);
        assert_eq!((&*places.representatives(4), &*places.representatives(3)), (&[4, 1][..], &[0, 3][..]));
    }
}
