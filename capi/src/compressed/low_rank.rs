//! Low-rank all-reduce, and the states of the matrices as a C handle.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use brevity::Group;
use brevity::compress::in_standard_float_mode;
use brevity::compress::low_rank::{Batch, Factors, LowRank};
use brevity_collectives::low_rank::LowRankAllReduce;

use super::{Arguments, Begun};
use crate::boundary::{guard, hand_out, object};
use crate::callback::drop_elsewhere;
use crate::failure::Failure;
use crate::group::Shared;
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::request::{Call, Finished};
use crate::status::brv_status;

/// The states of matrices and their last factors. The mutex turns use by two threads at once into an error.
#[derive(Default)]
pub struct brv_low_rank(Mutex<State>);

#[derive(Default)]
pub(super) struct State {
    pub(super) batch: Batch,
    /// Those of the last call that has succeeded.
    pub(super) factors: Option<Factors>,
    away: Option<Away>,
}

/// A started call that has the states.
struct Away {
    /// Kept also when its request is freed: the states still come back.
    call: Arc<Call>,
    place: Place,
}

/// Where the states come back to, with the factors of a call that has succeeded.
#[derive(Clone, Default)]
struct Place(Arc<Mutex<Option<Back>>>);

type Back = (Batch, Option<Factors>);

impl Place {
    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Option<Back>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the states back from a started call that has ended.
    fn come_back(&mut self) -> Result<(), Failure> {
        let Some(away) = &self.away else { return Ok(()) };
        if !away.call.settle() {
            return Err(Failure::argument(
                "low_rank is in use by a call that was started: wait for its request",
            ));
        }
        let back = away.place.lock().take();
        self.take(back.ok_or_else(|| Failure::panic(&"an earlier call with it was left unfinished"))?);
        if let Some(away) = self.away.take() {
            drop_elsewhere(away);
        }
        Ok(())
    }

    fn take(&mut self, (batch, factors): Back) {
        self.batch = batch;
        self.factors = factors.or_else(|| self.factors.take());
    }

    /// The shape of a matrix: rows and columns.
    fn matrix(&self, position: usize) -> Result<&LowRank, Failure> {
        self.batch.states().get(position).ok_or_else(|| {
            let count = self.batch.states().len();
            Failure::argument(format!("position is {position}, expected less than {count}, the matrices"))
        })
    }
}

/// Locks the states behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
pub(super) unsafe fn state_of<'a>(low_rank: *const brv_low_rank) -> Result<MutexGuard<'a, State>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    match unsafe { object(low_rank, "low_rank") }?.0.try_lock() {
        Ok(mut state) => state.come_back().map(|()| state),
        Err(TryLockError::WouldBlock) => Err(Failure::argument("low_rank is in use by another thread")),
        Err(TryLockError::Poisoned(_)) => {
            Err(Failure::panic(&"the states were left unfinished by an earlier defect"))
        }
    }
}

/// As in C.
pub(super) struct LowRankArguments {
    pub(super) low_rank: *mut brv_low_rank,
    pub(super) matrices: *const *const f32,
    pub(super) tensors: usize,
}

impl LowRankArguments {
    /// The states, and the memory of each matrix.
    ///
    /// # Safety
    /// As for [`Arguments::wait`].
    unsafe fn read<'a>(&self) -> Result<(MutexGuard<'a, State>, Vec<Stretch<f32>>), Failure> {
        // SAFETY: the caller of this function guarantees a live object.
        let state = unsafe { state_of(self.low_rank) }?;
        let (found, expected) = (self.tensors, state.batch.states().len());
        if found != expected {
            return Err(Failure::argument(format!(
                "tensors is {found}, expected {expected}, the matrices that were added"
            )));
        }
        let pointers = Stretch::new(self.matrices, found, "matrices")?;
        // SAFETY: the caller of this function guarantees as many pointers.
        let matrices = unsafe { pointers.read() }.iter().zip(state.batch.states()).enumerate();
        let matrices = matrices.map(|(position, (&matrix, shape))| {
            Stretch::new(matrix, shape.rows() * shape.cols(), &format!("matrices[{position}]"))
        });
        let matrices = matrices.collect::<Result<_, _>>()?;
        Ok((state, matrices))
    }
}

