//! What an object of C has, and the started call that replaces it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::callback::drop_elsewhere;
use crate::failure::Failure;
use crate::request::Call;

/// A value, and the call that replaces it if it succeeds.
#[derive(Default)]
pub(super) struct Held<T> {
    pub(super) value: T,
    coming: Option<Coming<T>>,
}

/// What a started call puts into an object.
struct Coming<T> {
    /// Kept also when its request is freed: the value still comes.
    call: Arc<Call>,
    place: Place<T>,
}

/// Where a started call leaves its result.
pub(super) struct Place<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Place<T> {
    /// Leaves a result.
    pub(super) fn set(&self, value: T) {
        *self.lock() = Some(value);
    }

    /// Takes what was left.
    pub(super) fn take(&self) -> Option<T> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Held<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { value, coming: None }
    }

    /// Locks an object for a call. `remedy` is for one that another call has locked.
    pub(super) fn lock<'a>(
        object: &'a Mutex<Self>,
        name: &str,
        remedy: &str,
    ) -> Result<MutexGuard<'a, Self>, Failure> {
        match object.try_lock() {
            Ok(mut held) => held.settle(name).map(|()| held),
            Err(TryLockError::WouldBlock) => Err(Failure::argument(format!("{name} is in use by {remedy}"))),
            Err(TryLockError::Poisoned(_)) => {
                Err(Failure::panic(&format!("{name} was left unfinished by an earlier defect")))
            }
        }
    }

    /// Takes what a started call has left, if it has ended.
    fn settle(&mut self, name: &str) -> Result<(), Failure> {
        let Some(coming) = &self.coming else { return Ok(()) };
        if !coming.call.settle() {
            return Err(Failure::argument(format!(
                "{name} is in use by a call that was started: wait for its request"
            )));
        }
        if let Some(value) = coming.place.take() {
            self.value = value;
        }
        if let Some(coming) = self.coming.take() {
            drop_elsewhere(coming);
        }
        Ok(())
    }

    /// Leaves the object to a started call, which puts its result into the place.
    pub(super) fn await_call(&mut self, call: &Arc<Call>, place: Place<T>) {
        self.coming = Some(Coming { call: Arc::clone(call), place });
    }

    /// Drops an object that its program has freed.
    pub(super) fn end(object: Mutex<Self>) {
        if let Some(coming) = object.into_inner().unwrap_or_else(PoisonError::into_inner).coming {
            drop_elsewhere(coming);
        }
    }
}
