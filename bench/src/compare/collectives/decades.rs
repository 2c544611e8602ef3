//! Geometric means of the ratios over each decade of sizes.

use serde::Serialize;

use super::rows::Row;
use crate::compare::bar::Bar;
use crate::compare::pairs::Comparison;

/// The ratios to the fastest peer at the sizes of a decade.
#[derive(Clone, Debug, Serialize)]
pub struct Decade {
    /// What is measured.
    pub what: String,
    /// The wire.
    pub wire: &'static str,
    /// Ranks.
    pub world_size: u32,
    /// The decade is from 10 to the power of this to ten times as much.
    pub power: u32,
    /// Sizes in it.
    pub sizes: usize,
    /// The geometric mean of the median ratios.
    pub geometric_mean: f64,
    /// The limit.
    pub bar: Bar,
    /// Whether it meets the limit.
    pub met: bool,
}

/// The decades of a row; none if it has no bar for them.
pub fn of(row: &Row, pairs: &[Comparison]) -> Vec<Decade> {
    let Some(bar) = row.decade_bar() else { return Vec::new() };
    let best: Vec<&Comparison> = pairs.iter().filter(|pair| is_best(pair, pairs)).collect();
    let mut keys: Vec<(u32, u32)> = best.iter().map(|pair| key(pair)).collect();
    keys.dedup();
    let decade = |(world_size, power)| {
        let ratios = best.iter().filter(|pair| key(pair) == (world_size, power)).map(|pair| pair.ratio);
        let logarithms: Vec<f64> = ratios.map(f64::ln).collect();
        let sizes = logarithms.len();
        let geometric_mean = (logarithms.iter().sum::<f64>() / sizes as f64).exp();
        let met = bar.is_met(0.0, (geometric_mean, geometric_mean), 0.0);
        let (what, wire) = (row.collective.to_string(), row.on.name());
        Decade { what, wire, world_size, power, sizes, geometric_mean, bar, met }
    };
    keys.into_iter().map(decade).collect()
}

/// Ranks and decade.
fn key(pair: &Comparison) -> (u32, u32) {
    (pair.subject.world_size, pair.subject.bytes.max(1).ilog10())
}

/// Whether no peer was faster at the same size.
fn is_best(pair: &Comparison, pairs: &[Comparison]) -> bool {
    let same = |other: &&Comparison| {
        (other.subject.world_size, other.subject.bytes) == (pair.subject.world_size, pair.subject.bytes)
    };
    pairs.iter().filter(same).all(|other| pair.theirs_us <= other.theirs_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::pairs::{Subject, Turn};

    #[test]
    fn the_fastest_peer_of_each_size_counts() {
        let pair = |world_size, bytes, peer: &str, times: (f64, f64)| {
            let subject = Subject { what: "allreduce".into(), wire: "tcp", world_size, bytes };
            Comparison::new(subject, "tcp", peer, vec![Turn::of(&times)], 0).unwrap()
        };
        let pairs = [
            pair(2, 1024, "slow", (1.0, 9.0)),
            pair(2, 1024, "fast", (1.0, 2.0)),
            pair(2, 8192, "fast", (4.0, 2.0)),
            pair(2, 16_384, "fast", (9.0, 10.0)),
            pair(4, 1024, "fast", (9.0, 10.0)),
        ];
        let row = Row::all().find(|row| row.name() == "allreduce-tcp").unwrap();
        let decades = of(&row, &pairs);
        let found: Vec<_> =
            decades.iter().map(|found| (found.world_size, found.power, found.sizes)).collect();
        assert_eq!(found, [(2, 3, 2), (2, 4, 1), (4, 3, 1)]);
        assert!((decades[0].geometric_mean - 1.0).abs() < 1e-9 && !decades[0].met);
        assert!((decades[1].geometric_mean - 0.9).abs() < 1e-9 && decades[1].met);
        let shm = Row::all().find(|row| row.name() == "allreduce-shm").unwrap();
        assert!(of(&shm, &pairs).is_empty());
    }
}
