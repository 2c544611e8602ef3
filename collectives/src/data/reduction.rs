//! Reductions of elements of a type, as callers name them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use super::{DataType, Element, ReduceOp, Reducer, UserReduction};
use crate::error::Result;

/// How vectors of `T` are reduced: an operation of the library, or a function of the program.
///
/// Calls that reduce take whatever becomes one: a [`ReduceOp`] if `T` is an [`Element`], or a reference to a
/// [reduction of the program](Self::new), which is made once and used in many calls.
///
/// # A reduction of the program
/// The function combines two vectors elementwise: `combine(into, from)` makes `into[i] = into[i] op from[i]`.
/// `T` may be any plain type, as a `#[repr(C)]` struct of numbers. The operation must be associative and
/// commutative, up to rounding: a call combines partial results of any ranks. It does so in the order of
/// [`order`](super::order), which depends on the number of ranks only, or in any order under
/// [`Settings::any_order`](crate::Settings::any_order). So all ranks have the same bits if `a op b` and
/// `b op a` do.
///
/// All ranks pass the same function under the same name. Names are compared, and so are the sizes of
/// elements: a call with others is [`Error::Mismatch`](crate::Error::Mismatch). Functions are not.
///
/// A call uses the function for any part of a vector, several times, on any thread, and in that thread's
/// floating-point mode. If the function returns an `Err`, the call ends with
/// [`Error::User`](crate::Error::User), which has the name and the status. A panic goes on through the
/// blocking call, or through the wait for the one that was started. Both close the group, so the calls of
/// other ranks end with [`Error::Aborted`](crate::Error::Aborted), which names the rank. A rank that needs
/// nothing more from others may have its result by then.
///
/// ```
/// use brevity_collectives::data::Reduction;
/// use brevity_collectives::{Group, ReduceOp};
/// use bytemuck::{Pod, Zeroable};
///
/// /// A loss, and the number of the batch that has it.
/// #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
/// #[repr(C)]
/// struct Loss {
///     value: f32,
///     batch: u32,
/// }
///
/// // The lowest, of equal ones that of the first batch.
/// let lowest = Reduction::new("lowest loss", |into: &mut [Loss], from: &[Loss]| {
///     for (into, from) in into.iter_mut().zip(from) {
///         if from.value.is_nan() {
///             return Err(1);
///         }
///         if (from.value, from.batch) < (into.value, into.batch) {
///             *into = *from;
///         }
///     }
///     Ok(())
/// });
///
/// # let group = Group::solo();
/// let mut losses = [Loss { value: 0.5, batch: group.rank() }];
/// group.all_reduce(&mut losses, &lowest)?;
/// assert_eq!(losses, [Loss { value: 0.5, batch: 0 }]);
///
/// let mut batches = [1u64];
/// group.all_reduce(&mut batches, ReduceOp::Sum)?;
/// # Ok::<(), brevity_collectives::Error>(())
/// ```
pub struct Reduction<T> {
    /// The error is that `T` has no such operation.
    reducer: Result<Reducer>,
    elements: PhantomData<fn(&mut [T])>,
}

impl<T: Pod> Reduction<T> {
    /// A reduction of the program: see [above](Self#a-reduction-of-the-program).
    ///
    /// `combine` gets two slices of equal length, which is not 0. It returns `Err` with a status of the
    /// program's choice if it can't combine them. A `T` without bytes, or one with an alignment of more than
    /// 64, does not compile.
    pub fn new(
        name: impl Into<String>,
        combine: impl Fn(&mut [T], &[T]) -> std::result::Result<(), i32> + Send + Sync + 'static,
    ) -> Self {
        const {
            assert!(size_of::<T>() > 0, "elements of a reduction have no bytes");
            assert!(align_of::<T>() <= 64, "elements of a reduction have an alignment of more than 64");
        }
        let combine = move |into: &mut [u8], from: &[u8]| {
            combine(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from))
        };
        let user = UserReduction::new(name, size_of::<T>(), combine);
        Self::of(Ok(Reducer::User(Arc::new(user), DataType::of::<T>().unwrap_or(DataType::Bytes))))
    }

    /// What algorithms need of it.
    ///
    /// # Errors
    /// [`Error::Reduction`](crate::Error::Reduction) for an operation of the library that `T` has not.
    pub fn reducer(self) -> Result<Reducer> {
        self.reducer
    }
}

impl<T> Reduction<T> {
    fn of(reducer: Result<Reducer>) -> Self {
        Self { reducer, elements: PhantomData }
    }
}

impl<T: Element> From<ReduceOp> for Reduction<T> {
    fn from(op: ReduceOp) -> Self {
        Self::of(Reducer::of(T::TYPE, op))
    }
}

impl<T> From<&Self> for Reduction<T> {
    fn from(reduction: &Self) -> Self {
        reduction.clone()
    }
}

impl<T> Clone for Reduction<T> {
    fn clone(&self) -> Self {
        Self::of(self.reducer.clone())
    }
}

impl<T> fmt::Debug for Reduction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reduction").field(&self.reducer).finish()
    }
}
