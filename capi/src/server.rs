//! Asynchronous training against a sharded parameter server.

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use brevity::ParameterServer;
use brevity::server::{Served, ServerBuilder};

use crate::boundary::{check, guard, guard_value, hand_out, object};
use crate::callback::drop_elsewhere;
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of};
use crate::memory::Stretch;
use crate::options::{Options, brv_options, waiting_call};
use crate::server_config::{self, brv_server_config};
use crate::server_started::{Away, Sent};
use crate::server_state::{brv_server_step, check_step, write_step};
use crate::status::brv_status;

/// A server, or what it is to be built from. The mutex turns use by two threads at once into an error.
pub struct brv_server(Mutex<Serving>);

pub(crate) struct Serving {
    pub(crate) shared: Arc<Shared>,
    /// The number of elements of each tensor.
    counts: Vec<usize>,
    names: Vec<String>,
    pub(crate) state: State,
}

pub(crate) enum State {
    Building(Box<ServerBuilder>),
    Begun(Box<ParameterServer>),
    /// A started call has it.
    Away(Away),
    /// It has left, with what its shard has done.
    Ended(Option<Served>),
}

/// Makes a server without tensors.
///
/// # Safety
/// `group` is NULL or a live group; `config` is as for `server_config::read`; `server` is NULL, or may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_new(
    group: *mut brv_group,
    config: *const brv_server_config,
    server: *mut *mut brv_server,
) -> brv_status {
    let make = || {
        // SAFETY: the caller in C guarantees a live group.
        let shared = Arc::clone(unsafe { group_of(group) }?.shared());
        // SAFETY: the caller in C guarantees a config.
        let state = State::Building(Box::new(unsafe { server_config::read(config) }?.builder(&shared)?));
        Ok(Some(brv_server(Mutex::new(Serving { shared, counts: Vec::new(), names: Vec::new(), state }))))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(server, "server", make) })
}

/// Frees a server: it ends for this rank. Does nothing for NULL.
///
/// # Safety
/// `server` is NULL or a live server that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_free(server: *mut brv_server) {
    if server.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the handle was made by `Box::into_raw` in `hand_out`, and the caller in C gives it up.
        let server = unsafe { Box::from_raw(server) };
        // It waits for its threads, one of which may be in this callback.
        drop_elsewhere(server);
        Ok(())
    });
}

/// Adds a tensor.
///
/// # Safety
/// `server` is NULL or a live server; `name` is NULL, or text that ends with a zero; `shape` has `dimensions`
/// numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_add(
    server: *mut brv_server,
    name: *const c_char,
    shape: *const usize,
    dimensions: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        check(name, "name")?;
        // SAFETY: not NULL, as just checked; the caller in C guarantees text.
        let name = unsafe { CStr::from_ptr(name) };
        let wrong = |_| Failure::argument(format!("name is {name:?}, expected UTF-8"));
        let name = name.to_str().map_err(wrong)?.to_owned();
        // SAFETY: the caller in C guarantees as many numbers, which nobody writes.
        let shape = unsafe { Stretch::new(shape, dimensions, "shape")?.read() };
        if serving.names.contains(&name) {
            return Err(brevity::Error::DuplicateName { tensor: name }.into());
        }
        let count = brevity::Policy::dense().check(&name, shape)?;
        serving.change(|builder| Ok(builder.tensor(&name, shape)))?;
        serving.counts.push(count);
        serving.names.push(name);
        Ok(())
    })
}

/// Makes the server on all ranks, and begins to serve.
///
/// # Safety
/// `server` is NULL or a live server; `parameters` has `tensors` pointers, each to as many elements as the
/// tensor has, set, that nobody writes meanwhile; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_begin(
    server: *mut brv_server,
    parameters: *const *const f32,
    tensors: usize,
    options: *const brv_options,
) -> brv_status {
    let begin = |options: &Options| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        // SAFETY: the caller in C guarantees the pointers.
        let stretches = unsafe { serving.stretches(parameters, tensors, "parameters") }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let slices: Vec<&[f32]> = stretches.into_iter().map(|stretch| unsafe { stretch.read() }).collect();
        let State::Building(builder) = &serving.state else {
            return Err(Failure::argument("server has begun already: make another"));
        };
        // The one that is kept is for another try, after a call that was refused.
        let mut builder = builder.as_ref().clone();
        if let Some(timeout) = options.timeout() {
            builder = builder.timeout(timeout);
        }
        serving.state = State::Begun(Box::new(builder.build(&slices)?));
        Ok(())
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, begin) }
}

/// Whether this rank is a worker.
///
/// # Safety
/// `server` is NULL or a live server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_is_worker(server: *const brv_server) -> i32 {
    // SAFETY: the caller in C guarantees a live server.
    guard_value(-1, || Ok(i32::from(unsafe { serving_of(server) }?.begun()?.is_worker())))
}

