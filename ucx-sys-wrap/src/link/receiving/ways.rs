//! How long messages come from a neighbour: which way is the fastest here, as measured.
//!
//! | way | who copies | fast where |
//! | --- | --- | --- |
//! | read | the receiver, from the sender's memory | pages are huge: they are looked up one by one |
//! | pipe | the receiver, while the sender looks up pages | pages are small |
//! | ring | both, at the same time, half as fast each | what was written last lies in the sender's caches and is slow to get, or in no cache |
//!
//! Which one it is differs by a factor of two and more between processors, lengths and minutes. So messages
//! begin with the way that is likely, by their pages, and the others are tried now and then.

use std::time::{Duration, Instant};

/// Lengths that differ by less than a factor of two are alike, from 1 MiB to 64 MiB.
const OCTAVES: usize = 7;

/// After so many messages the second way is tried, after twice as many the third.
const SOON: u32 = 8;

/// Later every so many messages another way is tried, ...
const SELDOM: u32 = 64;

/// ... one that has taken twice as long and more as the best only at every so many. No multiple of two or
/// three of those, so that each has its turn.
const RARELY: u32 = 17 * SELDOM;

/// How the bytes of a long message come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Pipe,
    Ring,
}

/// Messages that are alike: by their length, and by whether they lie on huge pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    octave: usize,
    is_huge: bool,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    class: Class,
    pub(super) way: Way,
    bytes: usize,
    begun: Instant,
}

/// What was measured so far.
#[derive(Default)]
pub(super) struct Ways {
    classes: [[Record; OCTAVES]; 2],
}

#[derive(Default)]
struct Record {
    messages: u32,
    /// Nanoseconds for a MiB of each way, 0 if it was never taken.
    prices: [u64; 3],
}

impl Class {
    /// The class of a message of so many bytes, of which at most `on_small_pages` lie or will lie on ordinary
    /// pages.
    pub(super) fn new(bytes: usize, on_small_pages: usize) -> Self {
        let octave = (bytes >> 20).checked_ilog2().map_or(0, |octave| octave as usize).min(OCTAVES - 1);
        Self { octave, is_huge: 2 * on_small_pages <= bytes }
    }
}

impl Trial {
    /// Its first bytes are there: what came before them says nothing about its way.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
    }
}

impl Ways {
    /// The way that the next message of this class takes.
    pub(super) fn choose(&mut self, class: Class, bytes: usize, has_pipes: bool) -> Trial {
        let record = &mut self.classes[usize::from(class.is_huge)][class.octave];
        let order =
            if class.is_huge { [Way::Read, Way::Pipe, Way::Ring] } else { [Way::Pipe, Way::Read, Way::Ring] };
        let way = record.choose(order.into_iter().filter(|way| has_pipes || *way != Way::Pipe));
        Trial { class, way, bytes, begun: Instant::now() }
    }

    /// Takes note of a message that has arrived.
    pub(super) fn learn(&mut self, Trial { class, way, bytes, begun }: Trial) {
        let record = &mut self.classes[usize::from(class.is_huge)][class.octave];
        record.learn(way, price(bytes, begun.elapsed()));
    }
}

impl Record {
    fn choose(&mut self, ways: impl Iterator<Item = Way> + Clone) -> Way {
        let turn = self.messages;
        self.messages = self.messages.wrapping_add(1);
        let count = ways.clone().count() as u32;
        let nth = |number: u32| ways.clone().nth((number % count) as usize).unwrap_or(Way::Ring);
        let likely = nth(0);
        let tried = ways.clone().filter(|way| self.prices[*way as usize] > 0);
        // The likely way is left for one that takes an eighth less.
        let fair = |way: Way| {
            if way == likely { self.prices[way as usize] / 8 * 7 } else { self.prices[way as usize] }
        };
        let best = tried.min_by_key(|way| fair(*way)).unwrap_or(likely);
        if turn < SOON * count {
            return if turn.is_multiple_of(SOON) { nth(turn / SOON) } else { best };
        }
        if turn.is_multiple_of(SELDOM) {
            let other = nth(turn / SELDOM);
            let is_close = self.prices[other as usize] < 2 * self.prices[best as usize];
            if is_close || turn.is_multiple_of(RARELY) {
                return other;
            }
        }
        best
    }

