//! Taking over what another rank has saved: in a job with fewer ranks nothing is lost.
//!
//! What waits on a rank is a sum of gradients, and what each rank gives is summed over all ranks. So it is
//! the same whether two ranks give their residuals, or one of them gives the sum of both. That holds for what
//! momentum before selection keeps as well, because it depends on the gradients linearly.
//!
//! A state is read twice. The first pass checks that all sums are finite, the second one stores them.

use std::io::Read;

use brevity_compress::state::{self, Fault, Reader, State, Writer};
use brevity_compress::{Error as Compress, in_standard_float_mode};

use super::GradientExchange;
use super::parts::Parts;
use crate::error::{Error, Result};

impl GradientExchange {
    /// Adds what rank `rank` has [saved](Self::save) and not sent to what this rank has not sent. Use it in a
    /// job with fewer ranks, after [`load_of`](Self::load_of), for each of the states that are left: if each
    /// saved state is loaded or taken over by exactly one rank, once, nothing is lost and nothing counts
    /// twice. The exchange has the same tensors in the same order as the one that was saved.
    ///
    /// Added are residuals, gradients kept after a failure, and what momentum before selection keeps
    /// (velocities of [`momentum`](crate::Policy::momentum), the sums of
    /// [`samomentum`](crate::Policy::samomentum)): each sum is rounded once. What all ranks have alike stays
    /// that of this exchange: steps, warm starts, momenta after aggregation, thresholds and draws; and so
    /// does the momentum of signum tensors, which have no residual.
    ///
    /// Both were saved after the same number of steps, for what was sent in between would count twice or be
    /// lost. An exchange that has made no step takes over any state; then it has no warm start and no
    /// thresholds, and all ranks begin alike.
    ///
    /// Costs a copy of the state, and of its largest tensor. Sends nothing.
    ///
    /// ```
    /// use brevity::{GradientExchange, Group, Policy};
    ///
    /// # fn main() -> brevity::Result<()> {
    /// # let group = Group::solo();
    /// # let build = || GradientExchange::builder(&group).tensor("weight", [8], Policy::topk(0.25)).build();
    /// # let saved = || -> brevity::Result<Vec<u8>> {
    /// #     let mut exchange = build()?;
    /// #     exchange.average(&mut [vec![1.0f32; 8]])?;
    /// #     let mut state = Vec::new();
    /// #     exchange.save(&mut state)?;
    /// #     Ok(state)
    /// # };
    /// # let states = [saved()?, saved()?];
    /// # let rank_that_saved = 0;
    /// let mut exchange = build()?;
    /// exchange.load_of(0, &mut &states[0][..])?;
    /// exchange.take_over(rank_that_saved, &mut &states[1][..])?;
    /// assert_eq!(exchange.residual("weight").unwrap().iter().sum::<f32>(), 12.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::State`] if the state can't be read, is cut off or damaged, belongs to another rank or other
    /// tensors, was saved after another number of steps, or has a value that is not finite;
    /// [`Error::StateOverflow`]; [`Error::Order`] in the middle of a step. Nothing has changed then.
    pub fn take_over(&mut self, rank: u32, from: &mut impl Read) -> Result<()> {
        self.check_settled()?;
        state::load(&mut self.plan_of(rank), from)?;
        let mut taken = Taken { parts: &mut self.parts, overflow: None };
        let outcome = state::load(&mut taken, from);
        match taken.overflow {
            Some(tensor) => {
                Err(Error::StateOverflow { rank, tensor: self.parts.tensors[tensor].name.clone() })
            }
            None => Ok(outcome?),
        }
    }
}

/// The form of [`Parts`] as they are saved. Loading adds.
struct Taken<'e> {
    parts: &'e mut Parts,
    /// A tensor with a sum that is not finite.
    overflow: Option<usize>,
}

impl State for Taken<'_> {
    fn kind(&self) -> [u8; 4] {
        self.parts.kind()
    }

    fn shape(&self) -> Vec<u64> {
        self.parts.shape()
    }

    fn write_contents(&self, contents: &mut Writer) {
        self.parts.write_contents(contents);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> std::result::Result<(), Compress> {
        let sums = Default::default();
        let mut taking =
            Taking { contents: contents.clone(), sums, stores: false, tensor: 0, overflow: None };
        in_standard_float_mode(|| {
            let checked = self.parts.take(&mut taking);
            self.overflow = taking.overflow;
            checked?;
            (taking.contents, taking.stores) = (contents.clone(), true);
            self.parts.take(&mut taking)
        })
    }
}

