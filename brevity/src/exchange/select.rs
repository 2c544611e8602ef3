//! What is selected of a tensor's values that have not been sent.

use brevity_collectives::sparse::{Draw, RandomPlaces};
use brevity_compress::feedback::{Compressor, Gradient, Residual, TopK};
use brevity_compress::generator::Generator;
use brevity_compress::select::{
    BLOCK_PLACES, SampledScratch, TopKScratch, largest_blocks, over_threshold, sampled_top_k, top_k,
};
use brevity_compress::state::{Fault, Reader, Writer};
use brevity_compress::{Error, SparseVec};

/// The steps from one estimate of a threshold to the next, as in Ok-Topk.
const PERIOD: u64 = 32;

/// How entries are selected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    /// The `k` of largest magnitude.
    Exact,
    /// Those that reach the threshold of a sample: about `k`, up to the limit.
    Sampled,
    /// Those that reach the `k`-th magnitude of an earlier step: from half of `k` to the limit, otherwise the
    /// threshold is estimated anew.
    Adaptive,
    /// Those that reach a threshold, the `k` largest where more do.
    Fixed(f32),
    /// `k` places from a generator that all ranks share.
    Random(Draw),
    /// The `k` blocks of largest norm.
    Blocks,
}

/// Selects entries of a tensor, step after step.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    rule: Rule,
    k: usize,
    /// Whether up to twice as many may travel where a threshold lets about `k` pass, or else `k`.
    may_exceed: bool,
    /// Of random places and of samples.
    seed: u64,
    /// As it was before the step.
    memory: Memory,
    /// As it is after the step, unless that fails.
    next: Memory,
}

/// What is kept from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Memory {
    /// The steps that have succeeded.
    step: u64,
    /// 0 before the first estimate.
    threshold: f32,
}

/// Work space for selecting.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) top_k: TopKScratch,
    sampled: SampledScratch,
    norms: Vec<(f64, u32)>,
}

impl Selector {
    pub(super) fn new(rule: Rule, may_exceed: bool, k: usize, seed: u64) -> Self {
        Self { rule, k, may_exceed, seed, memory: Memory::default(), next: Memory::default() }
    }

    pub(super) fn rule(&self) -> Rule {
        self.rule
    }

    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// Selects as many from the next step on. A threshold is estimated anew.
    pub(super) fn set_k(&mut self, k: usize) {
        self.k = k;
        self.memory.threshold = 0.0;
    }

    /// One that selects as many.
    pub(super) fn with_k(mut self, k: usize) -> Self {
        self.set_k(k);
        self
    }

    /// Goes on as after the steps of another one.
    pub(super) fn remember(&mut self, other: &Self) {
        self.memory = other.memory;
    }

    /// Whether it goes on as another one.
    pub(super) fn remembers(&self, other: &Self) -> bool {
        self.memory == other.memory
    }

    /// Forgets all steps.
    pub(super) fn restart(&mut self) {
        self.memory = Memory::default();
    }

    /// The seed of random places, and the number of the step.
    pub(super) fn places(&self) -> (u64, u64) {
        (self.seed, self.memory.step)
    }

    /// The most entries that it selects of a tensor of `count` elements.
    pub(super) fn most(&self, count: usize) -> usize {
        let most = match self.rule {
            Rule::Exact | Rule::Fixed(_) | Rule::Random(_) => self.k,
            Rule::Sampled | Rule::Adaptive => self.limit(),
            Rule::Blocks => self.k.saturating_mul(BLOCK_PLACES),
        };
        most.min(count)
    }

    /// The step in which entries were selected has succeeded.
    pub(super) fn commit(&mut self) {
        self.memory = Memory { step: self.memory.step.wrapping_add(1), ..self.next };
    }

    /// The most entries that an inexact threshold may let pass.
    fn limit(&self) -> usize {
        if self.may_exceed { self.k.saturating_mul(2) } else { self.k }
    }

    /// Copies the selected entries of finite values to `out`. It may be called again for the same step.
    pub(super) fn select(
        &mut self,
        values: &[f32],
        out: &mut SparseVec,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        self.next = self.memory;
        match self.rule {
            Rule::Exact => top_k(values, self.k, out, &mut scratch.top_k),
            Rule::Sampled => {
                let generator = &mut Generator::for_stream(self.seed, self.memory.step);
                sampled_top_k(values, self.k, self.limit(), generator, out, &mut scratch.sampled)
            }
            Rule::Adaptive => self.adaptive(values, out, scratch),
            Rule::Fixed(tau) if over_threshold(values, tau, self.k, out)? => Ok(()),
            Rule::Fixed(_) => top_k(values, self.k, out, &mut scratch.top_k),
            Rule::Random(draw) => {
                let places = RandomPlaces { draw, k: self.k, seed: self.seed, step: self.memory.step };
                *out = places.select(values)?;
                Ok(())
            }
            Rule::Blocks => largest_blocks(values, self.k, out, &mut scratch.norms),
        }
    }

