//! The algorithms that a group takes, by operation, kind of work and length.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use brevity_compress::in_standard_float_mode;

use super::wishes::OPERATIONS;
use super::{Algorithm, Ground, Machine, Places, Row, Terms, Topology, Wishes, Work, fastest};
use crate::description::{Operation, mix};
use crate::error::{Error, Result};

/// The kinds of work: four switches.
const KINDS: usize = 16;

/// The lengths that are told apart: two for each power of two, and none.
const LENGTHS: usize = 2 * usize::BITS as usize + 1;

/// How algorithms are chosen in a group.
///
/// The table holds what was chosen for each operation, kind of work and length, where two lengths of each
/// power of two are told apart. A place is filled when it is first asked for: what it holds depends only on
/// the ground, of which ranks compare a digest.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) ground: Ground,
    pub(crate) wishes: Wishes,
    /// The ranks of each host, if there are several hosts, and one has several ranks.
    pub(crate) places: Option<Arc<Places>>,
    /// The choices for the ranks at a place of the hosts, while those at the others do likewise.
    across: Option<Box<Self>>,
    /// The choices for one rank of each host.
    leaders: Option<Box<Self>>,
    /// The numbers of algorithms; 0 where nobody has asked.
    table: Box<[AtomicU8]>,
}

impl Plan {
    /// For ranks on these hosts, by rank, which share memory or do not.
    pub(crate) fn new(hosts: &[u32], has_slots: bool, terms: &Terms) -> Self {
        let places = Places::new(hosts);
        let ground = Ground {
            machine: terms.machine.unwrap_or_default(),
            topology: places.topology,
            has_slots,
            world_size: hosts.len() as u32,
            any_order: terms.any_order,
            slice_bytes: terms.segment_bytes,
        };
        let plan = Self::on(ground, terms.wishes);
        if !ground.topology.has_levels() {
            return plan;
        }
        let across = |at_once| Some(Box::new(Self::on(ground.across(at_once), Wishes::default())));
        let (across, leaders) = (across(ground.topology.least), across(1));
        Self { places: Some(Arc::new(places)), across, leaders, ..plan }
    }

    fn on(ground: Ground, wishes: Wishes) -> Self {
        let table = (0..OPERATIONS.len() * KINDS * LENGTHS).map(|_| AtomicU8::new(0)).collect();
        Self { ground, wishes, places: None, across: None, leaders: None, table }
    }

    /// A number for ranks to compare: of all that choices depend on.
    pub(crate) fn digest(&self) -> u64 {
        let Ground { machine, topology, has_slots, world_size, any_order, slice_bytes } = self.ground;
        let Topology { hosts, least, most, is_aligned } = topology;
        let switches = [is_aligned, any_order, has_slots].map(u32::from);
        let numbers = [hosts, least, most, world_size].into_iter().chain(switches).map(u64::from);
        let wishes = self.wishes.encode().map(u64::from);
        let machine = machine.encode();
        let words = machine.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let all = words.chain(numbers).chain([slice_bytes as u64]).chain(wishes);
        all.fold(0, |digest, word| mix(digest.rotate_left(23) ^ word))
    }

    /// The plan of the ranks at a place of the hosts, if there are levels.
    pub(crate) fn across(&self) -> Option<&Self> {
        self.across.as_deref()
    }

    /// The plan of one rank of each host, which has its host's link for itself, if there are levels.
    pub(crate) fn leaders(&self) -> Option<&Self> {
        self.leaders.as_deref()
    }

    /// The speeds that algorithms are chosen for.
    pub(crate) fn machine(&self) -> &Machine {
        &self.ground.machine
    }

    /// The ground of a call that can go over slots, if there are any, or can't.
    fn ground(&self, may_use_slots: bool) -> Ground {
        Ground { has_slots: self.ground.has_slots && may_use_slots, ..self.ground }
    }

    /// Checks that an algorithm can do the work, of a call that can go over slots, if there are any, or
    /// can't.
    ///
    /// # Errors
    /// [`Error::Algorithm`], which names those that can.
    pub(crate) fn check(
        &self,
        operation: Operation,
        rows: &[Row],
        (work, may_use_slots): (&Work, bool),
        algorithm: Algorithm,
    ) -> Result<()> {
        let ground = self.ground(may_use_slots);
        let fitting = || rows.iter().filter(|row| (row.fits)(work, &ground));
        if fitting().any(|row| row.algorithm == algorithm) {
            return Ok(());
        }
        let names: Vec<_> = fitting().map(|row| row.algorithm.name()).collect();
        Err(Error::Algorithm { operation, algorithm, fitting: names.join(", ") })
    }

    /// The fastest algorithm by messages of those that fit.
    pub(crate) fn choose(&self, operation: Operation, rows: &[Row], work: &Work) -> Algorithm {
        self.choose_of_all(operation, rows, (work, false))
    }

    /// Whether a call that can go over slots does so.
    #[inline]
    pub(crate) fn prefers_slots(&self, operation: Operation, rows: &[Row], work: &Work) -> bool {
        self.ground.has_slots && self.choose_of_all(operation, rows, (work, true)) == Algorithm::Slots
    }