/// Replaces the parameters by the model.
///
/// # Safety
/// `server` is NULL or a live server; `parameters` has `tensors` pointers, each to as many elements as the
/// tensor has, that nobody else uses meanwhile; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_fetch(
    server: *mut brv_server,
    parameters: *const *mut f32,
    tensors: usize,
    options: *const brv_options,
) -> brv_status {
    let fetch = |options: &Options| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        // SAFETY: the caller in C guarantees the pointers, and memory that nobody else uses.
        let mut slices = unsafe { serving.places(parameters, tensors) }?;
        Ok(serving.timed(options)?.fetch(&mut slices)?)
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, fetch) }
}

/// Pushes gradients, and adds the answers to the parameters.
///
/// # Safety
/// As for [`brv_server_push`] and [`brv_server_pull`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_take_step(
    server: *mut brv_server,
    gradients: *const *const f32,
    rate: f64,
    parameters: *const *mut f32,
    tensors: usize,
    step: *mut brv_server_step,
    options: *const brv_options,
) -> brv_status {
    let run = |options: &Options| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        // SAFETY: the caller in C guarantees the pointers.
        unsafe { serving.check_apart(gradients, parameters, tensors) }?;
        // SAFETY: the caller in C guarantees the pointers, and set memory that nobody writes.
        let gradients = unsafe { serving.slices(gradients, tensors) }?;
        // SAFETY: the caller in C guarantees the pointers, and memory that nobody else uses.
        let mut parameters = unsafe { serving.places(parameters, tensors) }?;
        // SAFETY: the caller in C guarantees the memory of `step`.
        unsafe { check_step(step) }?;
        let taken = serving.timed(options)?.step(&gradients, rate as f32, &mut parameters)?;
        // SAFETY: the caller in C guarantees the memory of `step`.
        unsafe { write_step(step, taken) };
        Ok(())
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, run) }
}

/// Pushes gradients, without waiting.
///
/// # Safety
/// `server` is NULL or a live server; `gradients` has `tensors` pointers, each to as many elements as the
/// tensor has, set, that nobody writes meanwhile; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_push(
    server: *mut brv_server,
    gradients: *const *const f32,
    rate: f64,
    tensors: usize,
    options: *const brv_options,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees options.
        let options = unsafe { Options::read(options) }?;
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        // SAFETY: the caller in C guarantees the pointers, and set memory that nobody writes.
        let gradients = unsafe { serving.slices(gradients, tensors) }?;
        serving.begun()?.push(&gradients, rate as f32).map_err(|error| options.explain(error))
    })
}

/// Waits for the answers, and adds them to the parameters.
///
/// # Safety
/// `server` is NULL or a live server; `parameters` has `tensors` pointers, each to as many elements as the
/// tensor has, set, that nobody else uses meanwhile; `step` is NULL, or may be written and holds its size;
/// `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_pull(
    server: *mut brv_server,
    parameters: *const *mut f32,
    tensors: usize,
    step: *mut brv_server_step,
    options: *const brv_options,
) -> brv_status {
    let pull = |options: &Options| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        // SAFETY: the caller in C guarantees the pointers, and memory that nobody else uses.
        let mut parameters = unsafe { serving.places(parameters, tensors) }?;
        // SAFETY: the caller in C guarantees the memory of `step`.
        unsafe { check_step(step) }?;
        let taken = serving.timed(options)?.pull(&mut parameters)?;
        // SAFETY: the caller in C guarantees the memory of `step`.
        unsafe { write_step(step, taken) };
        Ok(())
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, pull) }
}

/// Changes the density of pushes.
///
/// # Safety
/// `server` is NULL or a live server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_set_density(server: *mut brv_server, density: f64) -> brv_status {
    // SAFETY: the caller in C guarantees a live server.
    guard(|| Ok(unsafe { serving_of(server) }?.begun()?.set_density(density)?))
}

/// Locks the server behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
pub(crate) unsafe fn serving_of<'a>(server: *const brv_server) -> Result<MutexGuard<'a, Serving>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    match unsafe { object(server, "server") }?.0.try_lock() {
        Ok(serving) => Ok(serving),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::argument("server is in use by another thread: wait for it"))
        }
        Err(TryLockError::Poisoned(_)) => {
            Err(Failure::panic(&"the server was left unfinished by an earlier defect"))
        }
    }
}