    /// As [`OkTopk::select`](brevity_collectives::sparse::OkTopk::select).
    fn adaptive(&mut self, values: &[f32], out: &mut SparseVec, scratch: &mut Scratch) -> Result<(), Error> {
        let Memory { step, threshold } = self.memory;
        let may_stay = !step.is_multiple_of(PERIOD) && threshold > 0.0;
        if may_stay
            && over_threshold(values, threshold, self.limit(), out)?
            && out.len() >= self.k.div_ceil(2)
        {
            return Ok(());
        }
        top_k(values, self.k, out, &mut scratch.top_k)?;
        let smallest = out.values().iter().map(|value| value.abs()).reduce(f32::min);
        self.next.threshold = smallest.unwrap_or(0.0);
        Ok(())
    }

    /// Whether something of it is part of the state.
    fn is_kept(&self) -> bool {
        matches!(self.rule, Rule::Sampled | Rule::Adaptive | Rule::Random(_))
    }

    /// What of it is part of the state, in words that follow others.
    pub(super) const fn kept(&self) -> &'static str {
        match self.rule {
            Rule::Exact | Rule::Fixed(_) | Rule::Blocks => "",
            Rule::Adaptive => ", threshold",
            Rule::Sampled | Rule::Random(_) => ", draws",
        }
    }

    pub(super) fn write_state(&self, contents: &mut Writer) {
        if self.is_kept() {
            contents.u64(self.memory.step);
            contents.u64(self.memory.threshold.to_bits().into());
        }
    }

    pub(super) fn read_state(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        if self.is_kept() {
            let (step, threshold) = (contents.u64()?, read_threshold(contents)?);
            self.memory = Memory { step, threshold };
        }
        Ok(())
    }
}

/// Reads the bits of a finite magnitude.
pub(super) fn read_threshold(contents: &mut Reader<'_>) -> Result<f32, Error> {
    let bits = contents.u64()?;
    let threshold = u32::try_from(bits).map(f32::from_bits).unwrap_or(f32::NAN);
    if threshold.is_finite() && threshold.is_sign_positive() {
        return Ok(threshold);
    }
    Err(Fault::Contents { what: "a threshold is no finite magnitude" }.into())
}

/// A selector with its own work space, for momentum. Exact selections need one pass.
#[derive(Debug)]
pub(super) struct Selecting {
    own: Own,
    exact: TopK,
}

/// The same, in two passes.
#[derive(Debug)]
struct Own {
    selector: Selector,
    scratch: Scratch,
}

impl Selecting {
    pub(super) fn new(selector: Selector) -> Self {
        Self { own: Own { selector, scratch: Scratch::default() }, exact: TopK::new(0) }
    }

    pub(super) fn selector(&self) -> &Selector {
        &self.own.selector
    }

    pub(super) fn selector_mut(&mut self) -> &mut Selector {
        &mut self.own.selector
    }
}

impl Compressor for Own {
    type Message = SparseVec;

    fn compress(&mut self, dense: &[f32], message: &mut SparseVec) -> Result<(), Error> {
        self.selector.select(dense, message, &mut self.scratch)
    }

    fn add_decoded(&self, message: &SparseVec, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        TopK::new(0).add_decoded(message, factor, dense)
    }
}

impl Compressor for Selecting {
    type Message = SparseVec;

    fn compress(&mut self, dense: &[f32], message: &mut SparseVec) -> Result<(), Error> {
        self.own.compress(dense, message)
    }

    fn add_decoded(&self, message: &SparseVec, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        self.exact.add_decoded(message, factor, dense)
    }

