//! Compressed averages with error feedback: one tensor, one residual, one handle.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use brevity::{GradientExchange, Policy};

use crate::averages_started::{Away, Sent};
use crate::boundary::{free, guard, hand_out, object};
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of};
use crate::memory::Stretch;
use crate::options::{Options, brv_options, waiting_call};
use crate::status::brv_status;

/// The tensor's name in error messages.
const TENSOR: &str = "gradient";

/// The residual of one tensor. The mutex turns use by two threads at once into an error.
#[derive(Default)]
pub struct brv_feedback(Mutex<Feedback>);

/// What a feedback is for, and its residual.
#[derive(Default)]
pub(crate) struct Feedback {
    /// Its number among the objects of a group, which the first call with that group takes.
    number: Option<(Arc<Shared>, u32)>,
    /// Set by the first call that succeeds; not while the exchange is away.
    pub(crate) bound: Option<Bound>,
    away: Option<AwayBound>,
}

/// A feedback whose exchange a started call has.
struct AwayBound {
    away: Away,
    group: Arc<Shared>,
    shape: Shape,
    density: f64,
}

/// A feedback after its first use, which fixes what it can be used for.
pub(crate) struct Bound {
    pub(crate) group: Arc<Shared>,
    pub(crate) shape: Shape,
    pub(crate) density: f64,
    pub(crate) exchange: GradientExchange,
}

/// What a feedback was first used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Gtopk { n: usize },
    LowRank { rows: usize, cols: usize, rank: u32 },
}

/// Makes an empty feedback.
///
/// # Safety
/// `feedback` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_new(feedback: *mut *mut brv_feedback) -> brv_status {
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(feedback, "feedback", || Ok(Some(brv_feedback::default()))) })
}

/// Frees a feedback. Does nothing for NULL.
///
/// # Safety
/// `feedback` is NULL or a live feedback that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_free(feedback: *mut brv_feedback) {
    // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
    unsafe { free(feedback) }
}

/// Copies the residual to `out`.
///
/// # Safety
/// `feedback` is NULL or a live feedback; `out` has `n` elements that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_residual(
    feedback: *const brv_feedback,
    out: *mut f32,
    n: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live feedback.
        let feedback = unsafe { feedback_of(feedback) }?;
        let out = Stretch::new(out, n, "out")?;
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { copy_residual(&feedback.used()?.exchange, TENSOR, out) }
    })
}

/// Averages `gradient` over all ranks by gTop-k, in place.
///
/// # Safety
/// `group` and `feedback` are NULL or live; `gradient` has `n` elements, set, that nobody else uses
/// meanwhile; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_gtopk_average(
    group: *mut brv_group,
    feedback: *mut brv_feedback,
    gradient: *mut f32,
    n: usize,
    density: f64,
    options: *const brv_options,
) -> brv_status {
    let average = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.shared();
        // SAFETY: the caller in C guarantees a live feedback.
        let mut state = unsafe { feedback_of(feedback) }?;
        // SAFETY: the caller in C guarantees set memory that nobody else uses.
        let gradient = unsafe { Stretch::new(gradient, n, "gradient")?.write() };
        state.enter(group, Shape::Gtopk { n }, density)?.average(gradient, density, options)
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, average) }
}

/// Averages `gradient`, a row-major matrix, over all ranks by low-rank factors, in place.
///
/// # Safety
/// `group` and `feedback` are NULL or live; `gradient` has `rows * cols` elements, set, that nobody else uses
/// meanwhile; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_average(
    group: *mut brv_group,
    feedback: *mut brv_feedback,
    gradient: *mut f32,
    rows: usize,
    cols: usize,
    rank: u32,
    options: *const brv_options,
) -> brv_status {
    let average = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.shared();
        // SAFETY: the caller in C guarantees a live feedback.
        let mut state = unsafe { feedback_of(feedback) }?;
        let shape = Shape::LowRank { rows, cols, rank };
        // SAFETY: the caller in C guarantees set memory that nobody else uses.
        let gradient = unsafe { Stretch::new(gradient, shape.elements()?, "gradient")?.write() };
        state.enter(group, shape, NO_DENSITY)?.average(gradient, NO_DENSITY, options)
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, average) }
}

/// Moves a feedback to another group, with its residual.
///
/// # Safety
/// `feedback` and `group` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_rejoin(
    feedback: *mut brv_feedback,
    group: *mut brv_group,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live feedback.
        let mut state = unsafe { feedback_of(feedback) }?;
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.shared();
        let Feedback { number, bound, .. } = &mut *state;
        *number = bound.as_mut().map(|bound| {
            bound.exchange.rejoin(&group.group);
            bound.group = Arc::clone(group);
            (Arc::clone(group), bound.exchange.number())
        });
        Ok(())
    })
}

/// Used as the density of a low-rank feedback, which has none.
pub(crate) const NO_DENSITY: f64 = 1.0;

/// Copies the residual of a tensor, and writes nothing unless `out` has its length.
///
/// # Safety
/// All elements of `out` are in one live, writable allocation, and not used by anyone else meanwhile.
pub(crate) unsafe fn copy_residual(
    exchange: &GradientExchange,
    tensor: &str,
    out: Stretch<f32>,
) -> Result<(), Failure> {
    let Some((_, expected)) = exchange.tensors().find(|(name, _)| *name == tensor) else {
        return Err(Failure::argument(format!("name is {tensor:?}, expected that of a tensor")));
    };
    out.check_count(expected)?;
    // SAFETY: the caller of this function guarantees it.
    Ok(exchange.residual_to(tensor, unsafe { out.zeroed() })?)
}