    /// A lower price counts by a half, a higher one by a quarter: either may be an accident.
    fn learn(&mut self, way: Way, price: u64) {
        let known = &mut self.prices[way as usize];
        *known = match *known {
            0 => price,
            before if price < before => before - (before - price) / 2,
            // A pause of the sender is no price.
            before => before + (price.min(before.saturating_mul(4)) - before) / 4,
        };
    }
}

/// Nanoseconds for a MiB, never 0.
fn price(bytes: usize, took: Duration) -> u64 {
    (took.as_nanos().saturating_mul(1 << 20) / bytes.max(1) as u128).clamp(1, u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Way; 3] = [Way::Pipe, Way::Read, Way::Ring];

    /// Has messages take so long by each way; gives how often each was taken.
    fn play(record: &mut Record, messages: u32, prices: [u64; 3]) -> [u32; 3] {
        let mut taken = [0; 3];
        for _ in 0..messages {
            let way = record.choose(ALL.into_iter());
            taken[way as usize] += 1;
            record.learn(way, prices[way as usize]);
        }
        taken
    }

    #[test]
    fn the_fastest_is_taken_once_it_was_tried() {
        for best in ALL {
            let mut prices = [150; 3];
            prices[best as usize] = 100;
            let mut record = Record::default();
            let taken = play(&mut record, SOON, prices);
            assert_eq!(taken[Way::Pipe as usize], SOON, "the likely one comes first");
            play(&mut record, 2 * SOON, prices);
            assert!(record.prices.iter().all(|price| *price > 0), "the others are tried soon");
            let taken = play(&mut record, 640, prices);
            assert!(taken[best as usize] >= 630, "{taken:?} where {best:?} is the best");
            assert!(taken.iter().all(|count| *count > 0), "the others are tried again");
        }
    }

    #[test]
    fn what_has_become_slow_is_left_and_what_has_become_fast_is_found() {
        let mut record = Record::default();
        play(&mut record, 100, [100, 120, 150]);
        let taken = play(&mut record, 100, [500, 120, 150]);
        assert!(taken[Way::Pipe as usize] > 90, "{taken:?}");
        let taken = play(&mut record, 1000, [500, 120, 50]);
        assert!(taken[Way::Ring as usize] > 600, "{taken:?}");
    }

    #[test]
    fn without_pipes_what_was_far_off_by_accident_is_found() {
        let two = [Way::Read, Way::Ring];
        let mut record = Record::default();
        for turn in 0..10 * RARELY + 1 {
            let way = record.choose(two.into_iter());
            let price = if way == Way::Ring { 100 } else { 200 };
            record.learn(way, if turn < SELDOM && way == Way::Ring { 1000 } else { price });
        }
        assert_eq!(record.choose(two.into_iter()), Way::Ring);
    }

    #[test]
    fn a_pause_does_not_keep_a_way_from_being_taken_again() {
        let mut record = Record::default();
        play(&mut record, 3 * SOON, [100, 90, 120]);
        record.learn(Way::Pipe, 1_000_000);
        assert!(record.prices[Way::Pipe as usize] < 2 * 90);
    }

    #[test]
    fn a_way_that_is_far_off_is_tried_rarely() {
        let mut record = Record::default();
        play(&mut record, 3 * SOON, [100, 90, 1000]);
        let taken = play(&mut record, 2048, [100, 90, 1000]);
        assert!(taken[Way::Ring as usize] <= 2, "{taken:?}");
    }

    #[test]
    fn what_there_is_not_is_not_taken() {
        let mut ways = Ways::default();
        for turn in 0..200 {
            let trial = ways.choose(Class::new(3 << 20, 3 << 20), 3 << 20, false);
            assert_ne!(trial.way, Way::Pipe, "turn {turn}");
            ways.learn(trial);
        }
    }

    #[test]
    fn classes_and_prices_are_bounded() {
        for bytes in [0, 1, 1 << 20, usize::MAX] {
            assert!(Class::new(bytes, 0).octave < OCTAVES);
        }
        assert_eq!(price(1 << 20, Duration::from_micros(3)), 3000);
        assert_eq!(price(usize::MAX, Duration::ZERO), 1);
        assert!(price(0, Duration::MAX) > 0);
    }
}