    fn feed(
        &mut self,
        residual: &mut Residual,
        gradient: Gradient<'_>,
        message: &mut SparseVec,
    ) -> Result<(), Error> {
        let selector = &self.own.selector;
        if selector.rule == Rule::Exact {
            self.exact.set_k(selector.k);
            return self.exact.feed(residual, gradient, message);
        }
        self.own.feed(residual, gradient, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(selector: &mut Selector, values: &[f32]) -> Vec<u32> {
        let mut out = SparseVec::new(0);
        selector.select(values, &mut out, &mut Scratch::default()).unwrap();
        out.indices().to_vec()
    }

    #[test]
    fn a_threshold_changes_only_with_a_step_that_succeeds() {
        let mut selector = Selector::new(Rule::Adaptive, true, 2, 0);
        let values = [1.0, -4.0, 3.0, 2.0];
        assert_eq!(selected(&mut selector, &values), [1, 2]);
        assert_eq!(selected(&mut selector, &values.map(|value| 2.0 * value)), [1, 2], "there is none yet");
        selector.commit();
        assert_eq!(selector.memory, Memory { step: 1, threshold: 6.0 });
        assert_eq!(selected(&mut selector, &values.map(|value| 2.0 * value)), [1, 2]);
        assert_eq!(selected(&mut selector, &values.map(|value| 6.0 * value)), [0, 1, 2, 3], "up to 2 k");
        assert_eq!(selected(&mut selector, &[6.0, 6.0, 6.0, 6.0, 7.0]), [0, 4], "more: the k largest");
        assert_eq!(selector.memory, Memory { step: 1, threshold: 6.0 });
        selector.set_k(3);
        assert_eq!(selected(&mut selector, &values), [1, 2, 3], "it is estimated anew");
        assert_eq!((selector.most(4), selector.most(100)), (4, 6));
    }

    #[test]
    fn thresholds_have_limits() {
        let values: Vec<f32> = (0..5000).map(|index| ((index * 7919) % 5003) as f32 - 2500.0).collect();
        for (may_exceed, most) in [(true, 200), (false, 100)] {
            let mut sampled = Selector::new(Rule::Sampled, may_exceed, 100, 3);
            let mut sizes = (0..50).map(|_| {
                sampled.commit();
                selected(&mut sampled, &values).len()
            });
            assert!(sizes.all(|size| (40..=most).contains(&size)), "up to {most}");
            assert_eq!(sampled.most(5000), most);
            let mut adaptive = Selector::new(Rule::Adaptive, may_exceed, 100, 3);
            selected(&mut adaptive, &values);
            adaptive.commit();
            let larger: Vec<f32> = values.iter().map(|value| 1.01 * value).collect();
            assert_eq!(selected(&mut adaptive, &larger).len() > 100, may_exceed);
        }
        let mut fixed = Selector::new(Rule::Fixed(2400.0), true, 500, 3);
        let reaching = values.iter().filter(|value| value.abs() >= 2400.0).count();
        assert_eq!((selected(&mut fixed, &values).len(), fixed.most(5000)), (reaching, 500));
        let mut low = Selector::new(Rule::Fixed(1.0), true, 500, 3);
        let mut exact = Selector::new(Rule::Exact, true, 500, 3);
        assert_eq!(selected(&mut low, &values), selected(&mut exact, &values));
    }

    #[test]
    fn a_failed_step_draws_the_same_places_again() {
        for draw in [Draw::Scattered, Draw::Block] {
            let mut selector = Selector::new(Rule::Random(draw), true, 30, 5);
            let values = [1.0; 1000];
            let first = selected(&mut selector, &values);
            assert_eq!((selected(&mut selector, &values), first.len()), (first.clone(), 30));
            selector.commit();
            assert_ne!(selected(&mut selector, &values), first);
            selector.restart();
            assert_eq!(selected(&mut selector, &values), first);
        }
    }

    #[test]
    fn impossible_thresholds_are_refused() {
        use brevity_compress::state::{State, from_bytes, to_bytes};

        struct Saved(Selector);
        impl State for Saved {
            fn kind(&self) -> [u8; 4] {
                *b"test"
            }
            fn shape(&self) -> Vec<u64> {
                vec![]
            }
            fn write_contents(&self, contents: &mut Writer) {
                self.0.write_state(contents);
            }
            fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
                self.0.read_state(contents)
            }
        }
        for (threshold, is_good) in
            [(0.0, true), (2.5, true), (-1.0, false), (f32::NAN, false), (f32::INFINITY, false)]
        {
            let mut selector = Selector::new(Rule::Adaptive, true, 2, 0);
            selector.memory = Memory { step: 9, threshold };
            let mut loaded = Saved(Selector::new(Rule::Adaptive, true, 2, 0));
            let outcome = from_bytes(&mut loaded, &to_bytes(&Saved(selector.clone())));
            assert_eq!(outcome.is_ok(), is_good, "{threshold}");
            assert!(!is_good || loaded.0.memory == selector.memory);
        }
    }
}
