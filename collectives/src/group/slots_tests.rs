//! The programs of [`host`] against oracles, on ranks that are threads and share memory.

use std::sync::Arc;
use std::thread;

use half::bf16;
use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::shm::LocalGroup;
use ucx_sys_wrap::{Rank, local};

use super::*;
use crate::data::{DataType, ReduceOp, Reducer, UserReduction};
use crate::description::Operation;
use crate::error::Error;
use crate::group::Settings;
use crate::host::{self, Blocks};

const COUNTS: [usize; 5] = [0, 1, 7, 1000, 100_000];

/// Runs `body` on each rank of a group on one host.
fn on_ranks<R: Send>(world_size: u32, body: impl Fn(&Group) -> R + Sync) -> Vec<R> {
    let worlds = local::world(world_size).into_iter();
    let locals = LocalGroup::in_process(world_size).unwrap();
    let groups: Vec<Group> = worlds
        .zip(locals)
        .map(|(rank, local)| {
            Group::opened(Opened::in_process(Box::new(rank), Some(local)), Settings::default())
        })
        .collect();
    thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(&group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Makes a call that is one program over slots.
fn over_slots(group: &Group, program: impl AsyncFnOnce(&mut SlotTurn<'_>) -> Result<()>) -> Result<()> {
    let host = group.context.ranks.host.as_ref().unwrap();
    let description = Description::new(Operation::BARRIER, 0, 0);
    let nothing = |_: &mut SlotTurn<'_>, _: &mut [u8]| ControlFlow::Continue(());
    group.run_on_host(host, description, &mut [], nothing, async |turn, _, ()| program(turn).await)
}

/// `count` numbers of a rank whose sum depends on the order.
fn numbers(rank: u32, count: usize) -> impl Iterator<Item = f32> {
    let mut state = (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..count).map(move |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let size = [1e8, 1.0, -1e8, 3e-8][(state >> 62) as usize];
        size * (1.0 + (state >> 40 & 0xffff) as f32 / 65_536.0)
    })
}

fn cast<T: bytemuck::NoUninit>(values: impl Iterator<Item = T>) -> Vec<u8> {
    values.flat_map(|value| bytemuck::bytes_of(&value).to_vec()).collect()
}

/// The vector of a rank, for a reduction.
fn operand(reducer: &Reducer, rank: u32, count: usize) -> Vec<u8> {
    let numbers = numbers(rank, count);
    match reducer.data() {
        Some(DataType::F32) => cast(numbers),
        Some(DataType::Bf16) => cast(numbers.map(bf16::from_f32)),
        Some(DataType::I64) => cast(numbers.map(|number| number as i64)),
        // A user's, of three words.
        _ => cast(numbers.map(|number| [number.to_bits(), rank, count as u32])),
    }
}

/// Adds words, with a step that makes the order matter.
fn user() -> Reducer {
    let combine = |into: &mut [u8], from: &[u8]| {
        let (into, from): (&mut [u32], &[u32]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from));
        for (into, from) in into.iter_mut().zip(from) {
            *into = into.wrapping_add(*from).wrapping_mul(31);
        }
        Ok(())
    };
    Reducer::User(Arc::new(UserReduction::new("words", 12, combine)))
}

fn reducers() -> [Reducer; 4] {
    let of = |data, op| Reducer::of(data, op).unwrap();
    [
        of(DataType::F32, ReduceOp::Sum),
        of(DataType::Bf16, ReduceOp::Average),
        of(DataType::I64, ReduceOp::Max),
        user(),
    ]
}

fn reduced(reducer: &Reducer, world_size: u32, count: usize) -> Vec<u8> {
    let operands: Vec<_> = (0..world_size).map(|rank| operand(reducer, rank, count)).collect();
    let operands: Vec<_> = operands.iter().map(|operand| Some(&operand[..])).collect();
    let mut result = vec![0; count * reducer.size()];
    reducer.in_mode(|| reducer.reduce_in_order(&operands, 0, &mut result)).unwrap();
    result
}

/// Runs `check` on each rank, for groups of 2 to 5 ranks, for each reduction and count.
fn for_each_reduction(check: impl Fn(&Group, &Reducer, usize) + Sync) {
    for world_size in 2..6 {
        on_ranks(world_size, |group| {
            for reducer in reducers() {
                COUNTS.iter().for_each(|count| check(group, &reducer, *count));
            }
        });
    }
}

#[test]
fn all_reduce_is_in_the_fixed_order() {
    for_each_reduction(|group, reducer, count| {
        let expected = reduced(reducer, group.world_size(), count);
        let operand = operand(reducer, group.rank(), count);
        let mut data = operand.clone();
        over_slots(group, async |turn| host::all_reduce_bytes(turn, reducer, None, &mut data).await).unwrap();
        assert!(data == expected, "{reducer:?} of {count} in place");
        let mut result = vec![7; data.len()];
        let program = async |turn: &mut SlotTurn<'_>| {
            host::all_reduce_bytes(turn, reducer, Some(&operand), &mut result).await
        };
        over_slots(group, program).unwrap();
        assert!(result == expected, "{reducer:?} of {count}");
    });
}

