//! The gradients of a whole model in one call: a list of tensors, each with its policy.

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use brevity::compress::schedule::Schedule;
use brevity::{GradientExchange, Policy, StepReport};

use crate::averages_started::{Away, Sent};
use crate::boundary::{check, free, guard, hand_out, object};
use crate::element::OfGradients;
use crate::exchange_choice::Told;
use crate::failure::Failure;
use crate::feedback::copy_residual;
use crate::group::{Shared, brv_group, group_of};
use crate::memory::Stretch;
use crate::options::{Options, brv_options, waiting_call};
use crate::status::brv_status;

/// The tensors of a model and their residuals. The mutex turns use by two threads at once into an error.
pub struct brv_exchange(Mutex<Plan>);

/// The tensors that were added, and the exchange that the first use builds from them.
pub(crate) struct Plan {
    pub(crate) group: Arc<Shared>,
    /// Its number among the objects of the group.
    pub(crate) number: u32,
    tensors: Vec<Tensor>,
    pub(crate) exchange: Option<GradientExchange>,
    /// The call that has the exchange.
    away: Option<Away>,
    /// The bytes of gradients of a bucket, if they were set.
    bucket_bytes: Option<usize>,
    over_participants: bool,
    keeps_going: bool,
    /// The densities of sparse tensors, and the steps of a period.
    schedule: Option<(Schedule, u64)>,
    seed: Option<u64>,
    /// What the last step took.
    pub(crate) report: StepReport,
    /// The type of the gradients that were handed in of the current step.
    pub(crate) step_type: Option<&'static str>,
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    count: usize,
    policy: Policy,
    /// The density, if it has been changed since.
    density: Option<f64>,
    /// What was chosen for it, when the program has asked last.
    told: Option<Told>,
}

/// Makes an exchange without tensors.
///
/// # Safety
/// `group` is NULL or a live group; `exchange` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_new(
    group: *mut brv_group,
    exchange: *mut *mut brv_exchange,
) -> brv_status {
    let make = || {
        // SAFETY: the caller in C guarantees a live group.
        let group = Arc::clone(unsafe { group_of(group) }?.shared());
        let number = group.group.number_object();
        let plan = Plan {
            group,
            number,
            tensors: Vec::new(),
            exchange: None,
            away: None,
            bucket_bytes: None,
            over_participants: false,
            keeps_going: false,
            schedule: None,
            seed: None,
            report: StepReport::default(),
            step_type: None,
        };
        Ok(Some(brv_exchange(Mutex::new(plan))))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(exchange, "exchange", make) })
}

/// Frees an exchange. Does nothing for NULL.
///
/// # Safety
/// `exchange` is NULL or a live exchange that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_free(exchange: *mut brv_exchange) {
    // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
    unsafe { free(exchange) }
}

/// Averages the gradients of all tensors over all ranks, in place.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `gradients` has `tensors` pointers, each to as many elements as the
/// tensor has, set, that nobody else uses meanwhile; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_average(
    exchange: *mut brv_exchange,
    gradients: *const *mut f32,
    tensors: usize,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    let average = |options: &Options| unsafe { average(exchange, gradients, tensors, options) };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, average) }
}

/// Averages gradients of any type.
///
/// # Safety
/// As for [`brv_exchange_average`].
pub(crate) unsafe fn average<E: OfGradients>(
    exchange: *mut brv_exchange,
    gradients: *const *mut E,
    tensors: usize,
    options: &Options,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live exchange.
    let mut plan = unsafe { plan_of(exchange) }?;
    // SAFETY: the caller of this function guarantees the pointers, and set memory that nobody else uses.
    let mut slices = unsafe { plan.slices(gradients, tensors) }?;
    options.average(plan.exchange()?, &mut slices)
}

/// Changes the density of a sparse tensor.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `name` is NULL, or text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_set_density(
    exchange: *mut brv_exchange,
    name: *const c_char,
    density: f64,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees text.
        let name = unsafe { text(name, "name") }?;
        plan.exchange()?.set_density(name, density)?;
        plan.tensors.iter_mut().filter(|tensor| tensor.name == name).for_each(|tensor| {
            tensor.density = Some(density);
        });
        Ok(())
    })
}

