//! Brevity and a peer in turns: A B A B, each turn between two probes of the caches' regime.

use serde::Serialize;

use super::bar::Bar;
use crate::job::Job;
use crate::order::{Answer, Order, What};
use crate::peers::{Perftest, Wire};
use crate::statistics::{Interval, mean, median};
use crate::{Error, Result, probe};

/// How often a turn is repeated if the regime changed in it.
const MOST_REPEATS: usize = 4;

/// A side of a comparison.
pub trait Contestant {
    /// The name in tables.
    fn name(&self) -> &str;

    /// Microseconds of one message or call.
    ///
    /// # Errors
    /// If it can't be measured, or its results are wrong.
    fn measure(&mut self, order: &Order) -> Result<f64>;

    /// Called when another turn begins.
    fn advance(&mut self) {}
}

/// The figure of a slice that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The median of the batches, which ignores a rare interruption.
    Median,
    /// The mean of all iterations, for peers that report nothing else.
    Mean,
    /// The median of the batches, of each of which the slowest rank's time counts.
    Slowest,
}

/// A job as a contestant.
pub struct OfJob {
    /// The processes.
    pub job: Job,
    /// Which figure counts.
    pub figure: Figure,
    /// What is measured instead of the order's own subject.
    pub instead: Option<What>,
    /// The times of the fastest and the slowest rank that had times, for each slice so far.
    pub spreads: Vec<(f64, f64)>,
    /// What the slowest rank has computed itself, for each slice so far, where ranks report it.
    pub kernels: Vec<f64>,
}

impl OfJob {
    /// A job whose median counts.
    #[must_use]
    pub fn median(job: Job) -> Self {
        Self { job, figure: Figure::Median, instead: None, spreads: Vec::new(), kernels: Vec::new() }
    }

    /// A job of which the slowest rank of each batch counts.
    #[must_use]
    pub fn slowest(job: Job) -> Self {
        Self { figure: Figure::Slowest, ..Self::median(job) }
    }

    /// A job whose mean counts.
    #[must_use]
    pub fn mean(job: Job) -> Self {
        Self { figure: Figure::Mean, ..Self::median(job) }
    }
}

impl Contestant for OfJob {
    fn name(&self) -> &str {
        self.job.name()
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        let order = Order { what: self.instead.unwrap_or(order.what), ..*order };
        let answers = self.job.tell(&order)?;
        self.kernels.extend(answers.iter().filter_map(|answer| answer.kernels_us).reduce(f64::max));
        if self.figure == Figure::Slowest {
            return slowest_rank(&answers).ok_or_else(|| {
                Error::contestant(self.job.name(), format!("not every rank has times of {order}"))
            });
        }
        let of =
            |answer: &Answer| if self.figure == Figure::Median { answer.median_us } else { answer.mean_us };
        let figures: Vec<f64> = answers.iter().filter_map(of).collect();
        if figures.is_empty() {
            return Err(Error::contestant(self.job.name(), format!("no times of {order}")));
        }
        let fastest = figures.iter().copied().fold(f64::INFINITY, f64::min);
        self.spreads.push((fastest, figures.iter().copied().fold(0.0, f64::max)));
        Ok(mean(&figures))
    }
}

/// The median over the batches of the slowest rank's time; `None` unless all ranks have times of the same
/// batches.
fn slowest_rank(answers: &[Answer]) -> Option<f64> {
    let batches = answers.first()?.samples_us.len();
    let is_complete = batches > 0 && answers.iter().all(|answer| answer.samples_us.len() == batches);
    let slowest = |batch: usize| answers.iter().map(|answer| answer.samples_us[batch]).fold(0.0, f64::max);
    is_complete.then(|| median(&(0..batches).map(slowest).collect::<Vec<_>>()))
}

/// Several equal jobs that take turns: some connections are slow for their whole life, and some memory has an
/// unfavourable address.
pub struct Alike {
    jobs: Vec<OfJob>,
    turn: usize,
}

impl Alike {
    /// Enough that a median over turns is a median over connections.
    pub(super) const JOBS: usize = 5;

    /// Starts the jobs with `start`.
    ///
    /// # Errors
    /// If a job does not start.
    pub fn start(start: impl Fn() -> Result<OfJob>) -> Result<Self> {
        Self::start_as_many(Self::JOBS, start)
    }

    /// The same with so many jobs, at least one.
    ///
    /// # Errors
    /// If a job does not start.
    pub fn start_as_many(jobs: usize, start: impl Fn() -> Result<OfJob>) -> Result<Self> {
        let jobs = (0..jobs.max(1)).map(|_| start()).collect::<Result<_>>()?;
        Ok(Self { jobs, turn: 0 })
    }
}