    fn choose_of_all(
        &self,
        operation: Operation,
        rows: &[Row],
        (work, may_use_slots): (&Work, bool),
    ) -> Algorithm {
        let ground = self.ground(may_use_slots);
        // What sparse vectors take depends on more than their length.
        let place = OPERATIONS.iter().position(|(_, other, _)| *other == operation && work.dim == 0);
        let Some(place) = place else {
            return in_standard_float_mode(|| fastest(rows, work, &ground).0);
        };
        let is_wide = work.wide_bytes != work.bytes;
        let kinds = [work.is_exact, work.is_uneven, is_wide, may_use_slots];
        let kind = kinds.into_iter().fold(0, |kind, is_set| kind << 1 | usize::from(is_set));
        let length = Length::of(work.bytes);
        let known = &self.table[(place * KINDS + kind) * LENGTHS + length.0];
        if let Some(algorithm) = Algorithm::of_number(known.load(Ordering::Relaxed)) {
            return algorithm;
        }
        let bytes = length.least();
        // Elements that are wider in partial results are twice as wide.
        let work = Work { bytes, wide_bytes: if is_wide { bytes.saturating_mul(2) } else { bytes }, ..*work };
        let algorithm = in_standard_float_mode(|| fastest(rows, &work, &ground).0);
        known.store(algorithm.number(), Ordering::Relaxed);
        algorithm
    }
}

/// The place of a length in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length(usize);

impl Length {
    const fn of(bytes: usize) -> Self {
        match bytes {
            0 => Self(0),
            1 => Self(1),
            _ => {
                let power = bytes.ilog2();
                Self(2 * power as usize + (bytes >> (power - 1) & 1) + 1)
            }
        }
    }

    /// The least of the lengths at this place.
    const fn least(self) -> usize {
        match self.0 {
            0 => 0,
            1 | 2 => 1,
            place => {
                let power = (place - 1) / 2;
                (1 << power) + (((place - 1) % 2) << power >> 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dense::{AllReduce, Collective};
    use crate::group::Settings;

    #[test]
    fn lengths_have_places() {
        let mut last = Length::of(0);
        for bytes in (0..70).chain([1 << 20, 3 << 19, (1 << 21) - 1, usize::MAX]) {
            let length = Length::of(bytes);
            assert!(length.0 < LENGTHS && length.0 >= last.0 && length.least() <= bytes, "{bytes}");
            assert!(bytes < 2 || length.least() > bytes / 2, "{bytes}: {length:?}");
            assert_eq!(Length::of(length.least()), length, "{bytes}");
            last = length;
        }
    }

    fn plan(hosts: &[u32], change: impl FnOnce(&mut Terms)) -> Plan {
        let mut terms = Terms::of(&Settings::default());
        change(&mut terms);
        Plan::new(hosts, false, &terms)
    }

    #[test]
    fn plans_differ_in_anything_that_decides() {
        let usual = plan(&[0; 4], |_| {}).digest();
        assert_eq!(usual, plan(&[3; 4], |_| {}).digest(), "hosts have no names");
        let machine = Machine { reduce: 0.2e-9, ..Machine::default() };
        for other in [
            plan(&[0; 5], |_| {}),
            plan(&[0, 0, 1, 1], |_| {}),
            plan(&[0; 4], |terms| terms.any_order = true),
            plan(&[0; 4], |terms| terms.segment_bytes = 4096),
            plan(&[0; 4], |terms| terms.machine = Some(machine)),
            plan(&[0; 4], |terms| terms.wishes = "all-reduce:ring".parse().unwrap()),
        ] {
            assert_ne!(other.digest(), usual, "{other:?}");
        }
        assert_ne!(plan(&[0, 0, 1, 1], |_| {}).digest(), plan(&[0, 1, 0, 1], |_| {}).digest());
    }

    #[test]
    fn a_choice_stays_the_same() {
        let plan = plan(&[0, 1, 2, 3], |_| {});
        for bytes in [8, 9, 11, 1 << 14, 64 << 20] {
            let work = Work { bytes, wide_bytes: bytes, ..Work::default() };
            let choose = || plan.choose(Operation::ALL_REDUCE, AllReduce::ROWS, &work);
            let first = choose();
            assert_eq!((choose(), choose()), (first, first));
        }
        let long = Work { bytes: 64 << 20, wide_bytes: 64 << 20, ..Work::default() };
        let other = plan.choose(Operation::ALL_REDUCE, AllReduce::ROWS, &Work { is_exact: true, ..long });
        let exact = Work { is_exact: true, ..long };
        plan.check(Operation::ALL_REDUCE, AllReduce::ROWS, (&exact, true), other).unwrap();
    }

    #[test]
    fn slots_are_taken_where_they_are_the_faster_way() {
        let is_chosen = |machine: Machine, ranks: usize, bytes, (has_slots, may_use_slots)| {
            let terms = Terms { machine: Some(machine), ..Terms::of(&Settings::default()) };
            let plan = Plan::new(&vec![0; ranks], has_slots, &terms);
            let work = Work { bytes, wide_bytes: bytes, ..Work::default() };
            let (operation, rows) = (Operation::ALL_REDUCE, AllReduce::ROWS);
            let fits = plan.check(operation, rows, (&work, may_use_slots), Algorithm::Slots).is_ok();
            assert_eq!(fits, has_slots && may_use_slots);
            assert_ne!(plan.choose(operation, rows, &work), Algorithm::Slots);
            plan.prefers_slots(operation, rows, &work)
        };
        let usual = Machine::default();
        for ranks in 2..20 {
            assert!([0, 8, 1 << 20, 1 << 30].iter().all(|bytes| is_chosen(
                usual,
                ranks,
                *bytes,
                (true, true)
            )));
            assert!(!is_chosen(usual, ranks, 8, (false, true)));
        }
        let chosen = |machine, bytes| is_chosen(machine, 4, bytes, (true, false));
        let links = |alpha, beta| Machine::uniform(alpha, beta);
        assert!(!chosen(links(1e-6, 1e-12), 1 << 40), "long vectors go by messages");
        assert!(!chosen(links(1e-9, 1.0), 0), "short ones do");
        assert!(!chosen(links(1e-9, 0.0), 8), "messages that cost nothing");
        assert!(!is_chosen(usual, 1, 8, (true, true)), "there is nobody to share with");
    }
}
