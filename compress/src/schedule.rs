//! Warm-up: many entries are kept at first, while gradients change fast, and fewer later.
//!
//! A *period* is an epoch or a step, as the caller counts. `rho` is the final density, `W` the number of
//! periods before it is reached, `e` a period, counted from 0. Densities are computed with additions,
//! products and quotients alone, whose results have the same bits on every platform: if densities differed in
//! the last bit, ranks could differ by an entry.

use crate::state::{Reader, State, Writer};
use crate::{Density, Error, in_standard_float_mode};

/// Density as a function of the period.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    warm_up: WarmUp,
    target: Density,
}

#[derive(Debug, Clone, PartialEq)]
enum WarmUp {
    Exponential { periods: u32 },
    Linear { periods: u32 },
    Listed(Vec<Density>),
}

impl Schedule {
    /// The same in all periods.
    pub fn constant(density: Density) -> Self {
        Self { warm_up: WarmUp::Listed(Vec::new()), target: density }
    }

    /// `rho^((e + 1) / (W + 1))` while `e < W`, then `rho` (Lin et al., ICLR 2018, 3.3). With `rho` 0.001 and
    /// `W` 4: a quarter, a sixteenth and so on.
    pub fn exponential(target: Density, periods: u32) -> Self {
        Self { warm_up: WarmUp::Exponential { periods }, target }
    }

    /// `1 - (1 - rho) (e + 1) / (W + 1)` while `e < W`, then `rho`: like [`exponential`](Self::exponential),
    /// in equal steps.
    pub fn linear(target: Density, periods: u32) -> Self {
        Self { warm_up: WarmUp::Linear { periods }, target }
    }

    /// These densities, one a period, then `target`.
    pub fn listed(densities: &[Density], target: Density) -> Self {
        Self { warm_up: WarmUp::Listed(densities.to_vec()), target }
    }

    /// 0.25, 0.0625, 0.015625 and 0.004, then 0.001: the epochs of Lin et al., ICLR 2018.
    pub fn deep_gradient_compression() -> Self {
        Self::of_shares(&[0.25, 0.0625, 0.015_625, 0.004], 0.001)
    }

    /// 0.25, 0.0725, 0.015 and 0.004, then 0.001 (convolutional networks): the epochs of Shi et al., ICDCS
    /// 2019.
    pub fn global_top_k() -> Self {
        Self::of_shares(&[0.25, 0.0725, 0.015, 0.004], 0.001)
    }

    /// Like [`global_top_k`](Self::global_top_k), but with 0.005 at the end (recurrent networks).
    pub fn global_top_k_recurrent() -> Self {
        Self::of_shares(&[0.25, 0.0725, 0.015, 0.004], 0.005)
    }

    fn of_shares(shares: &[f64], target: f64) -> Self {
        let densities = shares.iter().map(|&share| Density::within(share)).collect();
        Self { warm_up: WarmUp::Listed(densities), target: Density::within(target) }
    }

    /// The final density.
    pub fn target(&self) -> Density {
        self.target
    }

    /// The largest density of any period.
    pub fn largest(&self) -> Density {
        let listed: &[Density] = if let WarmUp::Listed(densities) = &self.warm_up { densities } else { &[] };
        let all = [self.density(0), self.target].into_iter().chain(listed.iter().copied());
        Density::within(all.map(Density::share).fold(0.0, f64::max))
    }

    /// Periods before the target is reached.
    pub fn warm_up_periods(&self) -> u64 {
        match &self.warm_up {
            WarmUp::Exponential { periods } | WarmUp::Linear { periods } => u64::from(*periods),
            WarmUp::Listed(densities) => densities.len() as u64,
        }
    }

    /// The density of a period.
    ///
    /// ```
    /// use brevity_compress::{Density, schedule::Schedule};
    ///
    /// let schedule = Schedule::exponential(Density::new(1.0 / 1024.0)?, 4);
    /// let shares: Vec<f64> = (0..6).map(|epoch| schedule.density(epoch).share()).collect();
    /// assert_eq!(shares, [0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625, 0.0009765625]);
    /// # Ok::<(), brevity_compress::Error>(())
    /// ```
    pub fn density(&self, period: u64) -> Density {
        if period >= self.warm_up_periods() {
            return self.target;
        }
        let (rho, done) = (self.target.share(), period + 1);
        in_standard_float_mode(|| match &self.warm_up {
            WarmUp::Exponential { periods } => {
                Density::within(power(root(rho, u64::from(*periods) + 1), done))
            }
            WarmUp::Linear { periods } => {
                let share = done as f64 / (f64::from(*periods) + 1.0);
                Density::within(1.0 - (1.0 - rho) * share)
            }
            WarmUp::Listed(densities) => densities[period as usize],
        })
    }

    /// The density of a step, where a period is `steps` of them; 0 counts as 1.
    pub fn density_at_step(&self, step: u64, steps: u64) -> Density {
        self.density(step / steps.max(1))
    }
}

/// A schedule and the progress of training in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    schedule: Schedule,
    steps_in_period: u64,
    step: u64,
}