impl Contestant for Alike {
    fn name(&self) -> &str {
        self.jobs.first().map_or("", OfJob::name)
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        let index = self.turn % self.jobs.len();
        self.jobs[index].measure(order)
    }

    fn advance(&mut self) {
        self.turn += 1;
    }
}

/// `ucx_perftest` over one wire.
pub struct PerftestOver(pub Perftest, pub Wire);

impl Contestant for PerftestOver {
    fn name(&self) -> &'static str {
        "ucx_perftest"
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        self.0.measure(self.1, order)
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Turns of each side.
    pub pairs: usize,
    /// The length of one side's slice in a turn, in microseconds.
    pub slice_us: f64,
    /// The fewest iterations of a slice.
    pub fewest: usize,
    /// Iterations of the first estimate of one iteration's time.
    pub first_look: usize,
}

/// What is compared.
#[derive(Clone, Debug, Serialize)]
pub struct Subject {
    /// What is measured.
    pub what: String,
    /// The wire.
    pub wire: &'static str,
    /// Ranks.
    pub world_size: u32,
    /// Bytes of a message or vector.
    pub bytes: usize,
}

/// One turn of two contestants.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Turn {
    /// The time of Brevity.
    pub ours_us: f64,
    /// The time of the peer.
    pub theirs_us: f64,
    /// Nanoseconds of a store to a line that the other core has read, before the turn.
    pub probe_before_ns: f64,
    /// The same after the turn.
    pub probe_after_ns: f64,
    /// Whether the regime changed in this turn, even when it was repeated.
    pub changed: bool,
}

#[cfg(test)]
impl Turn {
    /// A turn of these times on even cores.
    pub(crate) fn of(&(ours_us, theirs_us): &(f64, f64)) -> Self {
        Self { ours_us, theirs_us, probe_before_ns: 5.0, probe_after_ns: 5.0, changed: false }
    }
}

/// All turns of two sides about one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What is compared.
    #[serde(flatten)]
    pub subject: Subject,
    /// The name of Brevity's side.
    pub ours: String,
    /// The name of the peer.
    pub peer: String,
    /// The median of Brevity's times.
    pub ours_us: f64,
    /// The median of the peer's times.
    pub theirs_us: f64,
    /// The median of ours / theirs over the turns.
    pub ratio: f64,
    /// The lower end of its interval.
    pub ratio_low: f64,
    /// The upper end of its interval.
    pub ratio_high: f64,
    /// The median of ours - theirs over the turns.
    pub extra_ns: f64,
    /// Of ours, the time of the kernels: the median over all slices, if it is known apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels_us: Option<f64>,
    /// Turns that were repeated because the regime changed.
    pub repeated: usize,
    /// The least that the wire allows, in microseconds, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_us: Option<f64>,
    /// The limit that the row must meet; `None` for rows that are only reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// Whether it meets the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// The turns.
    pub turns: Vec<Turn>,
}

impl Comparison {
    /// Summarises turns; `None` without turns.
    #[must_use]
    pub fn new(subject: Subject, ours: &str, peer: &str, turns: Vec<Turn>, repeated: usize) -> Option<Self> {
        let of = |figure: fn(&Turn) -> f64| turns.iter().map(figure).collect::<Vec<f64>>();
        let ratio = Interval::of(&of(|turn| turn.ours_us / turn.theirs_us))?;
        Some(Self {
            subject,
            ours: ours.to_owned(),
            peer: peer.to_owned(),
            ours_us: median(&of(|turn| turn.ours_us)),
            theirs_us: median(&of(|turn| turn.theirs_us)),
            ratio: ratio.median,
            ratio_low: ratio.low,
            ratio_high: ratio.high,
            extra_ns: median(&of(|turn| (turn.ours_us - turn.theirs_us) * 1e3)),
            kernels_us: None,
            repeated,
            floor_us: None,
            bar: None,
            met: None,
            turns,
        })
    }

    /// Adds the time of the kernels of ours in each slice.
    #[must_use]
    pub fn with_kernels(self, kernels: &[f64]) -> Self {
        let kernels_us = if kernels.is_empty() { None } else { Some(median(kernels)) };
        Self { kernels_us, ..self }
    }

    /// Compares it to a bar.
    #[must_use]
    pub fn judged(mut self, bar: Bar) -> Self {
        self.met = Some(bar.is_met(self.ours_us, (self.ratio, self.ratio_low), self.extra_ns));
        self.bar = Some(bar);
        self
    }
}

