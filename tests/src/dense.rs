//! Every dense collective by every algorithm against an oracle, with sums whose bits depend on their order.

mod exact;
mod uneven;

use brevity::collectives::dense::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Collective, Gather, Lengths, Place, Reduce,
    ReduceScatter, Scatter,
};
use brevity::collectives::{
    Algorithm, Buffers, Call, Chunk, Element, Ground, Machine, Memory, Operation, Result, Sizes, Topology,
};
use brevity::{Group, ReduceOp};

use crate::reductions::check_reduction;

pub use exact::check_any_order;
use exact::{check_exact, check_halves};
use uneven::check_uneven;

/// Vectors that are longer are reduced by the library only: they test segments, at many times the cost.
const MOST_READINGS: usize = 1000;

/// The elements of a rank: of such sizes that each order of a sum gives other bits.
#[must_use]
pub fn vector(rank: u32, count: usize) -> Vec<f32> {
    let mut state = (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let size = [1e8, 1.0, -1e8, 3e-8][(state >> 62) as usize];
        size * (1.0 + (state >> 40 & 0xffff) as f32 / 65_536.0)
    };
    (0..count).map(next).collect()
}

/// The sum of all ranks' elements in the fixed order, by its definition in docs/algorithms.md.
#[must_use]
pub fn in_order(vectors: Vec<Vec<f32>>) -> Vec<f32> {
    in_order_by(vectors, |a, b| a + b)
}

/// The reduction of all ranks' elements in the fixed order.
pub(crate) fn in_order_by<T: Copy>(mut vectors: Vec<Vec<T>>, op: impl Fn(T, T) -> T) -> Vec<T> {
    let add = |a: &[T], b: &[T]| a.iter().zip(b).map(|(a, b)| op(*a, *b)).collect::<Vec<_>>();
    let members = 1 << vectors.len().ilog2();
    for guest in (members..vectors.len()).rev() {
        let given = vectors.remove(guest);
        vectors[guest - members] = add(&vectors[guest - members], &given);
    }
    while vectors.len() > 1 {
        vectors = vectors.chunks_exact(2).map(|pair| add(&pair[0], &pair[1])).collect();
    }
    vectors.swap_remove(0)
}

fn vectors(world_size: u32, count: usize) -> Vec<Vec<f32>> {
    (0..world_size).map(|rank| vector(rank, count)).collect()
}

/// The algorithms of a collective that fit ranks placed so, and the choice of the library; or only one of
/// them.
pub(crate) fn algorithms<C: Collective>(
    collective: &C,
    sizes: Sizes,
    (place, ground): (Place, Ground),
    only: Option<Only>,
) -> Vec<Option<Algorithm>> {
    let work = collective.work(sizes, place);
    let fitting = C::ROWS.iter().filter(|row| place.world_size > 1 && (row.fits)(&work, &ground));
    let is_meant = |algorithm: &Option<Algorithm>| {
        only.is_none_or(|Only(operation, only)| operation == C::OPERATION && *algorithm == Some(only))
    };
    fitting.map(|row| Some(row.algorithm)).chain([None]).filter(is_meant).collect()
}

/// What a rank brings to a collective, and what it must get.
struct Case<C, T> {
    collective: C,
    input: Vec<T>,
    /// The length of the output, and its contents; `None` where they are unspecified.
    output: usize,
    expected: Option<Vec<T>>,
    /// The same in place: the data before, and the range that is checked after.
    data: Vec<T>,
    range: std::ops::Range<usize>,
}

/// Reduces `data` over all ranks by an algorithm, inside the body of a call.
///
/// # Errors
/// That of the call.
pub async fn all_reduce_by(
    call: &Call<'_, '_>,
    algorithm: Algorithm,
    data: Vec<f32>,
    op: ReduceOp,
) -> Result<Vec<f32>> {
    let memory = Memory { input: None, output: Chunk::from(data).cast() };
    let reduced = call.run_by(algorithm, &AllReduce::new::<f32>(op)?, memory).await?;
    Ok(reduced.cast().into_vec())
}

/// An algorithm of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only(pub Operation, pub Algorithm);