impl Progress {
    /// Starts at the first step; a period has `steps_in_period` steps.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for a period of no steps.
    pub fn new(schedule: Schedule, steps_in_period: u64) -> Result<Self, Error> {
        if steps_in_period == 0 {
            return Err(Error::LengthMismatch { expected: 1, found: 0 });
        }
        Ok(Self { schedule, steps_in_period, step: 0 })
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The density of the next step.
    pub fn density(&self) -> Density {
        self.schedule.density_at_step(self.step, self.steps_in_period)
    }

    /// Counts a step.
    pub fn advance(&mut self) {
        self.step = self.step.saturating_add(1);
    }
}

/// `base` to the power of `exponent`, by squaring.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// The root of `value`, which is positive and at most 1, by Newton's method from above: the iterates fall
/// until rounding stops them, after about `ln(1 / value)` steps.
fn root(value: f64, degree: u64) -> f64 {
    let mut guess = 1.0_f64;
    loop {
        let slope = power(guess, degree - 1);
        let next = guess - (slope * guess - value) / (degree as f64 * slope);
        if next >= guess || next <= 0.0 {
            return guess;
        }
        guess = next;
    }
}

/// Saves the step. The steps in a period are the shape, because the same step with longer periods is another
/// place in the schedule.
impl State for Progress {
    fn kind(&self) -> [u8; 4] {
        *b"prog"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.steps_in_period]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.u64(self.step);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        self.step = contents.u64()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(schedule: &Schedule, periods: u64) -> Vec<f64> {
        (0..periods).map(|period| schedule.density(period).share()).collect()
    }

    #[test]
    fn exponential_is_the_papers_formula() {
        for rho in [0.001, 0.01, 0.25, 0.9, 1.0, 1e-9, f64::MIN_POSITIVE] {
            for periods in [0, 1, 2, 4, 7, 30, 1000] {
                let schedule = Schedule::exponential(Density::new(rho).unwrap(), periods);
                for (e, share) in (0..).zip(shares(&schedule, u64::from(periods) + 3)) {
                    let expected = rho.powf((f64::from(e) + 1.0) / (f64::from(periods) + 1.0)).max(rho);
                    let close = (share - expected).abs() <= 1e-11 * expected;
                    assert!(close, "rho {rho}, W {periods}, e {e}: {share}, expected {expected}");
                }
                let all = shares(&schedule, u64::from(periods) + 3);
                assert!(all.is_sorted_by(|a, b| a >= b), "rho {rho}, W {periods}: {all:?}");
            }
        }
    }

    #[test]
    fn densities_too_small_for_all_their_digits_are_in_range_all_the_same() {
        let schedule = Schedule::exponential(Density::new(5e-324).unwrap(), 4);
        let all = shares(&schedule, 6);
        assert!(
            all.is_sorted_by(|a, b| a >= b) && all.iter().all(|&share| share > 0.0 && share < 1.0),
            "{all:?}"
        );
    }

    #[test]
    fn lists_are_those_of_the_papers() {
        let dgc = shares(&Schedule::deep_gradient_compression(), 7);
        assert_eq!(dgc, [0.25, 0.0625, 0.015_625, 0.004, 0.001, 0.001, 0.001]);
        let gtop_k = shares(&Schedule::global_top_k(), 6);
        assert_eq!(gtop_k, [0.25, 0.0725, 0.015, 0.004, 0.001, 0.001]);
        assert_eq!(shares(&Schedule::global_top_k_recurrent(), 6)[3..], [0.004, 0.005, 0.005]);
    }

    #[test]
    fn linear_falls_in_equal_steps_and_constant_not_at_all() {
        let schedule = Schedule::linear(Density::new(0.2).unwrap(), 3);
        for (found, expected) in shares(&schedule, 6).into_iter().zip([0.8, 0.6, 0.4, 0.2, 0.2, 0.2]) {
            assert!((found - expected).abs() < 1e-15, "{found}, expected {expected}");
        }
        assert_eq!(shares(&Schedule::constant(Density::new(0.3).unwrap()), 3), [0.3; 3]);
        assert_eq!(Schedule::constant(Density::new(0.3).unwrap()).density(u64::MAX).share(), 0.3);
    }

    #[test]
    fn the_largest_density_is_at_least_that_of_every_period() {
        let of = |share| Density::new(share).unwrap();
        let rising = Schedule::listed(&[of(0.1), of(0.7), of(0.2)], of(0.5));
        let all = [
            Schedule::constant(of(0.3)),
            Schedule::exponential(of(0.01), 5),
            Schedule::linear(of(0.01), 5),
            Schedule::deep_gradient_compression(),
            rising,
        ];
        for schedule in all {
            let largest = (0..9).map(|period| schedule.density(period).share()).fold(0.0, f64::max);
            assert_eq!(schedule.largest().share(), largest, "{schedule:?}");
        }
    }

    #[test]
    fn steps_are_grouped_in_periods() {
        let schedule = Schedule::deep_gradient_compression();
        let mut progress = Progress::new(schedule.clone(), 10).unwrap();
        for step in 0..70 {
            assert_eq!(progress.step(), step);
            assert_eq!(progress.density(), schedule.density(step / 10), "step {step}");
            progress.advance();
        }
        assert!(Progress::new(schedule.clone(), 0).is_err());
        assert_eq!(schedule.density_at_step(3, 0), schedule.density(3));
    }

    #[test]
    fn progress_is_found_again() {
        let mut progress = Progress::new(Schedule::global_top_k(), 3).unwrap();
        (0..7).for_each(|_| progress.advance());
        let saved = crate::state::to_bytes(&progress);
        let mut loaded = Progress::new(Schedule::global_top_k(), 3).unwrap();
        crate::state::from_bytes(&mut loaded, &saved).unwrap();
        assert_eq!(loaded, progress);
        let mut other = Progress::new(Schedule::global_top_k(), 4).unwrap();
        assert!(matches!(crate::state::from_bytes(&mut other, &saved), Err(Error::State(_))));
        assert_eq!(other.step(), 0);
    }
}