/// Copies the residual of a tensor to `out`.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `name` is NULL, or text that ends with a zero; `out` has `n`
/// elements that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_residual(
    exchange: *mut brv_exchange,
    name: *const c_char,
    out: *mut f32,
    n: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees text.
        let name = unsafe { text(name, "name") }?;
        let out = Stretch::new(out.cast_const(), n, "out")?;
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { copy_residual(plan.exchange()?, name, out) }
    })
}

/// Locks the exchange behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
pub(crate) unsafe fn plan_of<'a>(exchange: *const brv_exchange) -> Result<MutexGuard<'a, Plan>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    match unsafe { object(exchange, "exchange") }?.0.try_lock() {
        Ok(mut plan) => plan.come_back().map(|()| plan),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::argument("exchange is in use by another thread: wait for it"))
        }
        Err(TryLockError::Poisoned(_)) => {
            Err(Failure::panic(&"the exchange was left unfinished by an earlier defect"))
        }
    }
}

/// The text behind a pointer of this name.
///
/// # Safety
/// `text` is NULL, or ends with a zero and is not written during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(text, name)?;
    // SAFETY: not NULL, as just checked; the caller of this function guarantees the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is {text:?}, expected UTF-8")))
}

impl Plan {
    /// The memory of each tensor's gradient, apart from each other.
    ///
    /// # Safety
    /// `gradients` has `tensors` pointers that nobody writes.
    pub(crate) unsafe fn gradients<E: OfGradients>(
        &self,
        gradients: *const *mut E,
        tensors: usize,
    ) -> Result<Vec<Stretch<E>>, Failure> {
        let expected = self.tensors.len();
        if tensors != expected {
            return Err(Failure::argument(format!(
                "tensors is {tensors}, expected {expected}: one gradient for each"
            )));
        }
        // SAFETY: the caller of this function guarantees as many pointers.
        let pointers = unsafe { Stretch::new(gradients, tensors, "gradients")?.read() };
        let stretches = self.tensors.iter().zip(pointers).map(|(tensor, &start)| {
            Stretch::new(start.cast_const(), tensor.count, &format!("the gradient of {:?}", tensor.name))
        });
        let stretches: Vec<Stretch<E>> = stretches.collect::<Result<_, _>>()?;
        Stretch::check_all_apart(&stretches, "two gradients")?;
        Ok(stretches)
    }

    /// Notes that the exchange has gone on in another group.
    pub(crate) fn move_to(&mut self, group: Arc<Shared>) {
        self.group = group;
        if let Some(exchange) = &self.exchange {
            self.number = exchange.number();
            // Those of another rank, if that has shared its state.
            for tensor in &mut self.tensors {
                tensor.density = exchange.density(&tensor.name);
            }
        }
    }

