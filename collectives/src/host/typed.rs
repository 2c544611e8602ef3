//! Collectives on vectors of one type.

use std::ops::ControlFlow;

use super::turn::SlotTurn;
use super::{
    Blocks, Rest, all_gather as all_gather_of, all_reduce as all_reduce_of, broadcast as broadcast_of,
};
use crate::data::{self, DataType, Reducer};
use crate::element::{Element, ReduceOp};
use crate::error::{Error, Result};

fn reducer<T: Element>(reduction: ReduceOp) -> Result<Reducer> {
    reduction.check::<T>()?;
    match (DataType::from_number(T::NUMBER), data::ReduceOp::from_number(reduction.number())) {
        (Some(data), Some(op)) => Reducer::of(data, op),
        _ => Err(Error::Reduction { reduction: "unknown", element: T::NAME }),
    }
}

/// [`all_reduce`](all_reduce_of::all_reduce) in place.
///
/// # Errors
/// As it.
pub async fn all_reduce<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
) -> Result<()> {
    let reducer = reducer::<T>(reduction)?;
    all_reduce_of::all_reduce(turn, &reducer, None, bytemuck::cast_slice_mut(data)).await
}

#[inline]
pub(crate) fn at_once<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
) -> ControlFlow<Result<()>, Rest> {
    match reducer::<T>(reduction) {
        Ok(reducer) => all_reduce_of::at_once(turn, &reducer, None, bytemuck::cast_slice_mut(data)),
        Err(error) => ControlFlow::Break(Err(error)),
    }
}

pub(crate) async fn all_reduce_rest<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
    rest: Rest,
) -> Result<()> {
    let reducer = reducer::<T>(reduction)?;
    all_reduce_of::all_reduce_rest(turn, &reducer, None, bytemuck::cast_slice_mut(data), rest).await
}

/// [`broadcast`](broadcast_of::broadcast) of elements.
///
/// # Errors
/// As it.
pub async fn broadcast<T: Element>(turn: &mut SlotTurn<'_>, data: &mut [T], root: u32) -> Result<()> {
    broadcast_of::broadcast(turn, bytemuck::cast_slice_mut(data), root).await
}

/// [`all_gather`](all_gather_of::all_gather) of equal blocks, in place.
///
/// # Errors
/// As it.
pub async fn all_gather<T: Element>(turn: &mut SlotTurn<'_>, all: &mut [T]) -> Result<()> {
    let blocks = Blocks::Equal(size_of_val(all) / turn.world_size() as usize);
    all_gather_of::all_gather(turn, None, bytemuck::cast_slice_mut(all), blocks).await
}
