//! Collectives of blocks whose lengths differ.

use brevity::collectives::dense::{AllGather, AllToAll, Gather, Lengths, ReduceScatter, Scatter};
use brevity::collectives::{Ground, Result};
use brevity::{Group, ReduceOp};

use super::{Case, Only, check, in_order, vector, vectors};

/// Checks collectives of blocks of `count` elements, of none, and of half as many, in turn.
pub(super) async fn check_uneven(group: (&Group, Ground), count: usize, only: Option<Only>) -> Result<()> {
    let (rank, world_size) = (group.0.rank(), group.0.world_size());
    let length = |place: u32| count * ((place as usize + 2) % 3) / 2;
    let lengths: Vec<usize> = (0..world_size).map(length).collect();
    let (mine, total) = (lengths[rank as usize], lengths.iter().sum::<usize>());
    let start: usize = lengths[..rank as usize].iter().sum();
    let block = start..start + mine;
    let each = || Lengths::each(&lengths);

    let gathered = (0..world_size).flat_map(|rank| vector(rank, length(rank))).collect::<Vec<_>>();
    let own = || vector(rank, mine);
    let mut placed = vec![f32::NAN; total];
    placed[block.clone()].copy_from_slice(&own());
    let (collective, expected, data) =
        (AllGather::new::<f32>(each()), Some(gathered.clone()), placed.clone());
    let case = Case { collective, input: own(), output: total, expected, data, range: 0..total };
    check(group, only, case).await?;

    let (long, sums) = (vector(rank, total), in_order(vectors(world_size, total)));
    let collective = ReduceScatter::new::<f32>(ReduceOp::Sum, each())?;
    let (input, data, expected) = (long.clone(), long.clone(), Some(sums[block.clone()].to_vec()));
    check(group, only, Case { collective, input, output: mine, expected, data, range: block.clone() })
        .await?;

    for root in [0, world_size - 1] {
        let is_root = rank == root;
        let at_root = |vector: &[f32]| if is_root { vector.to_vec() } else { Vec::new() };
        let (collective, output) = (Gather::new::<f32>(root, each()), if is_root { total } else { 0 });
        let (expected, data) =
            (is_root.then(|| gathered.clone()), if is_root { placed.clone() } else { own() });
        let case = Case { collective, input: own(), output, expected, data, range: 0..output };
        check(group, only, case).await?;

        let collective = Scatter::new::<f32>(root, each());
        let (data, range) =
            if is_root { (long.clone(), block.clone()) } else { (vec![f32::NAN; mine], 0..mine) };
        let expected = Some(vector(root, total)[block.clone()].to_vec());
        let case = Case { collective, input: at_root(&long), output: mine, expected, data, range };
        check(group, only, case).await?;
    }
    check_all_to_all(group, (world_size, length), only).await
}

/// The blocks of two ranks for each other are of equal length, so that they can be exchanged in place.
async fn check_all_to_all(
    group: (&Group, Ground),
    (world_size, length): (u32, impl Fn(u32) -> usize),
    only: Option<Only>,
) -> Result<()> {
    let rank = group.0.rank();
    let sent = |from: u32, to: u32| vector(from * world_size + to, length(from + to));
    let lengths: Vec<usize> = (0..world_size).map(|peer| length(rank + peer)).collect();
    let collective = AllToAll::new::<f32>(Lengths::each(&lengths), Lengths::each(&lengths));
    let input: Vec<f32> = (0..world_size).flat_map(|to| sent(rank, to)).collect();
    let expected: Vec<f32> = (0..world_size).flat_map(|from| sent(from, rank)).collect();
    let (data, total) = (input.clone(), input.len());
    let case = Case { collective, input, output: total, expected: Some(expected), data, range: 0..total };
    check(group, only, case).await
}
