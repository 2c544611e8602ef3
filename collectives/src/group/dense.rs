//! The collectives of a group on dense vectors.

use bytemuck::Pod;

use super::Group;
use crate::buffers::{Buffers, Sizes};
use crate::call::Shared;
use crate::data::{Element, Reduction};
use crate::dense::{
    self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Collective, Gather, Lengths, Place, Reduce,
    ReduceScatter, Scatter,
};
use crate::description::{Description, Operation};
use crate::engine::Handle;
use crate::error::Result;
use crate::plan::Algorithm;

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
        if algorithm.is_none()
            && let Some(host) = self.host_for(collective, work.bytes)
        {
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
        let plan = self.context.ranks.plan();
        let wish = self.algorithm.or_else(|| plan.wishes.of(C::OPERATION));
        let Some(algorithm) = wish.filter(|_| place.world_size > 1) else {
            return Ok((description, None));
        };
        plan.check(C::OPERATION, C::ROWS, &collective.work(sizes, place), algorithm)?;
        Ok((description.with_detail(WISHED + algorithm as u64), Some(algorithm)))
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
        if algorithm.is_none()
            && let Some(host) = self.host_for(&collective, work.bytes)
        {
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
        if self.has_choice_of_barriers() {
            return self.call(&Barrier, Buffers::in_place::<u8>(&mut []));
        }
        self.check_process()?;
        self.run(Description::new(Operation::BARRIER, 0, 0), async |call| dense::barrier(call).await)
    }

    /// Whether a barrier is more than dissemination. It has no vectors, for which other algorithms are meant.
    fn has_choice_of_barriers(&self) -> bool {
        let is_meant = |wish| matches!(wish, Algorithm::Dissemination | Algorithm::Hosts);
        let is_by_hosts =
            self.context.ranks.plan().places.is_some() || self.algorithm == Some(Algorithm::Hosts);
        is_by_hosts && self.algorithm.is_none_or(is_meant)
    }

    /// Starts a [`barrier`](Self::barrier).
    pub fn start_barrier(&self) -> Handle<((), Result<()>)> {
        if self.has_choice_of_barriers() {
            return self.start_call(Ok(Barrier), (), |()| Buffers::in_place::<u8>(&mut []));
        }
        if let Err(error) = self.check_process() {
            return self.ended(((), Err(error)));
        }
        let description = Description::new(Operation::BARRIER, 0, 0);
        self.start(description, (), |call, ()| Box::pin(dense::barrier(call)))
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

fn lend_apart<'a, T: Pod, A: AsRef<[T]>, B: AsMut<[T]>>((input, output): &'a mut (A, B)) -> Buffers<'a> {
    let input: &'a A = input;
    Buffers::apart(input.as_ref(), output.as_mut())
}

fn lend_in_place<T: Pod, B: AsMut<[T]>>(data: &mut B) -> Buffers<'_> {
    Buffers::in_place(data.as_mut())
}

/// A collective that always fits its type.
fn made<C: Collective>(collective: C) -> Result<C> {
    Ok(collective)
}

/// The first line of a started form.
macro_rules! started {
    ($text:literal, $name:ident) => {
        concat!("Starts ", $text, ": [`", stringify!($name), "`](Self::", stringify!($name), ").")
    };
}

