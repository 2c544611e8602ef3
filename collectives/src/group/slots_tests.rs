//! Collectives over slots against oracles, on ranks that are threads and share memory.

use std::sync::Arc;
use std::thread;

use half::bf16;
use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::shm::LocalGroup;
use ucx_sys_wrap::{Rank, local};

use super::*;
use crate::data::{DataType, ReduceOp, Reducer, UserReduction};
use crate::dense::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Lengths, MOST_SLOT_ELEMENT, Reduce, ReduceScatter,
    Scatter,
};
use crate::error::Error;
use crate::group::Settings;

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

fn in_place(output: &mut [u8]) -> Buffers<'_> {
    Buffers { input: None, output }
}

fn apart<'a>(input: &'a [u8], output: &'a mut [u8]) -> Buffers<'a> {
    Buffers { input: Some(input), ..in_place(output) }
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
        DataType::F32 => cast(numbers),
        DataType::Bf16 => cast(numbers.map(bf16::from_f32)),
        DataType::I64 => cast(numbers.map(|number| number as i64)),
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
    Reducer::User(Arc::new(UserReduction::new("words", 12, combine)), DataType::Bytes)
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
        let all_reduce = AllReduce::of(reducer.clone());
        group.call(&all_reduce, in_place(&mut data)).unwrap();
        assert!(data == expected, "{reducer:?} of {count} in place");
        let mut result = vec![7; data.len()];
        group.call(&all_reduce, apart(&operand, &mut result)).unwrap();
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
            let reduce = Reduce::of(reducer.clone(), root);
            group.call(&reduce, in_place(&mut data)).unwrap();
            let found = if is_root { &expected } else { &operand };
            assert!(data == *found, "{reducer:?} of {count} in place, root {root}");
            let mut result = if is_root { vec![7; data.len()] } else { Vec::new() };
            group.call(&reduce, apart(&operand, &mut result)).unwrap();
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
        let uneven: Vec<usize> = (0..world_size).map(|place| count * place).collect();
        for (lengths, each) in [(Lengths::Equal, vec![count; world_size]), (Lengths::each(&uneven), uneven)] {
            let elements = each.iter().sum();
            let start: usize = each[..rank].iter().sum();
            let expected = reduced(reducer, group.world_size(), elements);
            let operand = operand(reducer, group.rank(), elements);
            let block = start * reducer.size()..(start + each[rank]) * reducer.size();
            let mut data = operand.clone();
            let reduce_scatter = ReduceScatter::of(reducer.clone(), lengths);
            group.call(&reduce_scatter, in_place(&mut data)).unwrap();
            assert!(data[block.clone()] == expected[block.clone()], "{reducer:?} of {count} in place");
            let mut result = vec![7; block.len()];
            group.call(&reduce_scatter, apart(&operand, &mut result)).unwrap();
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
            let reducer = Reducer::User(Arc::new(UserReduction::new("fails", 4, combine)), DataType::U32);
            let mut data = vec![0; 4 * count];
            let all_reduce = AllReduce::of(reducer);
            let mut call = || group.call(&all_reduce, in_place(&mut data));
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
        let uneven: Vec<usize> = (0..places).map(|place| varying(place, 0)).collect();
        for (lengths, each) in [(Lengths::Equal, vec![length; places]), (Lengths::each(&uneven), uneven)] {
            let all_gather = AllGather::new::<u8>(lengths);
            let expected: Vec<u8> = (0..places).flat_map(|place| block(place, 0, each[place])).collect();
            let own: Vec<u8> = block(rank, 0, each[rank]).collect();
            let mut all = vec![0; expected.len()];
            group.call(&all_gather, apart(&own, &mut all)).unwrap();
            assert!(all == expected, "{each:?}");
            all.fill(7);
            let start: usize = each[..rank].iter().sum();
            all[start..start + each[rank]].copy_from_slice(&own);
            group.call(&all_gather, in_place(&mut all)).unwrap();
            assert!(all == expected, "{each:?} in place");
        }
    });
}

#[test]
fn broadcast_reaches_all_ranks() {
    for_each_length(|group, length, _| {
        for root in 0..group.world_size() {
            let expected: Vec<u8> = block(root as usize, 0, length).collect();
            let mut data = if group.rank() == root { expected.clone() } else { vec![0; length] };
            group.call(&Broadcast::new::<u8>(root), in_place(&mut data)).unwrap();
            assert!(data == expected, "{length} from {root}");
            let own = if group.rank() == root { &expected[..] } else { &[] };
            data.fill(0);
            group.broadcast_to(own, &mut data, root).unwrap();
            assert!(data == expected, "{length} from {root}, apart");
        }
    });
}