/// All of them.
#[must_use]
pub fn all_algorithms() -> Vec<Only> {
    fn of<C: Collective>() -> impl Iterator<Item = Only> {
        C::ROWS.iter().map(|row| Only(C::OPERATION, row.algorithm))
    }
    of::<AllReduce>()
        .chain(of::<Reduce>())
        .chain(of::<ReduceScatter>())
        .chain(of::<AllGather>())
        .chain(of::<Gather>())
        .chain(of::<Scatter>())
        .chain(of::<AllToAll>())
        .chain(of::<Broadcast>())
        .chain(of::<Barrier>())
        .collect()
}

/// Runs every collective by every algorithm, and by the one that the library chooses, apart and in place,
/// with vectors or blocks of `count` elements. If `only` is set, only that one.
///
/// # Errors
/// The first one of a call.
///
/// # Panics
/// When a result is wrong.
pub async fn check_all(group: &Group, count: usize, only: Option<Only>) -> Result<()> {
    check_placed(group, Topology::apart(group.world_size()), count, only).await
}

/// Likewise, of ranks that are placed so.
///
/// # Errors
/// The first one of a call.
///
/// # Panics
/// When a result is wrong.
pub async fn check_placed(group: &Group, topology: Topology, count: usize, only: Option<Only>) -> Result<()> {
    let ground = Ground { topology, ..Ground::new(Machine::default(), group.world_size()) };
    let group = (group, ground);
    let (rank, size) = (group.0.rank(), group.0.world_size());
    let own = || vector(rank, count);
    let total = count * size as usize;
    let (block, long) = (rank as usize * count..(rank as usize + 1) * count, vector(rank, total));

    let sum = in_order(vectors(size, count));
    let all_reduce = AllReduce::new::<f32>(ReduceOp::Sum)?;
    let case = |collective, expected: Vec<f32>| Case {
        collective,
        input: own(),
        output: count,
        expected: Some(expected),
        data: own(),
        range: 0..count,
    };
    check(group, only, case(all_reduce, sum.clone())).await?;
    check_exact(group, (count, only), |number| number).await?;
    if only.is_none() && count <= MOST_READINGS {
        check_reduction(group.0, ground, count).await?;
    }
    check_halves(group, count, only).await?;
    check_uneven(group, count, only).await?;
    check_barrier(group, only).await?;
    let average = AllReduce::new::<f32>(ReduceOp::Average)?;
    check(group, only, case(average, sum.iter().map(|sum| sum / size as f32).collect())).await?;

    let sums = in_order(vectors(size, total));
    let mine = sums[block.clone()].to_vec();
    check(
        group,
        only,
        Case {
            collective: ReduceScatter::new::<f32>(ReduceOp::Sum, Lengths::Equal)?,
            input: long.clone(),
            output: count,
            expected: Some(mine),
            data: long.clone(),
            range: block.clone(),
        },
    )
    .await?;

    let gathered = vectors(size, count).concat();
    let mut placed = vec![f32::NAN; total];
    placed[block.clone()].copy_from_slice(&own());
    check(
        group,
        only,
        Case {
            collective: AllGather::new::<f32>(Lengths::Equal),
            input: own(),
            output: total,
            expected: Some(gathered.clone()),
            data: placed.clone(),
            range: 0..total,
        },
    )
    .await?;

    let from_all: Vec<f32> = (0..size).flat_map(|from| vector(from, total)[block.clone()].to_vec()).collect();
    check(
        group,
        only,
        Case {
            collective: AllToAll::new::<f32>(Lengths::Equal, Lengths::Equal),
            input: long.clone(),
            output: total,
            expected: Some(from_all),
            data: long.clone(),
            range: 0..total,
        },
    )
    .await?;

    let mut roots = vec![0, size / 2, size - 1];
    roots.dedup();
    for root in roots {
        let is_root = rank == root;
        let at_root = |expected: &[f32]| if is_root { Some(expected.to_vec()) } else { None };
        check(
            group,
            only,
            Case {
                collective: Reduce::new::<f32>(ReduceOp::Sum, root)?,
                input: own(),
                output: if is_root { count } else { 0 },
                expected: at_root(&sum),
                data: own(),
                range: 0..count,
            },
        )
        .await?;
        check(
            group,
            only,
            Case {
                collective: Gather::new::<f32>(root, Lengths::Equal),
                input: own(),
                output: if is_root { total } else { 0 },
                expected: at_root(&gathered),
                data: if is_root { placed.clone() } else { own() },
                range: 0..if is_root { total } else { 0 },
            },
        )
        .await?;
        let scattered = vector(root, total)[block.clone()].to_vec();
        check(
            group,
            only,
            Case {
                collective: Scatter::new::<f32>(root, Lengths::Equal),
                input: if is_root { long.clone() } else { Vec::new() },
                output: count,
                expected: Some(scattered),
                data: if is_root { long.clone() } else { vec![f32::NAN; count] },
                range: if is_root { block.clone() } else { 0..count },
            },
        )
        .await?;
        check(
            group,
            only,
            Case {
                collective: Broadcast::new::<f32>(root),
                // The input of other ranks is not looked at: none, or one of another length.
                input: if is_root { own() } else { vec![f32::NAN; (count + 1) * (rank as usize % 2)] },
                output: count,
                expected: Some(vector(root, count)),
                data: if is_root { own() } else { vec![f32::NAN; count] },
                range: 0..count,
            },
        )
        .await?;
    }
    Ok(())
}