/// Locks the state of the feedback behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
pub(crate) unsafe fn feedback_of<'a>(
    feedback: *const brv_feedback,
) -> Result<MutexGuard<'a, Feedback>, Failure> {
    if feedback.is_null() {
        return Err(Failure::argument(
            "feedback is NULL, expected one made by brv_feedback_new: without it, what is not sent is lost",
        ));
    }
    // SAFETY: the caller of this function guarantees what `object` demands.
    match unsafe { object(feedback, "feedback") }?.0.try_lock() {
        Ok(mut state) => state.come_back().map(|()| state),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::argument("feedback is in use by another thread: give each tensor its own"))
        }
        Err(TryLockError::Poisoned(_)) => {
            Err(Failure::panic(&"the feedback was left unfinished by an earlier defect"))
        }
    }
}

impl Feedback {
    /// What the feedback was used for.
    pub(crate) fn used(&self) -> Result<&Bound, Failure> {
        let never_used =
            || Failure::argument("feedback has no residual, expected one that was used in a call");
        self.bound.as_ref().ok_or_else(never_used)
    }

    /// Takes the exchange back from a started call that has ended.
    fn come_back(&mut self) -> Result<(), Failure> {
        let Some(AwayBound { away, group, shape, density }) = &self.away else { return Ok(()) };
        let exchange = away.come_back("feedback")?;
        let bound = Bound { group: Arc::clone(group), shape: *shape, density: *density, exchange };
        (self.bound, self.away) = (Some(bound), None);
        Ok(())
    }

    /// Sends the exchange of a used feedback away with a call.
    pub(crate) fn send_away(
        &mut self,
        start: impl FnOnce(GradientExchange) -> Sent,
    ) -> Result<&Away, Failure> {
        let Some(Bound { group, shape, density, exchange }) = self.bound.take() else {
            return Err(Failure::argument("feedback has no residual"));
        };
        match start(exchange) {
            Ok(away) => Ok(&self.away.insert(AwayBound { away, group, shape, density }).away),
            Err(refused) => {
                let (exchange, failure) = *refused;
                self.bound = exchange.map(|exchange| Bound { group, shape, density, exchange });
                Err(failure)
            }
        }
    }

    /// Binds an unused feedback, or checks that a used one fits.
    pub(crate) fn enter(
        &mut self,
        group: &Arc<Shared>,
        shape: Shape,
        density: f64,
    ) -> Result<&mut Bound, Failure> {
        let bound = match self.bound.take() {
            Some(bound) => bound,
            None => self.build(group, shape, density)?,
        };
        let bound = self.bound.insert(bound);
        bound.check(group, shape)?;
        Ok(bound)
    }

    /// A new exchange, for the place of the current one.
    pub(crate) fn build(
        &mut self,
        group: &Arc<Shared>,
        shape: Shape,
        density: f64,
    ) -> Result<Bound, Failure> {
        let number = match &self.number {
            Some((known, number)) if Arc::ptr_eq(known, group) => *number,
            _ => group.group.number_object(),
        };
        self.number = Some((Arc::clone(group), number));
        let builder = GradientExchange::builder(&group.group).number(number);
        let builder = match shape {
            Shape::Gtopk { n } => builder.tensor(TENSOR, [n], Policy::gtopk(density)),
            Shape::LowRank { rows, cols, rank } => {
                builder.tensor(TENSOR, [rows, cols], Policy::low_rank(rank as usize))
            }
        };
        Ok(Bound { group: Arc::clone(group), shape, density, exchange: builder.build()? })
    }
}

impl Bound {
    pub(crate) fn check_group(&self, group: &Arc<Shared>) -> Result<(), Failure> {
        if Arc::ptr_eq(&self.group, group) {
            return Ok(());
        }
        Err(Failure::argument(
            "feedback belongs to another group: make one for each group and tensor, or move this one with \
             brv_feedback_rejoin",
        ))
    }

    fn check(&self, group: &Arc<Shared>, shape: Shape) -> Result<(), Failure> {
        self.check_group(group)?;
        if self.shape != shape {
            return Err(Failure::argument(format!(
                "feedback is used for {shape}, expected {} as at first: make one for each tensor",
                self.shape
            )));
        }
        Ok(())
    }

    pub(crate) fn set_density(&mut self, density: f64) -> Result<(), Failure> {
        if density != self.density {
            self.exchange.set_density(TENSOR, density)?;
            self.density = density;
        }
        Ok(())
    }

    fn average(&mut self, gradient: &mut [f32], density: f64, options: &Options) -> Result<(), Failure> {
        self.set_density(density)?;
        options.average(&mut self.exchange, &mut [gradient])
    }
}

impl Shape {
    /// The number of elements of the tensor; `None` if no memory can hold them.
    pub(crate) fn count(self) -> Option<usize> {
        match self {
            Self::Gtopk { n } => Some(n),
            Self::LowRank { rows, cols, .. } => rows.checked_mul(cols),
        }
    }
}

impl Shape {
    /// Likewise, as an error of the caller's.
    pub(crate) fn elements(self) -> Result<usize, Failure> {
        self.count()
            .ok_or_else(|| Failure::argument(format!("{self} fits in no memory: check rows and cols")))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gtopk { n } => write!(f, "gTop-k of {n} elements"),
            Self::LowRank { rows, cols, rank } => write!(f, "rank {rank} of a {rows} x {cols} matrix"),
        }
    }
}
