//! How a group makes calls of collectives on dense vectors.

use super::Group;
use crate::buffers::{Buffers, Sizes};
use crate::call::Shared;
use crate::data::Element;
use crate::dense::{self, Barrier, Collective, Place, suits_slots};
use crate::description::{Description, Operation};
use crate::engine::Handle;
use crate::error::Result;
use crate::plan::{Algorithm, Row, Work};

impl Group {
    /// Makes a call of a collective on dense vectors.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier), and for lack of memory to receive into; the output is then
    /// unspecified. Those of the collective's [check](Collective::check), before anything is done.
    pub fn call<'env, C: Collective>(&self, collective: &C, memory: Buffers<'env>) -> Result<()> {
        self.check_process()?;
        let place = self.place();
        let (description, algorithm) = self.checked(collective, memory.sizes(), place)?;
        let work = collective.work(memory.sizes(), place);
        if let Some(host) = self.host_for(collective, &work, algorithm) {
            return self.run_on_host(host, description, collective, memory);
        }
        let levels = self.levels(collective, &work, algorithm);
        let body = async |call: &crate::Call<'_, 'env>| {
            call.run_checked(collective, memory.into(), levels.or(algorithm)).await.map(drop)
        };
        if levels.is_some() { self.run_in_order(description, body) } else { self.run(description, body) }
    }

    /// Checks the arguments of a call. Returns its description, and the algorithm that is wished for.
    fn checked<C: Collective>(
        &self,
        collective: &C,
        sizes: Sizes,
        place: Place,
    ) -> Result<(Description, Option<Algorithm>)> {
        collective.check(sizes, place)?;
        let description = collective.description(sizes, place);
        let Some(algorithm) = self.wish(C::OPERATION).filter(|_| place.world_size > 1) else {
            return Ok((description, None));
        };
        let work = (&collective.work(sizes, place), suits_slots(collective));
        self.check_algorithm(C::OPERATION, C::ROWS, work, algorithm)?;
        Ok((wished(description, algorithm), Some(algorithm)))
    }

    /// The algorithm that was chosen for an operation, if one was.
    pub(crate) fn wish(&self, operation: Operation) -> Option<Algorithm> {
        // A barrier has no vectors, for which other algorithms are meant.
        let is_meant = |algorithm: &Algorithm| {
            operation != Operation::BARRIER || Barrier::ROWS.iter().any(|row| row.algorithm == *algorithm)
        };
        let chosen = self.algorithm.filter(is_meant);
        chosen.or_else(|| self.context.ranks.plan().wishes.of(operation))
    }

    /// Refuses an algorithm that does not fit a work, which can go over slots, if there are any, or can't.
    pub(crate) fn check_algorithm(
        &self,
        operation: Operation,
        rows: &[Row],
        work: (&Work, bool),
        algorithm: Algorithm,
    ) -> Result<()> {
        self.context.ranks.plan().check(operation, rows, work, algorithm)
    }

    /// Starts a call of a collective on the memory that `lend` finds in `buffers`, which the handle returns.
    ///
    /// `collective` may be an error, with which the call ends at once. `lend` finds the same memory each
    /// time.
    pub fn start_call<C, B>(
        &self,
        collective: Result<C>,
        mut buffers: B,
        lend: impl for<'a> Fn(&'a mut B) -> Buffers<'a> + Send + 'static,
    ) -> Handle<(B, Result<()>)>
    where
        C: Collective,
        B: Send + 'static,
    {
        let place = self.place();
        let check = |collective: C| {
            let sizes = lend(&mut buffers).sizes();
            let (description, algorithm) = self.checked(&collective, sizes, place)?;
            let work = collective.work(sizes, place);
            Ok((collective, description, algorithm, work))
        };
        let checked = self.check_process().and(collective).and_then(check);
        let (collective, description, algorithm, work) = match checked {
            Ok(checked) => checked,
            Err(error) => return self.ended((buffers, Err(error))),
        };
        if let Some(host) = self.host_for(&collective, &work, algorithm) {
            return self.start_on_host(host, description, (collective, buffers), lend);
        }
        let levels = self.levels(&collective, &work, algorithm);
        let algorithm = levels.or(algorithm);
        let made = self.next_call(description, 0);
        let shared = Shared::new(levels.and_then(|_| self.inside(made.signature, 0)));
        self.start_body(made, shared, buffers, move |call, buffers| {
            Box::pin(
                async move { call.run_checked(&collective, lend(buffers).into(), algorithm).await.map(drop) },
            )
        })
    }

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    /// When a rank is lost, aborts, makes a different call, or does not call in time;
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn barrier(&self) -> Result<()> {
        self.call(&Barrier, Buffers::in_place::<u8>(&mut []))
    }

    /// Starts a [`barrier`](Self::barrier).
    pub fn start_barrier(&self) -> Handle<((), Result<()>)> {
        self.start_call(Ok(Barrier), (), |()| Buffers::in_place::<u8>(&mut []))
    }

    /// Gathers vectors of any lengths, in rank order, where no rank knows those of others.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn all_gather_varying<T: Element>(&self, own: Vec<T>) -> Result<Vec<Vec<T>>> {
        self.check_process()?;
        let description = Description::new(Operation::ALL_GATHER, T::TYPE.number(), 0);
        self.run(description, async |call| dense::all_gather_varying(call, own).await)
    }

    pub(super) fn place(&self) -> Place {
        Place { rank: self.rank(), world_size: self.world_size() }
    }
}

/// Mixed into the description of a call whose algorithm the caller has chosen.
const WISHED: u64 = 1 << 32;

/// The description of a call by an algorithm of the caller's choice.
pub(crate) fn wished(description: Description, algorithm: Algorithm) -> Description {
    description.with_detail(WISHED + algorithm as u64)
}
