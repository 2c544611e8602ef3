//! The forms of the collectives on dense vectors: blocking and started, in place and from one vector to
//! another.

use bytemuck::Pod;

use super::Group;
use crate::buffers::Buffers;
use crate::data::{Element, Reduction};
use crate::dense::{
    AllGather, AllReduce, AllToAll, Broadcast, Collective, Gather, Lengths, Reduce, ReduceScatter, Scatter,
};
use crate::engine::Handle;
use crate::error::Result;

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

/// A form of a collective on dense vectors, by the names of its methods: other front ends are compared with
/// them.
pub struct Form {
    /// That which blocks.
    pub name: &'static str,
    /// That which starts a call.
    pub start: &'static str,
    /// Whether the input is where the output will be.
    pub is_in_place: bool,
}

/// All of them but the barrier, which has no vectors.
pub const FORMS: [&[Form]; 4] = [REDUCTIONS_IN_PLACE, REDUCTIONS, MOVES_IN_PLACE, MOVES];

/// The first line of a started form.
macro_rules! started {
    ($text:literal, $name:ident) => {
        concat!("Starts ", $text, ": [`", stringify!($name), "`](Self::", stringify!($name), ").")
    };
}

/// Forms with an input and an output: the blocking one, and the one that is started.
macro_rules! apart {
    ($list:ident, T: $element:ident; $(
        $(#[$doc:meta])*
        $name:ident, $start:ident, $text:literal ($($argument:ident: $type:ty),*) = $make:expr;
    )*) => {
        const $list: &[Form] = &[
            $(Form { name: stringify!($name), start: stringify!($start), is_in_place: false }),*
        ];

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
    ($list:ident, T: $element:ident; $(
        $(#[$doc:meta])*
        $name:ident, $start:ident, $text:literal ($($argument:ident: $type:ty),*) = $make:expr;
    )*) => {
        const $list: &[Form] = &[
            $(Form { name: stringify!($name), start: stringify!($start), is_in_place: true }),*
        ];

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
    REDUCTIONS_IN_PLACE, T: Pod;

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
    REDUCTIONS, T: Pod;

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
    MOVES_IN_PLACE, T: Element;

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
    MOVES, T: Element;

    /// Copies `input` of rank `root` to `output` of all ranks, of equal length. The input of other ranks is
    /// not looked at, and may be empty. [`broadcast`](Self::broadcast) does so in place, without the root's
    /// copy.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NoSuchRoot`](crate::Error::NoSuchRoot);
    /// [`Error::Length`](crate::Error::Length) unless the root's `input` is as long as its `output`.
    broadcast_to, start_broadcast_to, "a broadcast" (root: u32) = made(Broadcast::new::<T>(root));

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
