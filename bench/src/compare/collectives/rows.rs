//! The rows: a collective on a wire, at several numbers of ranks and sizes, with the bar of each.

use super::sides::{Sides, Stage};
use crate::collective::{self, Collective};
use crate::compare::bar::Bar;
use crate::compare::pairs::{Comparison, Subject, compare, judge_best};
use crate::net::Hosts;
use crate::order::What;
use crate::perf::Dtype;
use crate::{Error, Result};

/// 25 million `f32`, the vector of the bars.
const LONG: usize = 100_000_000;

/// The longest vector of any rank.
const LONGEST: usize = 400_000_000;

/// Bytes over loopback: about two in each decade.
const ON_SOCKETS: [usize; 11] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, LONG, LONGEST];
const IN_MEMORY: [usize; 11] =
    [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Much longer than a burst of the links.
const ON_LINKS: [usize; 3] = [4 << 20, 16 << 20, LONG];

/// With `--quick`.
const FEW: [usize; 2] = [1 << 10, 64 << 10];
const FEW_ON_LINKS: [usize; 1] = [1 << 20];

/// The shaped links, for the plan: their goodput, and roughly what a message takes on them.
pub const LINKS: &str = "between:50,5,8.377";

/// A wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Sockets over loopback, in one network namespace.
    Sockets,
    /// The memory that ranks of one host share.
    Memory,
    /// Shaped links between hosts of one rank each.
    Links,
    /// Shaped links between hosts of two ranks each.
    Pairs,
}

impl On {
    const ALL: [Self; 4] = [Self::Sockets, Self::Memory, Self::Links, Self::Pairs];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sockets => "tcp",
            Self::Memory => "shm",
            Self::Links => "links",
            Self::Pairs => "pairs",
        }
    }

    /// The hosts of a job, on wires between hosts.
    fn hosts(self, world_size: u32) -> Result<Option<Hosts>> {
        let per_host = match self {
            Self::Sockets | Self::Memory => return Ok(None),
            Self::Links => 1,
            Self::Pairs => 2,
        };
        if !world_size.is_multiple_of(per_host) {
            let why = format!("--ranks {world_size}: hosts of {} have {per_host} ranks each", self.name());
            return Err(Error::Arguments(why));
        }
        Hosts::new(world_size / per_host, per_host).map(Some)
    }

    fn world_sizes(self, quick: bool) -> &'static [u32] {
        match (self, quick) {
            (Self::Sockets, false) => &[2, 4],
            (Self::Links, false) => &[4, 8],
            (Self::Pairs, _) => &[4],
            _ => &[2],
        }
    }

    fn sizes(self, quick: bool) -> &'static [usize] {
        match (self, quick) {
            (Self::Sockets, false) => &ON_SOCKETS,
            (Self::Memory, false) => &IN_MEMORY,
            (Self::Sockets | Self::Memory, true) => &FEW,
            (Self::Links | Self::Pairs, false) => &ON_LINKS,
            (Self::Links | Self::Pairs, true) => &FEW_ON_LINKS,
        }
    }
}

/// What Brevity is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// Other libraries, and the floor of links.
    Others,
    /// Itself: sums in the fixed order, with those in any order.
    AnyOrder,
    /// Itself: as many `bf16` as `f32`.
    F32,
    /// What the plan says, of links that are known to both.
    Plan,
}

/// How ranks of Brevity make their calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The name of the side, where it is not that of the wire.
    pub name: Option<&'static str>,
    /// The elements.
    pub dtype: Dtype,
    any_order: bool,
    /// `BREVITY_MACHINE`, if given.
    pub machine: Option<&'static str>,
}

impl Form {
    const USUAL: Self = Self { name: None, dtype: Dtype::F32, any_order: false, machine: None };

    /// The variable for the order of sums.
    pub fn any_order(self) -> (&'static str, &'static str) {
        ("BREVITY_ANY_ORDER", if self.any_order { "1" } else { "0" })
    }
}

impl Against {
    /// The forms of Brevity's side, and of the other one if that is Brevity, too.
    pub fn forms(self) -> (Form, Option<Form>) {
        let named = |name, form| Form { name: Some(name), ..form };
        match self {
            Self::Others => (Form::USUAL, None),
            Self::AnyOrder => {
                let any_order = Form { any_order: true, ..Form::USUAL };
                (named("fixed order", Form::USUAL), Some(named("any order", any_order)))
            }
            Self::F32 => {
                let halves = Form { dtype: Dtype::Bf16, ..Form::USUAL };
                (named("bf16", halves), Some(named("f32", Form::USUAL)))
            }
            Self::Plan => (Form { machine: Some(LINKS), ..Form::USUAL }, None),
        }
    }