#[test]
fn gather_and_scatter_move_the_blocks_of_all_ranks() {
    for_each_length(|group, length, varying| {
        let (rank, places) = (group.rank() as usize, group.world_size() as usize);
        let uneven: Vec<usize> = (0..places).map(|place| varying(place, 0)).collect();
        for (lengths, each) in [(Lengths::Equal, vec![length; places]), (Lengths::each(&uneven), uneven)] {
            let expected: Vec<u8> = (0..places).flat_map(|place| block(place, 0, each[place])).collect();
            let own: Vec<u8> = block(rank, 0, each[rank]).collect();
            let start: usize = each[..rank].iter().sum();
            for root in 0..places {
                let is_root = rank == root;
                let gather = Gather::new::<u8>(root as u32, lengths.clone());
                let scatter = Scatter::new::<u8>(root as u32, lengths.clone());

                let mut all = if is_root { vec![7; expected.len()] } else { Vec::new() };
                group.call(&gather, apart(&own, &mut all)).unwrap();
                assert!(!is_root || all == expected, "gather of {each:?} to {root}");
                let mut got = vec![9; own.len()];
                group.call(&scatter, apart(&all, &mut got)).unwrap();
                assert!(got == own, "scatter of {each:?} from {root}");

                let mut data = if is_root { vec![7; expected.len()] } else { own.clone() };
                if is_root {
                    data[start..start + each[rank]].copy_from_slice(&own);
                }
                group.call(&gather, in_place(&mut data)).unwrap();
                let gathered = if is_root { &expected } else { &own };
                assert!(data == *gathered, "gather of {each:?} to {root} in place");
                if !is_root {
                    data.fill(9);
                }
                group.call(&scatter, in_place(&mut data)).unwrap();
                assert!(data == *gathered, "scatter of {each:?} from {root} in place");
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
        for (of, is_equal, is_in_place) in
            [(equal, true, false), (equal, true, true), (varying, false, false), (mutual, false, true)]
        {
            let sent: Vec<u8> = (0..places).flat_map(|place| block(rank, place, of(rank, place))).collect();
            let expected: Vec<u8> =
                (0..places).flat_map(|place| block(place, rank, of(place, rank))).collect();
            let lengths = |of: &dyn Fn(usize) -> usize| match is_equal {
                true => Lengths::Equal,
                false => Lengths::each(&(0..places).map(of).collect::<Vec<_>>()),
            };
            let (to, from) = (lengths(&|place| of(rank, place)), lengths(&|place| of(place, rank)));
            let all_to_all = AllToAll::new::<u8>(to, from);
            let mut result = if is_in_place { sent.clone() } else { vec![7; expected.len()] };
            let memory = if is_in_place { in_place(&mut result) } else { apart(&sent, &mut result) };
            group.call(&all_to_all, memory).unwrap();
            assert!(result == expected, "{length}, in place: {is_in_place}");
        }
    });
}

/// A block of another length than its reader expects is an error there, and ends the calls of all.
#[test]
fn a_block_of_another_length_is_refused() {
    type Call = fn(&Group) -> Result<()>;
    let calls: [Call; 3] = [
        |group| {
            let own = vec![1; if group.rank() == 2 { 5000 } else { 4000 }];
            let mut all = vec![0; if group.rank() == 0 { 12_000 } else { 0 }];
            group.call(&Gather::new::<u8>(0, Lengths::each(&[4000; 3])), apart(&own, &mut all))
        },
        |group| {
            let mut own = vec![1; if group.rank() == 0 { 4001 } else { 4000 }];
            let all = vec![0; if group.rank() == 2 { 12_000 } else { 0 }];
            group.call(&Scatter::new::<u8>(2, Lengths::each(&[4000; 3])), apart(&all, &mut own))
        },
        |group| {
            let each = if group.rank() == 2 { [5001, 5000, 5000] } else { [5000; 3] };
            let mut all = vec![0; each.iter().sum()];
            group.call(&AllToAll::new::<u8>(Lengths::each(&each), Lengths::each(&each)), in_place(&mut all))
        },
    ];
    for call in calls {
        let errors = on_ranks(3, |group| call(group).and_then(|()| group.barrier()).unwrap_err());
        let refuses = |error: &Error| matches!(error, Error::Payload { rank: Rank(2), .. });
        let ended = |error: &Error| matches!(error, Error::Payload { .. } | Error::Aborted { .. });
        assert!(errors.iter().any(|error| matches!(error, Error::Payload { .. })), "{errors:?}");
        assert!(refuses(&errors[0]) || matches!(errors[0], Error::Aborted { .. }), "{errors:?}");
        assert!(errors.iter().all(ended), "{errors:?}");
    }
}

#[test]
fn slots_are_taken_where_they_are_wished_for() {
    let sum = |group: &Group| -> Result<Vec<f32>> {
        let sums = group.start_all_reduce(vec![1.0_f32; 1000], ReduceOp::Sum).wait();
        sums.1.map(|()| sums.0)
    };
    let ways = [None, Some(Algorithm::Slots), Some(Algorithm::Direct)];
    for sums in on_ranks(3, |group| ways.map(|way| sum(&group.with_algorithm(way)).unwrap())) {
        assert_eq!(sums, [const { 3.0 }; 3].map(|sum| vec![sum; 1000]));
    }
    // Elements that are too long for slots, and ranks that share no memory.
    const LONG: usize = MOST_SLOT_ELEMENT + 1;
    let long = Reducer::User(Arc::new(UserReduction::new("long", LONG, |_, _| Ok(()))), DataType::Bytes);
    let refused = on_ranks(2, |group| {
        let (input, mut output) = ([0; LONG], [0; LONG]);
        let group = group.with_algorithm(Some(Algorithm::Slots));
        group.call(&AllReduce::of(long.clone()), apart(&input, &mut output))
    });
    for error in refused.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, Error::Algorithm { algorithm: Algorithm::Slots, .. }), "{error}");
    }
    let ranks = local::world(2).into_iter().map(|rank| {
        let opened = Opened::in_process(Box::new(rank), None);
        Group::opened(opened, Settings::default()).with_algorithm(Some(Algorithm::Slots))
    });
    for group in ranks.collect::<Vec<_>>() {
        let error = sum(&group).unwrap_err();
        assert!(error.to_string().contains("direct") && !error.to_string().contains("slots,"), "{error}");
    }
}
