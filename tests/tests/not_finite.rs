//! A value that is not finite is the same error on all ranks, of which there may be one.

use brevity::collectives::{Error, Result};
use brevity::compress::SparseVec;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::{Group, PutBack};
use brevity_tests::on_local;

const SIDE: usize = 4;

/// A collective that adds, on vectors with this value at index 1.
type Call = fn(&Group, f32) -> Result<()>;

const CALLS: [(&str, Call); 5] = [
    ("topk", |group, value| group.topk_all_reduce(sparse(value).view(), 2).map(drop)),
    ("gtopk", |group, value| gtopk(group, value, PutBack::Conserving)),
    ("gtopk as published", |group, value| gtopk(group, value, PutBack::Published)),
    ("gtopk, merger keeps", |group, value| gtopk(group, value, PutBack::MergerKeeps)),
    ("low rank", |group, value| {
        let mut batch = Batch::new(vec![LowRank::new(SIDE, SIDE, 1, 7).unwrap()]);
        let mut matrix = [1.0; SIDE * SIDE];
        matrix[1] = value;
        group.low_rank_all_reduce(&mut batch, &[&matrix]).map(drop)
    }),
];

fn sparse(value: f32) -> SparseVec {
    SparseVec::from_parts(10, vec![1, 5], vec![value, 3.0]).unwrap()
}

fn gtopk(group: &Group, value: f32, rule: PutBack) -> Result<()> {
    group.gtopk_all_reduce(sparse(value).view(), 2, rule).map(drop)
}

#[test]
fn a_value_that_is_not_finite_is_named_by_all_ranks() {
    for (name, call) in CALLS {
        for world_size in [1, 2, 3, 5] {
            for (bad_rank, bad) in [(0, f32::NAN), (world_size - 1, f32::INFINITY), (0, f32::NEG_INFINITY)] {
                let ends = on_local(world_size, move |group| {
                    let end = call(group, if group.rank() == bad_rank { bad } else { 2.0 });
                    call(group, 2.0).unwrap();
                    end
                });
                let is_named = |end: &Result<()>| match end {
                    Err(Error::NonFinite { rank, tensor: 0 }) => rank.0 == bad_rank,
                    _ => false,
                };
                assert!(
                    ends.iter().all(is_named),
                    "{name}, {bad} on rank {bad_rank} of {world_size}: {ends:?}"
                );
            }
        }
    }
}

/// What only moves data moves any value.
#[test]
fn gathering_leaves_values_alone() {
    for world_size in [1, 2, 3] {
        for value in [f32::NAN, f32::INFINITY] {
            let all =
                on_local(world_size, move |group| group.sparse_all_gather(sparse(value).view(), 2).unwrap());
            let bits = all.iter().flatten().map(|vector| vector.values()[0].to_bits());
            assert!(bits.clone().all(|bits| bits == value.to_bits()), "{:?}", bits.collect::<Vec<_>>());
        }
    }
}