    /// The end of a row's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Others => "",
            Self::AnyOrder => "-order",
            Self::F32 => "-bf16",
            Self::Plan => "-plan",
        }
    }
}

/// A row of the table of bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The collective.
    pub collective: Collective,
    /// The wire.
    pub on: On,
    /// The other side.
    pub against: Against,
}

/// The rows in which Brevity is on both sides, all of the all-reduce.
const OF_ITSELF: [(On, Against); 5] = [
    (On::Sockets, Against::AnyOrder),
    (On::Links, Against::AnyOrder),
    (On::Pairs, Against::AnyOrder),
    (On::Links, Against::F32),
    (On::Links, Against::Plan),
];

impl Row {
    /// All rows of the collectives that Brevity has, in the order of measurement.
    pub fn all() -> impl Iterator<Item = Self> {
        let others = |collective| On::ALL.map(|on| Self { collective, on, against: Against::Others });
        let collective = Collective::AllReduce;
        let of_itself = OF_ITSELF.map(|(on, against)| Self { collective, on, against });
        collective::measured().flat_map(others).chain(of_itself)
    }

    /// Whether the row is measured unless rows are named.
    pub fn is_default(self) -> bool {
        matches!(self.on, On::Sockets | On::Memory) || self.collective == Collective::AllReduce
    }

    /// The name for `--only`.
    pub fn name(self) -> String {
        format!("{}-{}{}", self.collective, self.on.name(), self.against.suffix())
    }

    /// Whether a name of `--only` means this row: its own, its collective's or its wire's.
    pub fn is_named(self, name: &str) -> bool {
        name == self.name() || name == self.collective.name() || name == self.on.name()
    }

    /// Measures the row. Adds to `left_out` what can't be measured here, and why.
    ///
    /// # Errors
    /// If Brevity's side fails.
    pub fn measure(
        self,
        stage: &Stage,
        tell: &mut dyn FnMut(Comparison) -> Result<()>,
        left_out: &mut Vec<String>,
    ) -> Result<()> {
        let given = &stage.ranks[..];
        let usual: &[u32] = match (self.on, self.against) {
            (On::Sockets | On::Links, Against::AnyOrder) if !stage.quick => &[2, 4, 8],
            (On::Pairs, Against::AnyOrder) if !stage.quick => &[4, 8],
            _ => self.on.world_sizes(stage.quick),
        };
        let world_sizes = if given.is_empty() { usual } else { given };
        for &world_size in world_sizes {
            let ranks = format!("{} with {world_size} ranks", self.name());
            let hosts = match self.on.hosts(world_size) {
                Ok(hosts) => hosts,
                Err(why) => {
                    left_out.push(format!("{ranks}: {why}"));
                    continue;
                }
            };
            let mut sides = Sides::start(self, world_size, hosts, stage, left_out)?;
            if sides.theirs.is_empty() {
                left_out.push(format!("{ranks}: there is no peer"));
                continue;
            }
            for bytes in self.sizes(world_size, stage) {
                let (what, wire) = (self.collective.to_string(), self.on.name());
                let subject = Subject { what, wire, world_size, bytes };
                let floor_us = sides.floor_us(bytes);
                let what = What::Collective(self.collective);
                let mut found = compare(&subject, what, &mut sides.ours, &mut sides.theirs, stage.effort)?;
                found.iter_mut().for_each(|comparison| comparison.floor_us = floor_us);
                judge_best(found, self.bar(bytes), tell)?;
            }
        }
        Ok(())
    }

    /// The sizes at which all vectors are short enough.
    fn sizes(self, world_size: u32, stage: &Stage) -> Vec<usize> {
        if self.collective == Collective::Barrier {
            return vec![0];
        }
        let sizes = stage.sizes.map(|range| range.sizes().collect::<Vec<_>>());
        let usual = || match self.against {
            Against::AnyOrder if !stage.quick => &ON_SOCKETS[..ON_SOCKETS.len() - 1],
            _ => self.on.sizes(stage.quick),
        };
        let mut sizes = sizes.unwrap_or_else(|| usual().to_vec());
        sizes.retain(|&bytes| self.collective.longest(bytes, world_size) <= LONGEST);
        sizes
    }