#[test]
fn reduce_gives_the_root_the_result() {
    for_each_reduction(|group, reducer, count| {
        let expected = reduced(reducer, group.world_size(), count);
        let operand = operand(reducer, group.rank(), count);
        for root in 0..group.world_size() {
            let is_root = group.rank() == root;
            let mut data = operand.clone();
            over_slots(group, async |turn| host::reduce(turn, reducer, None, &mut data, root).await).unwrap();
            let found = if is_root { &expected } else { &operand };
            assert!(data == *found, "{reducer:?} of {count} in place, root {root}");
            let mut result = if is_root { vec![7; data.len()] } else { Vec::new() };
            let program = async |turn: &mut SlotTurn<'_>| {
                host::reduce(turn, reducer, Some(&operand), &mut result, root).await
            };
            over_slots(group, program).unwrap();
            assert!(!is_root || result == expected, "{reducer:?} of {count}, root {root}");
        }
    });
}

#[test]
fn reduce_scatter_gives_each_rank_its_block() {
    for_each_reduction(|group, reducer, count| {
        let count = count.min(20_000);
        let (rank, world_size) = (group.rank() as usize, group.world_size() as usize);
        // Equal blocks, and blocks of which the first is empty.
        let ends: Vec<usize> =
            (0..world_size).map(|place| count * place * (place + 1) / 2 * reducer.size()).collect();
        let total = ends[world_size - 1] / reducer.size();
        let cases =
            [(Blocks::Equal(count * reducer.size()), count * world_size), (Blocks::Ends(&ends), total)];
        for (blocks, elements) in cases {
            let expected = reduced(reducer, group.world_size(), elements);
            let operand = operand(reducer, group.rank(), elements);
            let block = blocks.range(rank);
            let mut data = operand.clone();
            let program = async |turn: &mut SlotTurn<'_>| {
                host::reduce_scatter(turn, reducer, None, &mut data, blocks).await
            };
            over_slots(group, program).unwrap();
            assert!(data[block.clone()] == expected[block.clone()], "{reducer:?} of {count} in place");
            let mut result = vec![7; block.len()];
            let program = async |turn: &mut SlotTurn<'_>| {
                host::reduce_scatter(turn, reducer, Some(&operand), &mut result, blocks).await
            };
            over_slots(group, program).unwrap();
            assert!(result == expected[block], "{reducer:?} of {count}");
        }
    });
}

/// A user's reduction that fails on rank 1 ends that rank's call with its status, and the others' calls.
#[test]
fn a_reduction_that_fails_closes_the_group() {
    for count in [1, 1000, 100_000] {
        let errors = on_ranks(3, |group| {
            let rank = group.rank();
            let combine = move |_: &mut [u8], _: &[u8]| if rank == 1 { Err(7) } else { Ok(()) };
            let reducer = Reducer::User(Arc::new(UserReduction::new("fails", 4, combine)));
            let mut data = vec![0; 4 * count];
            let mut call = || {
                over_slots(group, async |turn| host::all_reduce_bytes(turn, &reducer, None, &mut data).await)
            };
            // A rank that has all it needs may return without an error, once.
            call().and_then(|()| call()).unwrap_err()
        });
        assert!(matches!(&errors[1], Error::User { status: 7, .. }), "{errors:?}");
        for error in [&errors[0], &errors[2]] {
            assert!(matches!(error, Error::Aborted { rank: Rank(1) }), "{errors:?}");
        }
    }
}