/// Compares Brevity with each peer about one subject, all in turns.
///
/// # Errors
/// If Brevity's side fails. A peer that fails is reported on standard error and left out.
pub fn compare(
    subject: &Subject,
    what: What,
    ours: &mut dyn Contestant,
    theirs: &mut Vec<Box<dyn Contestant>>,
    effort: Effort,
) -> Result<Vec<Comparison>> {
    let first_look = effort.first_look;
    let base = Order::new(what, subject.bytes, first_look, first_look);
    let plan = |contestant: &mut dyn Contestant| -> Result<Order> {
        let each = contestant.measure(&base)?;
        let each = contestant.measure(&base.lasting(effort.slice_us / 10.0, each, (first_look, 100_000)))?;
        Ok(base.lasting(effort.slice_us, each, (effort.fewest, 1_000_000)))
    };
    let own_order = plan(ours)?;
    let mut orders = Vec::new();
    theirs.retain_mut(|contestant| match plan(&mut **contestant) {
        Ok(order) => {
            orders.push(order);
            true
        }
        Err(error) => {
            eprintln!("left out: {error}");
            false
        }
    });
    let mut turns = vec![(Vec::new(), 0); theirs.len()];
    for _ in 0..effort.pairs {
        ours.advance();
        theirs.iter_mut().for_each(|contestant| contestant.advance());
        for ((contestant, order), (taken, repeated)) in theirs.iter_mut().zip(&orders).zip(&mut turns) {
            let (turn, repeats) = take_turn(ours, &own_order, &mut **contestant, order)?;
            taken.push(turn);
            *repeated += repeats;
        }
    }
    let mut found = Vec::new();
    for (contestant, (taken, repeated)) in theirs.iter().zip(turns) {
        found.extend(Comparison::new(subject.clone(), ours.name(), contestant.name(), taken, repeated));
    }
    Ok(found)
}

/// Compares the fastest peer to the bar; the others are only reported.
///
/// # Errors
/// Those of `tell`.
pub fn judge_best(
    found: Vec<Comparison>,
    bar: Option<Bar>,
    tell: &mut dyn FnMut(Comparison) -> Result<()>,
) -> Result<()> {
    let best = found.iter().map(|comparison| comparison.theirs_us).fold(f64::INFINITY, f64::min);
    for comparison in found {
        let judged = bar.filter(|_| comparison.theirs_us <= best);
        tell(match judged {
            Some(bar) => comparison.judged(bar),
            None => comparison,
        })?;
    }
    Ok(())
}

/// One turn, repeated while the regime changes in it; also returns the number of repeats.
fn take_turn(
    ours: &mut dyn Contestant,
    own_order: &Order,
    theirs: &mut dyn Contestant,
    order: &Order,
) -> Result<(Turn, usize)> {
    let mut repeats = 0;
    loop {
        let probe_before_ns = probe::dirty_store_nanoseconds();
        let ours_us = ours.measure(own_order)?;
        let theirs_us = theirs.measure(order)?;
        let probe_after_ns = probe::dirty_store_nanoseconds();
        let changed = probe::has_changed(probe_before_ns, probe_after_ns);
        if !changed || repeats == MOST_REPEATS {
            return Ok((Turn { ours_us, theirs_us, probe_before_ns, probe_after_ns, changed }, repeats));
        }
        repeats += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_of_each_batch_counts() {
        let rank = |samples: &[f64]| Answer::new(samples.to_vec());
        assert_eq!(slowest_rank(&[rank(&[1.0, 9.0, 3.0]), rank(&[4.0, 2.0, 3.5])]), Some(4.0));
        assert_eq!(slowest_rank(&[rank(&[1.0]), rank(&[])]), None);
        assert_eq!(slowest_rank(&[rank(&[]), rank(&[])]), None);
        assert_eq!(slowest_rank(&[]), None);
    }
    #[test]
    fn kernels_of_ours_stand_apart() {
        let subject = Subject { what: "overlap".into(), wire: "100M", world_size: 2, bytes: 8 };
        let row = Comparison::new(subject, "a", "b", vec![Turn::of(&(4.0, 2.0))], 0).unwrap();
        let line = |row: &Comparison| crate::compare::table::line(row);
        let without = row.clone().with_kernels(&[]);
        assert!(without.kernels_us.is_none() && !line(&without).contains("kernels"));
        let with = row.with_kernels(&[1.0, 9.0, 2.0]);
        assert_eq!(with.kernels_us, Some(2.0));
        assert!(line(&with).ends_with("[kernels of ours: 2.000 us]"), "{}", line(&with));
    }
}
