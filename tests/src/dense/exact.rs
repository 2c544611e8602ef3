//! Sums of whole numbers, which may have any order, and of 16-bit numbers.

use brevity::collectives::dense::{AllReduce, Lengths, Reduce, ReduceScatter};
use brevity::collectives::{DataType, Ground, Machine, Reducer, Result, Topology};
use brevity::{Group, ReduceOp};

use super::{Bits, Case, Only, check, in_order, vector};

/// Runs every reduction of floating-point numbers by every algorithm that fits when sums may have any order,
/// among ranks that are placed so. The group's settings must admit it.
///
/// # Errors
/// The first one of a call.
///
/// # Panics
/// When a result is wrong. The numbers are so small and whole that no order of them changes a sum.
pub async fn check_any_order(group: &Group, topology: Topology, count: usize) -> Result<()> {
    let ground = Ground::new(Machine::default(), group.world_size());
    let ground = Ground { topology, any_order: true, ..ground };
    check_exact((group, ground), (count, None), |number| number as f32).await
}

/// Checks sums of whole numbers, which are elements `of` some type.
pub(super) async fn check_exact<T: Bits>(
    (group, ground): (&Group, Ground),
    (count, only): (usize, Option<Only>),
    of: impl Fn(u32) -> T,
) -> Result<()> {
    let (rank, world_size) = (group.rank(), group.world_size());
    let total = count * world_size as usize;
    let block = rank as usize * count..(rank as usize + 1) * count;
    let group = (group, ground);
    let times = |factor: u32, count: usize| -> Vec<T> {
        (0..count as u32).map(|index| of(factor * (index % 1000 + 3))).collect()
    };
    let own = |count: usize| times(rank + 1, count);
    let sums = |count: usize| times(world_size * (world_size + 1) / 2, count);

    let collective = AllReduce::new::<T>(ReduceOp::Sum)?;
    let (input, data, expected) = (own(count), own(count), Some(sums(count)));
    check(group, only, Case { collective, input, output: count, expected, data, range: 0..count }).await?;
    for root in [0, world_size - 1] {
        let collective = Reduce::new::<T>(ReduceOp::Sum, root)?;
        let (output, expected) = if rank == root { (count, Some(sums(count))) } else { (0, None) };
        let (input, data) = (own(count), own(count));
        check(group, only, Case { collective, input, output, expected, data, range: 0..count }).await?;
    }
    let collective = ReduceScatter::new::<T>(ReduceOp::Sum, Lengths::Equal)?;
    let (input, data, expected) = (own(total), own(total), Some(sums(total)[block.clone()].to_vec()));
    check(group, only, Case { collective, input, output: count, expected, data, range: block }).await
}

/// The `f32` whose upper half a number of 16 bits has: bf16.
fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bf16 nearest to a finite `f32`, ties to even.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Checks sums of 16-bit numbers: in `f32`, in the fixed order, rounded once.
pub(super) async fn check_halves(
    (group, ground): (&Group, Ground),
    count: usize,
    only: Option<Only>,
) -> Result<()> {
    let (rank, size) = (group.rank(), group.world_size());
    let total = count * size as usize;
    let halves = |rank: u32, count: usize| vector(rank, count).into_iter().map(to_bf16).collect::<Vec<_>>();
    let wide = |count: usize| -> Vec<Vec<f32>> {
        (0..size).map(|rank| halves(rank, count).into_iter().map(bf16).collect()).collect()
    };
    let average = |sums: Vec<f32>| sums.into_iter().map(|sum| to_bf16(sum / size as f32)).collect::<Vec<_>>();
    let averages = average(in_order(wide(count)));
    let block = rank as usize * count..(rank as usize + 1) * count;
    let blocks = average(in_order(wide(total)))[block.clone()].to_vec();
    let reducer = Reducer::of(DataType::Bf16, ReduceOp::Average)?;
    let group = (group, ground);
    let all_reduce = AllReduce::of(reducer.clone());
    let expected = Some(averages.clone());
    let (input, data) = (halves(rank, count), halves(rank, count));
    let case = Case { collective: all_reduce, input, output: count, expected, data, range: 0..count };
    check(group, only, case).await?;
    for root in [0, size - 1] {
        let collective = Reduce::of(reducer.clone(), root);
        let expected = if rank == root { Some(averages.clone()) } else { None };
        let output = if rank == root { count } else { 0 };
        let (input, data) = (halves(rank, count), halves(rank, count));
        check(group, only, Case { collective, input, output, expected, data, range: 0..count }).await?;
    }
    let scatter = ReduceScatter::of(reducer, Lengths::Equal);
    check(
        group,
        only,
        Case {
            collective: scatter,
            input: halves(rank, total),
            output: count,
            expected: Some(blocks),
            data: halves(rank, total),
            range: block,
        },
    )
    .await
}