impl Arguments for LowRankArguments {
    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (mut state, matrices) = unsafe { self.read() }?;
        // SAFETY: the caller of this function guarantees set memory that nobody writes.
        let matrices = matrices.into_iter().map(|matrix| unsafe { matrix.read() }).collect();
        let batch = &mut state.batch;
        let factors = group.call_compressed(&mut LowRankAllReduce::<_, &[f32]> { batch, matrices })?;
        state.factors = Some(factors);
        Ok(())
    }

    unsafe fn start<'a>(self, group: &Group, shared: &Shared) -> Result<Begun<'a>, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (mut state, matrices) = unsafe { self.read() }?;
        // SAFETY: the caller of this function guarantees set memory that nobody writes until the call has
        // ended.
        let lend = |matrix| unsafe { Lent::new(matrix, &shared.loans) };
        let matrices = matrices.into_iter().map(lend).collect();
        let collective: LowRankAllReduce<Batch, Lent<f32>> =
            LowRankAllReduce { batch: mem::take(&mut state.batch), matrices };
        let place = Place::default();
        let into = place.clone();
        let handle = group.start_compressed(collective);
        let started = Finished(handle, move |(collective, outcome)| {
            let LowRankAllReduce::<Batch, Lent<f32>> { batch, .. } = collective;
            let (factors, outcome) = match outcome {
                Ok(factors) => (Some(factors), Ok(None)),
                Err(error) => (None, Err(Failure::from(error))),
            };
            *into.lock() = Some((batch, factors));
            outcome
        });
        let then = move |call: Option<&Arc<Call>>| match call {
            Some(call) => state.away = Some(Away { call: Arc::clone(call), place }),
            None => place.lock().take().map_or((), |back| state.take(back)),
        };
        Ok(Begun { started: Box::new(started), then: Box::new(then) })
    }
}

/// Makes an object without matrices.
///
/// # Safety
/// `low_rank` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_new(low_rank: *mut *mut brv_low_rank) -> brv_status {
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(low_rank, "low_rank", || Ok(Some(brv_low_rank::default()))) })
}

/// Frees the states. Does nothing for NULL.
///
/// # Safety
/// `low_rank` is NULL or a live object that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_free(low_rank: *mut brv_low_rank) {
    if low_rank.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the handle was made by `Box::into_raw` in `hand_out`, and the caller in C gives it up.
        let brv_low_rank(mutex) = *unsafe { Box::from_raw(low_rank) };
        drop_elsewhere(mutex);
        Ok(())
    });
}

/// Adds a matrix.
///
/// # Safety
/// `low_rank` is NULL or a live object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_add(
    low_rank: *mut brv_low_rank,
    rows: usize,
    cols: usize,
    rank: u32,
    seed: u64,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live object.
        let mut state = unsafe { state_of(low_rank) }?;
        if rank == 0 {
            return Err(Failure::argument("rank is 0, expected 1 or more"));
        }
        let matrix = LowRank::new(rows, cols, rank as usize, seed).map_err(brevity::Error::from)?;
        state.batch.push(matrix);
        state.factors = None;
        Ok(())
    })
}

/// Writes the mean of a matrix, as far as its factors say, or this rank's part.
///
/// # Safety
/// `low_rank` is NULL or a live object; `out` has `n` elements that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_mean(
    low_rank: *mut brv_low_rank,
    position: usize,
    out: *mut f32,
    n: usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    unsafe { product(low_rank, position, out, n, false) }
}

/// Writes this rank's own matrix, as far as its factors say.
///
/// # Safety
/// As for [`brv_low_rank_mean`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_own(
    low_rank: *mut brv_low_rank,
    position: usize,
    out: *mut f32,
    n: usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    unsafe { product(low_rank, position, out, n, true) }
}

/// Has the next call begin with the mean of the last.
///
/// # Safety
/// `low_rank` is NULL or a live object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_warm(low_rank: *mut brv_low_rank) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live object.
        let mut state = unsafe { state_of(low_rank) }?;
        let State { batch, factors, .. } = &mut *state;
        let factors = factors.as_ref().ok_or_else(never_used)?;
        in_standard_float_mode(|| batch.set_q(&factors.q))
            .map_err(|error| brevity::Error::from(error.source))?;
        Ok(())
    })
}

fn never_used() -> Failure {
    Failure::argument(
        "low_rank has no factors, expected one that was used in a call since it has its matrices",
    )
}

/// # Safety
/// As for [`brv_low_rank_mean`].
unsafe fn product(
    low_rank: *mut brv_low_rank,
    position: usize,
    out: *mut f32,
    n: usize,
    is_own: bool,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller of this function guarantees a live object.
        let mut state = unsafe { state_of(low_rank) }?;
        let shape = state.matrix(position)?;
        let (rows, cols) = (shape.rows(), shape.cols());
        if n != rows * cols {
            return Err(Failure::argument(format!("n is {n}, expected {rows} * {cols}, the matrix")));
        }
        let out = Stretch::new(out.cast_const(), n, "out")?;
        let State { batch, factors, .. } = &mut *state;
        let factors = factors.as_mut().ok_or_else(never_used)?;
        // SAFETY: the caller of this function guarantees memory that nobody else uses.
        let out = unsafe { out.unset() };
        if is_own {
            mem::swap(&mut factors.own_q, &mut factors.q);
        }
        let written = in_standard_float_mode(|| batch.reconstruct(position, factors, out));
        if is_own {
            mem::swap(&mut factors.own_q, &mut factors.q);
        }
        Ok(written.map_err(|error| brevity::Error::from(error.source))?)
    })
}