/// Forms with an input and an output: the blocking one, and the one that is started.
macro_rules! apart {
    (T: $element:ident; $(
        $(#[$doc:meta])*
        $name:ident, $start:ident, $text:literal ($($argument:ident: $type:ty),*) = $make:expr;
    )*) => {
        impl Group {
            $(
                $(#[$doc])*
                pub fn $name<T: $element>(
                    &self,
                    input: &[T],
                    output: &mut [T],
                    $($argument: $type),*
                ) -> Result<()> {
                    self.call(&$make?, Buffers::apart(input, output))
                }

                #[doc = started!($text, $name)]
                /// The handle returns input and output.
                pub fn $start<T, A, B>(
                    &self,
                    input: A,
                    output: B,
                    $($argument: $type),*
                ) -> Handle<((A, B), Result<()>)>
                where
                    T: $element,
                    A: AsRef<[T]> + Send + 'static,
                    B: AsMut<[T]> + Send + 'static,
                {
                    self.start_call($make, (input, output), lend_apart::<T, A, B>)
                }
            )*
        }
    };
}

/// Forms in place.
macro_rules! in_place {
    (T: $element:ident; $(
        $(#[$doc:meta])*
        $name:ident, $start:ident, $text:literal ($($argument:ident: $type:ty),*) = $make:expr;
    )*) => {
        impl Group {
            $(
                $(#[$doc])*
                pub fn $name<T: $element>(&self, data: &mut [T], $($argument: $type),*) -> Result<()> {
                    self.call(&$make?, Buffers::in_place(data))
                }

                #[doc = started!($text, $name)]
                /// The handle returns the data.
                pub fn $start<T, B>(&self, data: B, $($argument: $type),*) -> Handle<(B, Result<()>)>
                where
                    T: $element,
                    B: AsMut<[T]> + Send + 'static,
                {
                    self.start_call($make, data, lend_in_place::<T, B>)
                }
            )*
        }
    };
}

in_place! {
    T: Pod;

    /// Reduces `data` over all ranks, in place, by a [`ReduceOp`](crate::ReduceOp) or by a function of the
    /// program: see [`Reduction`]. All ranks get the same bits, except for NaN payloads of sums.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier), and for lack of memory to receive into; `data` is then unspecified.
    /// [`Error::Reduction`](crate::Error::Reduction) for an operation that the type has not, before anything
    /// is done. [`Error::User`](crate::Error::User) if the function fails.
    ///
    /// # Panics
    /// If the function does.
    all_reduce, start_all_reduce, "an all-reduce" (reduction: impl Into<Reduction<T>>)
        = AllReduce::new::<T>(reduction);

    /// Reduces `data` of all ranks to rank `root`, in place. The data of other ranks is unspecified
    /// afterwards.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); [`Error::NoSuchRoot`](crate::Error::NoSuchRoot).
    reduce_in_place, start_reduce_in_place, "a reduction in place"
        (reduction: impl Into<Reduction<T>>, root: u32) = Reduce::new::<T>(reduction, root);

    /// Reduces `data` of all ranks, of `P` blocks of equal length: each rank gets its block, in its place.
    /// Other blocks are unspecified afterwards.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); [`Error::Length`](crate::Error::Length) if the length is no
    /// multiple of `P`.
    reduce_scatter_in_place, start_reduce_scatter_in_place, "a reduce-scatter in place"
        (reduction: impl Into<Reduction<T>>) = ReduceScatter::new::<T>(reduction, Lengths::Equal);

    /// Like [`reduce_scatter_in_place`](Self::reduce_scatter_in_place), with blocks of these lengths, which
    /// are equal on all ranks.
    ///
    /// # Errors
    /// As for [`reduce_scatter_v`](Self::reduce_scatter_v).
    reduce_scatter_v_in_place, start_reduce_scatter_v_in_place, "a reduce-scatter in place"
        (lengths: &[usize], reduction: impl Into<Reduction<T>>)
        = ReduceScatter::new::<T>(reduction, Lengths::each(lengths));
}

apart! {
    T: Pod;

    /// Like [`all_reduce`](Self::all_reduce), from `input` to `output` of equal length.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); [`Error::Length`](crate::Error::Length).
    all_reduce_to, start_all_reduce_to, "an all-reduce" (reduction: impl Into<Reduction<T>>)
        = AllReduce::new::<T>(reduction);

    /// Reduces `input` of all ranks to `output` of rank `root`, of equal length. Other ranks pass an empty
    /// output, or one that is not written.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); [`Error::NoSuchRoot`](crate::Error::NoSuchRoot);
    /// [`Error::Length`](crate::Error::Length).
    reduce, start_reduce, "a reduction" (reduction: impl Into<Reduction<T>>, root: u32)
        = Reduce::new::<T>(reduction, root);

    /// Reduces `input` of all ranks, of `P` blocks of equal length: each rank gets its block in `output`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); [`Error::Length`](crate::Error::Length) unless `input` is `P`
    /// times as long as `output`.
    reduce_scatter, start_reduce_scatter, "a reduce-scatter" (reduction: impl Into<Reduction<T>>)
        = ReduceScatter::new::<T>(reduction, Lengths::Equal);

    /// Like [`reduce_scatter`](Self::reduce_scatter), with blocks of these lengths, one for each rank. The
    /// lengths are equal on all ranks.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); [`Error::Length`](crate::Error::Length) for vectors of other
    /// lengths; [`Error::Mismatch`](crate::Error::Mismatch) if ranks have other lengths.
    reduce_scatter_v, start_reduce_scatter_v, "a reduce-scatter"
        (lengths: &[usize], reduction: impl Into<Reduction<T>>)
        = ReduceScatter::new::<T>(reduction, Lengths::each(lengths));
}

in_place! {
    T: Element;

    /// Copies `data` of rank `root` to all ranks. The lengths must be equal.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NoSuchRoot`](crate::Error::NoSuchRoot).
    broadcast, start_broadcast, "a broadcast" (root: u32) = made(Broadcast::new::<T>(root));

    /// Like [`all_gather`](Self::all_gather), without a copy: this rank's block is in its place in `data`,
    /// which has `P` blocks of equal length.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if the length is no
    /// multiple of `P`.
    all_gather_in_place, start_all_gather_in_place, "an all-gather in place" ()
        = made(AllGather::new::<T>(Lengths::Equal));

    /// Like [`all_gather_in_place`](Self::all_gather_in_place), with blocks of these lengths, which are equal
    /// on all ranks.
    ///
    /// # Errors
    /// As for [`all_gather_v`](Self::all_gather_v).
    all_gather_v_in_place, start_all_gather_v_in_place, "an all-gather in place" (lengths: &[usize])
        = made(AllGather::new::<T>(Lengths::each(lengths)));

    /// Like [`gather`](Self::gather): `data` of the root has the blocks of all ranks, its own in its place;
    /// that of others is their block.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    gather_in_place, start_gather_in_place, "a gather in place" (root: u32)
        = made(Gather::new::<T>(root, Lengths::Equal));

    /// Like [`gather_in_place`](Self::gather_in_place), with blocks of these lengths.
    ///
    /// # Errors
    /// As for [`gather_v`](Self::gather_v).
    gather_v_in_place, start_gather_v_in_place, "a gather in place" (lengths: &[usize], root: u32)
        = made(Gather::new::<T>(root, Lengths::each(lengths)));

    /// Like [`scatter`](Self::scatter): `data` of the root has the blocks of all ranks, and stays; that of
    /// others gets their block.
    ///
    /// # Errors
    /// As for [`scatter`](Self::scatter).
    scatter_in_place, start_scatter_in_place, "a scatter in place" (root: u32)
        = made(Scatter::new::<T>(root, Lengths::Equal));

    /// Like [`scatter_in_place`](Self::scatter_in_place), with blocks of these lengths.
    ///
    /// # Errors
    /// As for [`scatter_v`](Self::scatter_v).
    scatter_v_in_place, start_scatter_v_in_place, "a scatter in place" (lengths: &[usize], root: u32)
        = made(Scatter::new::<T>(root, Lengths::each(lengths)));

    /// Like [`all_to_all`](Self::all_to_all): each block is replaced by the one that comes from its rank.
    ///
    /// # Errors
    /// As for [`all_to_all`](Self::all_to_all).
    all_to_all_in_place, start_all_to_all_in_place, "an all-to-all in place" ()
        = made(AllToAll::new::<T>(Lengths::Equal, Lengths::Equal));

    /// Like [`all_to_all_in_place`](Self::all_to_all_in_place), with blocks of these lengths. Two ranks have
    /// blocks of equal length for each other.
    ///
    /// # Errors
    /// As for [`all_to_all_v`](Self::all_to_all_v).
    all_to_all_v_in_place, start_all_to_all_v_in_place, "an all-to-all in place" (lengths: &[usize])
        = made(AllToAll::new::<T>(Lengths::each(lengths), Lengths::each(lengths)));
}

apart! {
    T: Element;

    /// Gathers vectors of equal length: `output` gets rank 0's `input`, then rank 1's, and so on.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) unless `output` is `P`
    /// times as long as `input`.
    all_gather, start_all_gather, "an all-gather" () = made(AllGather::new::<T>(Lengths::Equal));

    /// Like [`all_gather`](Self::all_gather), with blocks of these lengths, one for each rank. The lengths
    /// are equal on all ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) for vectors of other
    /// lengths; [`Error::Mismatch`](crate::Error::Mismatch) if ranks have other lengths.
    all_gather_v, start_all_gather_v, "an all-gather" (lengths: &[usize])
        = made(AllGather::new::<T>(Lengths::each(lengths)));

    /// Gathers vectors of equal length at rank `root`: `output` gets rank 0's `input`, then rank 1's, and so
    /// on. The output of other ranks is not written, and may be empty.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NoSuchRoot`](crate::Error::NoSuchRoot);
    /// [`Error::Length`](crate::Error::Length) unless the root's `output` is `P` times as long as `input`.
    gather, start_gather, "a gather" (root: u32) = made(Gather::new::<T>(root, Lengths::Equal));

    /// Like [`gather`](Self::gather), with blocks of these lengths, one for each rank. Only those of the root
    /// count.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather); [`Error::Payload`](crate::Error::Payload) if a rank sends another
    /// length.
    gather_v, start_gather_v, "a gather" (lengths: &[usize], root: u32)
        = made(Gather::new::<T>(root, Lengths::each(lengths)));

    /// Gives each rank its block of `input` of rank `root`, which has `P` blocks of the length of `output`.
    /// The input of other ranks is not read, and may be empty.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    scatter, start_scatter, "a scatter" (root: u32) = made(Scatter::new::<T>(root, Lengths::Equal));

    /// Like [`scatter`](Self::scatter), with blocks of these lengths, one for each rank. Only those of the
    /// root count.
    ///
    /// # Errors
    /// As for [`gather_v`](Self::gather_v).
    scatter_v, start_scatter_v, "a scatter" (lengths: &[usize], root: u32)
        = made(Scatter::new::<T>(root, Lengths::each(lengths)));

    /// Sends block `i` of `input` to rank `i`; block `i` of `output` comes from it. Both have `P` blocks of
    /// equal length.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) if the lengths differ or
    /// are no multiple of `P`.
    all_to_all, start_all_to_all, "an all-to-all" ()
        = made(AllToAll::new::<T>(Lengths::Equal, Lengths::Equal));

    /// Like [`all_to_all`](Self::all_to_all), with blocks of these lengths, one for each rank: of those that
    /// this rank sends, and of those that it receives.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`](crate::Error::Length) for vectors of other
    /// lengths; [`Error::Payload`](crate::Error::Payload) if a rank sends another length.
    all_to_all_v, start_all_to_all_v, "an all-to-all" (sent: &[usize], received: &[usize])
        = made(AllToAll::new::<T>(Lengths::each(sent), Lengths::each(received)));
}