impl Serving {
    /// Changes what the server will be built from; as it was if that fails.
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce(ServerBuilder) -> Result<ServerBuilder, Failure>,
    ) -> Result<(), Failure> {
        let State::Building(builder) = &mut self.state else {
            return Err(Failure::argument("server has begun already: add tensors and states before"));
        };
        **builder = change(builder.as_ref().clone())?;
        Ok(())
    }

    pub(crate) fn begun(&mut self) -> Result<&mut ParameterServer, Failure> {
        if let State::Away(away) = &self.state {
            self.state = State::Begun(away.come_back()?);
        }
        match &mut self.state {
            State::Begun(server) => Ok(server),
            State::Building(_) => Err(Failure::argument("server has not begun: call brv_server_begin first")),
            State::Ended(_) | State::Away(_) => Err(Failure::argument("server has ended: make another")),
        }
    }

    /// Lets a call that is started have the server.
    pub(crate) fn send_away(
        &mut self,
        start: impl FnOnce(Box<ParameterServer>) -> Sent,
    ) -> Result<&Away, Failure> {
        self.begun()?;
        match std::mem::replace(&mut self.state, State::Ended(None)) {
            State::Begun(server) => match start(server) {
                Ok(away) => self.state = State::Away(away),
                Err((server, failure)) => {
                    self.state = server.map_or(State::Ended(None), State::Begun);
                    return Err(failure);
                }
            },
            other => self.state = other,
        }
        match &self.state {
            State::Away(away) => Ok(away),
            _ => Err(Failure::argument("server has ended: make another")),
        }
    }

    /// What the shard of this rank has done, also after it has left; `None` if it does not serve.
    pub(crate) fn served(&mut self) -> Result<Option<Served>, Failure> {
        match &self.state {
            State::Ended(Some(served)) => Ok(Some(*served)),
            _ => Ok(self.begun()?.served()),
        }
    }

    /// The server, with the timeout of a call.
    pub(crate) fn timed(&mut self, options: &Options) -> Result<&mut ParameterServer, Failure> {
        let timeout = options.on(&self.shared.group).timeout();
        let server = self.begun()?;
        server.set_timeout(timeout);
        Ok(server)
    }

    /// The memory of each tensor.
    ///
    /// # Safety
    /// `pointers` has `tensors` pointers that nobody writes.
    pub(crate) unsafe fn stretches(
        &self,
        pointers: *const *const f32,
        tensors: usize,
        name: &str,
    ) -> Result<Vec<Stretch<f32>>, Failure> {
        let expected = self.counts.len();
        if tensors != expected {
            return Err(Failure::argument(format!(
                "tensors is {tensors}, expected {expected}: a pointer for each"
            )));
        }
        // SAFETY: the caller of this function guarantees as many pointers.
        let pointers = unsafe { Stretch::new(pointers, tensors, name)?.read() };
        let each = self.counts.iter().zip(&self.names).zip(pointers);
        each.map(|((&count, tensor), &start)| Stretch::new(start, count, &format!("{name} of {tensor:?}")))
            .collect()
    }

    /// The gradients of each tensor.
    ///
    /// # Safety
    /// As for [`stretches`](Self::stretches), and the elements are set, and nobody writes them during `'a`.
    pub(crate) unsafe fn slices<'a>(
        &self,
        pointers: *const *const f32,
        tensors: usize,
    ) -> Result<Vec<&'a [f32]>, Failure> {
        // SAFETY: the caller of this function guarantees both.
        let stretches = unsafe { self.stretches(pointers, tensors, "the gradient") }?;
        // SAFETY: likewise.
        Ok(stretches.into_iter().map(|stretch| unsafe { stretch.read() }).collect())
    }

    /// Refuses gradients that overlap with parameters.
    ///
    /// # Safety
    /// As for [`stretches`](Self::stretches), twice.
    unsafe fn check_apart(
        &self,
        gradients: *const *const f32,
        parameters: *const *mut f32,
        tensors: usize,
    ) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the pointers.
        let gradients = unsafe { self.stretches(gradients, tensors, "the gradient") }?;
        // SAFETY: likewise.
        let parameters = unsafe { self.stretches(parameters.cast(), tensors, "the parameters") }?;
        Stretch::check_all_apart(&parameters, "the parameters of two tensors")?;
        Stretch::check_from_others(&gradients, &parameters, "gradients and parameters")
    }

    /// The parameters of each tensor.
    ///
    /// # Safety
    /// As for [`stretches`](Self::stretches), and the elements are set, and nobody else uses them during
    /// `'a`.
    unsafe fn places<'a>(
        &self,
        pointers: *const *mut f32,
        tensors: usize,
    ) -> Result<Vec<&'a mut [f32]>, Failure> {
        // SAFETY: the caller of this function guarantees both.
        let stretches = unsafe { self.stretches(pointers.cast(), tensors, "the parameters") }?;
        Stretch::check_all_apart(&stretches, "the parameters of two tensors")?;
        // SAFETY: likewise; they are apart, as just checked.
        Ok(stretches.into_iter().map(|stretch| unsafe { stretch.write() }).collect())
    }
}