/// Checks that no rank leaves a barrier before all have come.
async fn check_barrier((group, ground): (&Group, Ground), only: Option<Only>) -> Result<()> {
    let place = Place { rank: group.rank(), world_size: group.world_size() };
    let sizes = Buffers::in_place::<u8>(&mut []).sizes();
    for algorithm in algorithms(&Barrier, sizes, (place, ground), only) {
        group.with_algorithm(algorithm).start_barrier().await.1?;
    }
    Ok(())
}

/// Whether all bits are the same.
fn same<T: Bits>(found: &[T], expected: &[T]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| a.bits() == b.bits())
}

/// Elements that are compared bit by bit.
trait Bits: Element {
    /// What no result has.
    const UNSET: Self;

    fn bits(self) -> u32;
}

impl Bits for f32 {
    const UNSET: Self = Self::NAN;

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Bits for u32 {
    const UNSET: Self = Self::MAX;

    fn bits(self) -> u32 {
        self
    }
}

/// The bits of a number of 16 bits.
impl Bits for u16 {
    const UNSET: Self = Self::MAX;

    fn bits(self) -> u32 {
        self.into()
    }
}

async fn check<C: Collective, T: Bits>(
    (group, ground): (&Group, Ground),
    only: Option<Only>,
    case: Case<C, T>,
) -> Result<()> {
    let place = Place { rank: group.rank(), world_size: group.world_size() };
    let Case { collective, input, output, expected, data, range } = case;
    let mut room = vec![T::UNSET; output];
    let sizes = Buffers::apart(&input, &mut room).sizes();
    for algorithm in algorithms(&collective, sizes, (place, ground), only) {
        let by = group.with_algorithm(algorithm);
        let what = || {
            format!(
                "{} by {algorithm:?}, rank {} of {}, {output}",
                C::OPERATION,
                place.rank,
                place.world_size
            )
        };
        let memory = (input.clone(), vec![T::UNSET; output]);
        let started = by.start_call(Ok(collective.clone()), memory, lend_apart::<T>);
        let ((kept, found), result) = started.await;
        result?;
        assert!(same(&kept, &input), "{}: the input has changed", what());
        assert!(expected.as_ref().is_none_or(|expected| same(&found, expected)), "{}", what());
        let (found, result) = by
            .start_call(Ok(collective.clone()), data.clone(), |data: &mut Vec<T>| Buffers::in_place(data))
            .await;
        result?;
        assert!(
            expected.as_ref().is_none_or(|expected| same(&found[range.clone()], expected)),
            "{} in place",
            what()
        );
    }
    Ok(())
}

fn lend_apart<T: Element>((input, output): &mut (Vec<T>, Vec<T>)) -> Buffers<'_> {
    Buffers::apart(input, output)
}