/// Bytes that one rank has for another.
fn block(from: usize, to: usize, length: usize) -> impl Iterator<Item = u8> {
    (0..length).map(move |index| (index * 31 + index / 256 + from * 7 + to * 101) as u8)
}

/// The ends of blocks of these lengths.
fn ends(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    lengths
        .scan(0, |end, length| {
            *end += length;
            Some(*end)
        })
        .collect()
}

/// Runs `check` for groups of 2 to 5 ranks, with a length, and with the function of the differing lengths of
/// blocks from one rank to another.
fn for_each_length(check: impl Fn(&Group, usize, &dyn Fn(usize, usize) -> usize) + Sync) {
    for world_size in 2..6 {
        on_ranks(world_size, |group| {
            for length in [0, 1, 7, 100, 1000, 100_000, 1_000_003] {
                check(group, length, &|from, to| length * ((from + 2 * to) % 3) / 2);
            }
        });
    }
}

#[test]
fn all_gather_gives_all_ranks_all_blocks() {
    for_each_length(|group, length, varying| {
        let (rank, places) = (group.rank() as usize, group.world_size() as usize);
        let lengths: [&dyn Fn(usize) -> usize; 2] = [&|_| length, &|place| varying(place, 0)];
        for (index, of) in lengths.into_iter().enumerate() {
            let ends = ends((0..places).map(of));
            let blocks = if index == 0 { Blocks::Equal(length) } else { Blocks::Ends(&ends) };
            let expected: Vec<u8> = (0..places).flat_map(|place| block(place, 0, of(place))).collect();
            let own: Vec<u8> = block(rank, 0, of(rank)).collect();
            let mut all = vec![0; expected.len()];
            let program = async |turn: &mut SlotTurn<'_>| {
                host::all_gather_bytes(turn, Some(&own), &mut all, blocks).await
            };
            over_slots(group, program).unwrap();
            assert!(all == expected, "{blocks:?}");
            all.fill(7);
            all[blocks.range(rank)].copy_from_slice(&own);
            let program =
                async |turn: &mut SlotTurn<'_>| host::all_gather_bytes(turn, None, &mut all, blocks).await;
            over_slots(group, program).unwrap();
            assert!(all == expected, "{blocks:?} in place");
        }
    });
}

#[test]
fn broadcast_and_barrier_reach_all_ranks() {
    for_each_length(|group, length, _| {
        for root in 0..group.world_size() {
            let expected: Vec<u8> = block(root as usize, 0, length).collect();
            let mut data = if group.rank() == root { expected.clone() } else { vec![0; length] };
            over_slots(group, async |turn| host::broadcast_bytes(turn, &mut data, root).await).unwrap();
            assert!(data == expected, "{length} from {root}");
            over_slots(group, async |turn| host::barrier(turn).await).unwrap();
        }
    });
}

#[test]
fn gather_and_scatter_move_the_blocks_of_all_ranks() {
    for_each_length(|group, length, varying| {
        let (rank, places) = (group.rank() as usize, group.world_size() as usize);
        let lengths: [&dyn Fn(usize) -> usize; 2] = [&|_| length, &|place| varying(place, 0)];
        for ((index, of), root) in
            lengths.into_iter().enumerate().flat_map(|of| (0..places).map(move |r| (of, r)))
        {
            let is_root = rank == root;
            let ends = if is_root { ends((0..places).map(of)) } else { Vec::new() };
            let expected: Vec<u8> = (0..places).flat_map(|place| block(place, 0, of(place))).collect();
            let own: Vec<u8> = block(rank, 0, of(rank)).collect();
            for in_place in [false, true] {
                let start: usize = (0..rank).map(of).sum();
                let range = start..start + of(rank);
                let mut all = if is_root { vec![7; expected.len()] } else { Vec::new() };
                if in_place && is_root {
                    all[range.clone()].copy_from_slice(&own);
                }
                let input = (!in_place || !is_root).then_some(&own[..]);
                let program = async |turn: &mut SlotTurn<'_>| match index {
                    0 => host::gather(turn, input, &mut all, root as u32).await,
                    _ => host::gather_v(turn, input, &mut all, &ends, root as u32).await,
                };
                over_slots(group, program).unwrap();
                assert!(!is_root || all == expected, "gather of {length} to {root}, in place: {in_place}");
                let mut block = if in_place && is_root { Vec::new() } else { vec![9; own.len()] };
                let program = async |turn: &mut SlotTurn<'_>| match index {
                    0 => host::scatter(turn, &all, &mut block, root as u32).await,
                    _ => host::scatter_v(turn, &all, &ends, &mut block, root as u32).await,
                };
                over_slots(group, program).unwrap();
                assert!(block == own || in_place && is_root, "scatter of {length} from {root}");
            }
        }
    });
}