    /// Each tensor's gradient, to be read and written.
    ///
    /// # Safety
    /// `gradients` has `tensors` pointers that nobody writes, each to as many elements as the tensor has,
    /// set, that nobody else uses during `'a`.
    pub(crate) unsafe fn slices<'a, E: OfGradients>(
        &self,
        gradients: *const *mut E,
        tensors: usize,
    ) -> Result<Vec<&'a mut [E]>, Failure> {
        // SAFETY: the caller of this function guarantees the pointers.
        let stretches = unsafe { self.gradients(gradients, tensors) }?;
        // SAFETY: the caller of this function guarantees set memory that nobody else uses; the stretches are
        // apart, as just checked.
        Ok(stretches.into_iter().map(|stretch| unsafe { stretch.write() }).collect())
    }

    /// Refuses gradients of another type than those that were handed in of this step.
    pub(crate) fn check_type<E: OfGradients>(&self) -> Result<(), Failure> {
        let is_in_step = self.exchange.as_ref().is_some_and(GradientExchange::is_in_step);
        match self.step_type {
            Some(expected) if is_in_step && expected != E::NAME => {
                let found = E::NAME;
                Err(Failure::argument(format!(
                    "type is {found}, expected {expected}: that of the gradients that this step has"
                )))
            }
            _ => Ok(()),
        }
    }

    /// What was chosen for a tensor, if that has an automatic policy.
    pub(crate) fn tell_choice(&mut self, name: &str) -> Result<Option<&Told>, Failure> {
        let told = self.exchange()?.choice(name)?.map(Told::of);
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        Ok(tensor.and_then(|tensor| {
            tensor.told = told;
            tensor.told.as_ref()
        }))
    }

    /// Takes the exchange back from a started call that has ended.
    fn come_back(&mut self) -> Result<(), Failure> {
        if let Some(away) = &self.away {
            self.exchange = Some(away.come_back("exchange")?);
            self.away = None;
        }
        Ok(())
    }

    /// Sends the exchange away with a call.
    pub(crate) fn send_away(
        &mut self,
        start: impl FnOnce(GradientExchange) -> Sent,
    ) -> Result<&Away, Failure> {
        self.exchange()?;
        let Some(exchange) = self.exchange.take() else {
            return Err(Failure::argument("exchange has no tensors"));
        };
        match start(exchange) {
            Ok(away) => Ok(self.away.insert(away)),
            Err(refused) => {
                let (exchange, failure) = *refused;
                self.exchange = exchange;
                Err(failure)
            }
        }
    }

    pub(crate) fn add(&mut self, name: &str, shape: &[usize], policy: Policy) -> Result<(), Failure> {
        self.check_unused(&format!("add tensor {name:?}"))?;
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(Failure::argument(format!(
                "there are two tensors named {name:?}: give each its own name"
            )));
        }
        let count = policy.check(name, shape)?;
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(Tensor { name, shape, count, policy, density: None, told: None });
        Ok(())
    }

    pub(crate) fn set_bucket_bytes(&mut self, bytes: usize) -> Result<(), Failure> {
        self.check_unused("set the bytes of its buckets")?;
        self.bucket_bytes = Some(bytes);
        Ok(())
    }

    pub(crate) fn average_over_participants(&mut self) -> Result<(), Failure> {
        self.check_unused("choose over what it averages")?;
        self.over_participants = true;
        Ok(())
    }

    pub(crate) fn keep_going(&mut self) -> Result<(), Failure> {
        self.check_unused("let it keep going")?;
        self.keeps_going = true;
        Ok(())
    }

    pub(crate) fn set_schedule(&mut self, schedule: Schedule, steps_in_period: u64) -> Result<(), Failure> {
        self.check_unused("set its schedule")?;
        self.schedule = Some((schedule, steps_in_period));
        Ok(())
    }

    pub(crate) fn set_seed(&mut self, seed: u64) -> Result<(), Failure> {
        self.check_unused("set its seed")?;
        self.seed = Some(seed);
        Ok(())
    }

    fn check_unused(&self, what: &str) -> Result<(), Failure> {
        if self.exchange.is_none() {
            return Ok(());
        }
        Err(Failure::argument(format!("exchange is in use: {what} before the first call with it")))
    }

    /// Refuses what makes no sense in the middle of a step.
    pub(crate) fn check_no_step(&self) -> Result<(), Failure> {
        if self.exchange.as_ref().is_some_and(GradientExchange::is_in_step) {
            return Err(Failure::argument(
                "exchange is in the middle of a step: call brv_exchange_finish before",
            ));
        }
        Ok(())
    }

    /// The exchange. The first call builds it.
    pub(crate) fn exchange(&mut self) -> Result<&mut GradientExchange, Failure> {
        let exchange = match self.exchange.take() {
            Some(exchange) => exchange,
            None => self.build()?,
        };
        Ok(self.exchange.insert(exchange))
    }

    /// A new exchange of the tensors, for the place of the current one.
    pub(crate) fn build(&mut self) -> Result<GradientExchange, Failure> {
        let group = &self.group.group;
        let mut builder = GradientExchange::builder(group).number(self.number);
        if let Some(bytes) = self.bucket_bytes {
            builder = builder.bucket_bytes(bytes);
        }
        if self.over_participants {
            builder = builder.average_over_participants();
        }
        if self.keeps_going {
            builder = builder.keep_going();
        }
        if let Some((schedule, steps_in_period)) = &self.schedule {
            builder = builder.schedule(schedule.clone(), *steps_in_period);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        for tensor in &self.tensors {
            builder = builder.tensor(&tensor.name, &tensor.shape, tensor.policy);
        }
        let mut exchange = builder.build()?;
        for tensor in &self.tensors {
            // One of an automatic policy may have been chosen otherwise.
            if let (Some(density), Some(_)) = (tensor.density, exchange.density(&tensor.name)) {
                exchange.set_density(&tensor.name, density)?;
            }
        }
        Ok(exchange)
    }
}
