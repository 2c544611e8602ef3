//! Random-K and random-block all-reduce.

use brevity::Group;
use brevity_collectives::sparse::{Draw, RandomKAllReduce, RandomPlaces};

use super::{Arguments, Begun, Results, brv_sparse};
use crate::failure::Failure;
use crate::group::Shared;
use crate::lent::Lent;
use crate::memory::Stretch;

/// The number of a way to draw places. C may pass any number, so this is not a Rust enum.
pub type brv_draw = u32;

/// As in C.
pub(super) struct RandomKArguments {
    pub(super) input: *const f32,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) draw: brv_draw,
    pub(super) seed: u64,
    pub(super) step: u64,
    pub(super) sum: *mut brv_sparse,
}

impl RandomKArguments {
    /// The vector, the places, and the object for the sum.
    ///
    /// # Safety
    /// As for [`Arguments::wait`].
    unsafe fn read<'a>(self) -> Result<(Stretch<f32>, RandomPlaces, Results<'a>), Failure> {
        let Self { input, n, k, draw, seed, step, sum } = self;
        let vector = Stretch::new(input, n, "in")?;
        let places = RandomPlaces { draw: of_number(draw)?, k, seed, step };
        // SAFETY: the caller of this function guarantees a live vector.
        let results = unsafe { Results::hold([(sum, "sum".to_owned(), false)]) }?;
        Ok((vector, places, results))
    }
}

fn of_number(draw: brv_draw) -> Result<Draw, Failure> {
    match draw {
        1 => Ok(Draw::Scattered),
        2 => Ok(Draw::Block),
        _ => Err(Failure::argument(format!("draw is {draw}, expected a brv_draw (1 or 2)"))),
    }
}

impl Arguments for RandomKArguments {
    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (vector, places, results) = unsafe { self.read() }?;
        // SAFETY: the caller of this function guarantees set memory that nobody writes.
        let vector = unsafe { vector.read() };
        let sum = group.call_compressed(&mut RandomKAllReduce { vector, places })?;
        results.set(vec![sum]);
        Ok(())
    }

    unsafe fn start<'a>(self, group: &Group, shared: &Shared) -> Result<Begun<'a>, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (vector, places, results) = unsafe { self.read() }?;
        // SAFETY: the caller of this function guarantees set memory that nobody writes until the call has
        // ended.
        let vector = unsafe { Lent::new(vector, &shared.loans) };
        let handle = group.start_compressed(RandomKAllReduce { vector, places });
        Ok(Begun::into_vectors(handle, results, |sum| vec![sum]))
    }
}