#[test]
fn all_to_all_moves_a_block_from_each_rank_to_each() {
    for_each_length(|group, length, varying| {
        let (rank, places) = (group.rank() as usize, group.world_size() as usize);
        let equal: &dyn Fn(usize, usize) -> usize = &|_, _| length;
        // In place, blocks of differing lengths have the same length both ways.
        let mutual: &dyn Fn(usize, usize) -> usize = &|from, to| varying(from + to, 0);
        for (is_equal, of, in_place) in
            [(true, equal, false), (true, equal, true), (false, varying, false), (false, mutual, true)]
        {
            let to = |place| block(rank, place, of(rank, place));
            let from = |place| block(place, rank, of(place, rank));
            let sent: Vec<u8> = (0..places).flat_map(to).collect();
            let expected: Vec<u8> = (0..places).flat_map(from).collect();
            let sent_ends = ends((0..places).map(|place| of(rank, place)));
            let ends = ends((0..places).map(|place| of(place, rank)));
            let mut result = if in_place { sent.clone() } else { vec![7; expected.len()] };
            let input = (!in_place).then_some(&sent[..]);
            let program = async |turn: &mut SlotTurn<'_>| match is_equal {
                true => host::all_to_all(turn, input, &mut result).await,
                false => host::all_to_all_v(turn, input, &sent_ends, &mut result, &ends).await,
            };
            over_slots(group, program).unwrap();
            assert!(result == expected, "{length}, in place: {in_place}");
        }
    });
}

/// A block of another length than its reader expects is an error there, and ends the calls of all.
#[test]
fn a_block_of_another_length_is_refused() {
    type Program = fn(&Group) -> Result<()>;
    let programs: [Program; 3] = [
        |group| {
            let own = vec![1; if group.rank() == 2 { 5000 } else { 4000 }];
            let (mut all, ends) = (vec![0; 12_000], [4000, 8000, 12_000]);
            let is_root = group.rank() == 0;
            let (all, ends) = if is_root { (&mut all[..], &ends[..]) } else { (&mut [][..], &[][..]) };
            over_slots(group, async |turn| host::gather_v(turn, Some(&own), all, ends, 0).await)
        },
        |group| {
            let mut own = vec![1; if group.rank() == 0 { 4001 } else { 4000 }];
            let (all, ends) = (vec![0; 12_000], [4000, 8000, 12_000]);
            over_slots(group, async |turn| host::scatter_v(turn, &all, &ends, &mut own, 2).await)
        },
        |group| {
            let ends = if group.rank() == 2 { [5001, 10_001, 15_001] } else { [5000, 10_000, 15_000] };
            let mut all = vec![0; ends[2]];
            over_slots(group, async |turn| host::all_to_all_v(turn, None, &ends, &mut all, &ends).await)
        },
    ];
    for program in programs {
        let errors = on_ranks(3, |group| program(group).and_then(|()| group.barrier()).unwrap_err());
        let refuses = |error: &Error| matches!(error, Error::Payload { rank: Rank(2), .. });
        let ended = |error: &Error| matches!(error, Error::Payload { .. } | Error::Aborted { .. });
        assert!(errors.iter().any(|error| matches!(error, Error::Payload { .. })), "{errors:?}");
        assert!(refuses(&errors[0]) || matches!(errors[0], Error::Aborted { .. }), "{errors:?}");
        assert!(errors.iter().all(ended), "{errors:?}");
    }
}