impl Parts {
    /// Adds what another rank has kept, in the order in which it is saved.
    fn take(&mut self, from: &mut Taking<'_>) -> std::result::Result<(), Compress> {
        let (found, expected) = (from.contents.u64()?, self.course.steps);
        if found != expected && expected > 0 {
            return Err(Fault::Steps { found, expected }.into());
        }
        let Self { tensors, buckets, .. } = self;
        let given = || (0..tensors.len()).filter(|tensor| !tensors[*tensor].fits_every_choice());
        given().try_for_each(|tensor| {
            buckets.iter_mut().try_for_each(|bucket| bucket.take_whole(tensor, from))
        })?;
        buckets.iter_mut().try_for_each(|bucket| bucket.take_matrices(from))?;
        given().try_for_each(|tensor| {
            buckets.iter_mut().try_for_each(|bucket| bucket.take_sparse(tensor, from))
        })?;
        let mut chosen = (0..tensors.len()).filter(|tensor| tensors[*tensor].fits_every_choice());
        chosen.try_for_each(|tensor| {
            buckets.iter_mut().try_for_each(|bucket| bucket.take_chosen(tensor, from))
        })?;
        let momenta = tensors.iter().filter_map(|tensor| tensor.momentum.as_ref());
        momenta.into_iter().try_for_each(|momentum| from.pass_over(momentum.len()))
    }
}

/// A saved state, while it is added to what this rank keeps.
pub(super) struct Taking<'a> {
    contents: Reader<'a>,
    sums: [Vec<f32>; 2],
    /// Whether sums are stored: in the second pass, in which all of them are finite.
    stores: bool,
    /// The tensor that is read.
    tensor: usize,
    overflow: Option<usize>,
}

impl<'a> Taking<'a> {
    /// What is read next belongs to this tensor.
    pub(super) fn begin(&mut self, tensor: usize) {
        self.tensor = tensor;
    }

    /// What is saved and not added: a number that all ranks have alike.
    pub(super) fn contents(&mut self) -> &mut Reader<'a> {
        &mut self.contents
    }

    /// Reads as many values, which are not added.
    pub(super) fn pass_over(&mut self, count: usize) -> std::result::Result<(), Compress> {
        resize(&mut self.sums[0], count)?;
        self.contents.f32s(&mut self.sums[0])
    }

    /// Reads as many values as there are of this rank's `own`. Returns the sums, if they are to be stored.
    pub(super) fn sum(&mut self, own: &[f32]) -> std::result::Result<Option<&[f32]>, Compress> {
        self.add(0, own)?;
        Ok(self.stores.then_some(&self.sums[0]))
    }

    /// The same for two vectors that belong together.
    pub(super) fn sum_both(
        &mut self,
        [first, second]: [&[f32]; 2],
    ) -> std::result::Result<Option<[&[f32]; 2]>, Compress> {
        self.add(0, first)?;
        self.add(1, second)?;
        let [first, second] = &self.sums;
        Ok(self.stores.then_some([first, second]))
    }

    fn add(&mut self, place: usize, own: &[f32]) -> std::result::Result<(), Compress> {
        let sums = &mut self.sums[place];
        resize(sums, own.len())?;
        self.contents.f32s(sums)?;
        for (index, (sum, own)) in sums.iter_mut().zip(own).enumerate() {
            *sum += own;
            if !sum.is_finite() {
                self.overflow = Some(self.tensor);
                return Err(Compress::NonFinite { index, value: *sum });
            }
        }
        Ok(())
    }
}

/// The second pass needs no more memory than the first one.
fn resize(vector: &mut Vec<f32>, count: usize) -> std::result::Result<(), Compress> {
    vector.clear();
    vector.try_reserve(count).map_err(|_| Compress::Memory { bytes: count.saturating_mul(4) })?;
    vector.resize(count, 0.0);
    Ok(())
}
