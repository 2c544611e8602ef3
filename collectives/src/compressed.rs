//! How collectives on sparse vectors and matrices are called.

use std::future::Future;

use crate::call::Call;
use crate::description::{Description, Operation};
use crate::engine::Handle;
use crate::error::Result;
use crate::group::{Group, wished};
use crate::plan::{Algorithm, Row, Work};

/// A collective on what compression leaves of vectors, with its arguments: entries, or factors of matrices.
///
/// [`Group::call_compressed`] waits for it, [`Group::start_compressed`] does not. Inside the body of another
/// call, [`run`](Self::run) it in a part of that call ([`Call::part`]), or under its description
/// ([`Call::describe`]).
pub trait Compressed: Send {
    /// What every rank gets.
    type Output: Send;

    /// The operation.
    const OPERATION: Operation;

    /// The algorithms, with estimates. A caller may [choose](Group::with_algorithm) from several; if there is
    /// one alone, the choice is not heeded.
    const ROWS: &'static [Row] = &[];

    /// Whether a part of it goes over the memory that ranks of a host share, in its turn.
    const USES_SLOTS: bool = false;

    /// Refuses arguments that a call can't have. A rank that found this out later would leave the others
    /// waiting.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length).
    fn check(&self) -> Result<()>;

    /// What all ranks must agree on.
    fn description(&self) -> Description;

    /// What it has to do, for rows.
    fn work(&self) -> Work {
        Work::default()
    }

    /// Runs this rank's part, by one of the rows if `algorithm` names one. Poison of a rank is not looked at
    /// once nothing depends on it any more: the caller does so ([`Call::check_poison`]).
    ///
    /// # Errors
    /// Errors of the transport; [`Error::Payload`](crate::Error::Payload) for an invalid message of a peer;
    /// those of the collective.
    fn run(
        &mut self,
        call: &Call<'_, '_>,
        algorithm: Option<Algorithm>,
    ) -> impl Future<Output = Result<Self::Output>> + Send;
}

impl Group {
    /// Makes a collective call on sparse vectors or matrices, and waits until it has ended.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); those of the collective's [check](Compressed::check);
    /// [`Error::NonFinite`](crate::Error::NonFinite) on all ranks if a rank has poisoned the call.
    pub fn call_compressed<C: Compressed>(&self, collective: &mut C) -> Result<C::Output> {
        let (description, algorithm) = self.checked_compressed(collective)?;
        if C::USES_SLOTS {
            let run = async |call: &Call<'_, '_>| ended(call, collective.run(call, algorithm).await);
            return self.run_in_order(description, run);
        }
        self.run(description, async |call| ended(call, collective.run(call, algorithm).await))
    }

    /// Starts such a call. The handle returns the collective, and with it what it was given.
    pub fn start_compressed<C>(&self, collective: C) -> Handle<(C, Result<C::Output>)>
    where
        C: Compressed<Output: 'static> + 'static,
    {
        let (description, algorithm) = match self.checked_compressed(&collective) {
            Ok(checked) => checked,
            Err(error) => return self.ended((collective, Err(error))),
        };
        if C::USES_SLOTS {
            return self.start_in_order(description, collective, move |call, collective| {
                Box::pin(async move { ended(call, collective.run(call, algorithm).await) })
            });
        }
        self.start(description, collective, move |call, collective| {
            Box::pin(async move { ended(call, collective.run(call, algorithm).await) })
        })
    }

    fn checked_compressed<C: Compressed>(&self, collective: &C) -> Result<(Description, Option<Algorithm>)> {
        self.check_process()?;
        collective.check()?;
        let (description, wish) = (collective.description(), self.wish(C::OPERATION));
        let Some(algorithm) = wish.filter(|_| C::ROWS.len() > 1 && self.world_size() > 1) else {
            return Ok((description, None));
        };
        self.check_algorithm(C::OPERATION, C::ROWS, (&collective.work(), false), algorithm)?;
        Ok((wished(description, algorithm), Some(algorithm)))
    }
}

fn ended<O>(call: &Call<'_, '_>, outcome: Result<O>) -> Result<O> {
    let output = outcome?;
    call.check_poison().map(|()| output)
}
