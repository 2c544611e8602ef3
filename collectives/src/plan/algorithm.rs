//! The algorithms of dense collectives, by name.

/// An algorithm of a dense collective. docs/algorithms.md describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Algorithm {
    /// Distances that double, with empty messages.
    Dissemination,
    /// A tree of radix 2.
    Binomial,
    /// A tree of radix 4.
    Knomial4,
    /// A tree of radix 8.
    Knomial8,
    /// Blocks go around a ring.
    Ring,
    /// Recursive doubling.
    Doubling,
    /// Recursive halving and doubling.
    Halving,
    /// Every rank sends to every other one at once.
    Direct,
    /// Bruck's algorithm.
    Bruck,
    /// Ranks meet in pairs, one after the other.
    Pairwise,
    /// The root sends to or receives from every rank.
    Linear,
    /// Scatter and all-gather.
    Spread,
    /// Inside each host, and between hosts.
    Hosts,
    /// Over the memory that all ranks share.
    Slots,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 14] = [
        Self::Dissemination,
        Self::Binomial,
        Self::Knomial4,
        Self::Knomial8,
        Self::Ring,
        Self::Doubling,
        Self::Halving,
        Self::Direct,
        Self::Bruck,
        Self::Pairwise,
        Self::Linear,
        Self::Spread,
        Self::Hosts,
        Self::Slots,
    ];

    /// The name, as in `BREVITY_ALGORITHM`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dissemination => "dissemination",
            Self::Binomial => "binomial",
            Self::Knomial4 => "knomial-4",
            Self::Knomial8 => "knomial-8",
            Self::Ring => "ring",
            Self::Doubling => "doubling",
            Self::Halving => "halving",
            Self::Direct => "direct",
            Self::Bruck => "bruck",
            Self::Pairwise => "pairwise",
            Self::Linear => "linear",
            Self::Spread => "spread",
            Self::Hosts => "hosts",
            Self::Slots => "slots",
        }
    }

    /// Its number, from 1 on.
    pub(crate) const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The algorithm of a number.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }

    /// The algorithm of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
            assert_eq!(Algorithm::of_number(algorithm.number()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_name("rings"), None);
    }
}