    /// The limit of the time over that of the fastest peer, and where links have one over the floor.
    fn bar(self, bytes: usize) -> Option<Bar> {
        use Collective as C;
        match self.against {
            Against::AnyOrder => return Some(Bar::Ratio(1.05)),
            Against::F32 => return (bytes == LONG).then_some(Bar::Ratio(0.52)),
            Against::Plan => return Some(Bar::Predicted(0.7, 1.4)),
            Against::Others => {}
        }
        match (self.on, self.collective, bytes) {
            (_, C::Barrier, _) => None,
            (On::Sockets, C::AllReduce, LONG) => Some(Bar::Ratio(0.9)),
            (On::Sockets, ..) => Some(Bar::Ratio(1.05)),
            (On::Memory, C::Reduce | C::AllReduce | C::ReduceScatter, _) => Some(Bar::Ratio(0.8)),
            (On::Memory, _, ..=65_536) => Some(Bar::Ratio(0.9)),
            (On::Memory, ..) => Some(Bar::Ratio(1.03)),
            (On::Links, C::AllReduce, LONG) => Some(Bar::Ratio(1.02)),
            (On::Pairs, C::AllReduce, LONG) => Some(Bar::Ratio(1.05)),
            (On::Links | On::Pairs, ..) => None,
        }
    }

    /// The limit of the geometric mean of those ratios over a decade of sizes.
    pub fn decade_bar(self) -> Option<Bar> {
        match (self.on, self.collective) {
            _ if self.against != Against::Others => None,
            (On::Sockets, Collective::AllReduce) => Some(Bar::Ratio(0.95)),
            (On::Sockets, collective) if collective != Collective::Barrier => Some(Bar::Ratio(1.0)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use brevity::collectives::Machine;

    use super::*;

    fn row(name: &str) -> Row {
        Row::all().find(|row| row.name() == name).unwrap()
    }

    #[test]
    fn rows_are_named_by_collective_and_wire() {
        let named = |name: &str| Row::all().filter(|row| row.is_named(name)).count();
        let of_all_reduces = On::ALL.len() + OF_ITSELF.len();
        assert_eq!((named("allreduce-tcp"), named("allreduce"), named("dance")), (1, of_all_reduces, 0));
        assert_eq!((named("links"), named("allreduce-links-bf16")), (collective::measured().count() + 3, 1));
        let by_default = |name: &str| row(name).is_default();
        assert!(by_default("broadcast-tcp") && by_default("allreduce-pairs"));
        assert!(!by_default("broadcast-links"));
    }

    #[test]
    fn bars_are_those_of_the_table() {
        let bar = |name: &str, bytes| row(name).bar(bytes);
        assert_eq!(bar("allreduce-tcp", LONG), Some(Bar::Ratio(0.9)));
        assert_eq!(bar("allreduce-tcp", 1 << 10), Some(Bar::Ratio(1.05)));
        assert_eq!(bar("allreduce-shm", 64 << 20), Some(Bar::Ratio(0.8)));
        let all_gather = [64 << 10, 1 << 20].map(|bytes| bar("allgather-shm", bytes));
        assert_eq!(all_gather, [0.9, 1.03].map(|most| Some(Bar::Ratio(most))));
        assert_eq!(bar("allreduce-links", LONG), Some(Bar::Ratio(1.02)));
        assert_eq!(bar("allreduce-pairs", LONG), Some(Bar::Ratio(1.05)));
        assert_eq!((bar("barrier-tcp", 0), bar("broadcast-links", LONG)), (None, None));
        assert_eq!(bar("allreduce-tcp-order", 1 << 20), Some(Bar::Ratio(1.05)));
        assert_eq!(bar("allreduce-links-bf16", LONG), Some(Bar::Ratio(0.52)));
        assert_eq!(bar("allreduce-links-plan", 1 << 20), Some(Bar::Predicted(0.7, 1.4)));
        assert!(LINKS.parse::<Machine>().is_ok());
        assert_eq!(row("allreduce-tcp-order").decade_bar(), None);
        assert_eq!(row("allreduce-tcp").decade_bar(), Some(Bar::Ratio(0.95)));
        assert_eq!(row("broadcast-tcp").decade_bar(), Some(Bar::Ratio(1.0)));
        assert_eq!(row("allreduce-shm").decade_bar(), None);
    }
}
