//! Ranks whose calls differ in one argument: all find out by the end of the next sum, on every wire, and are
//! told what differs. Other groups go on.

use std::time::{Duration, Instant};

use brevity::collectives::Error;
use brevity::compress::SparseVec;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::transport::bootstrap::Opened;
use brevity::transport::local;
use brevity::transport::shm::LocalGroup;
use brevity::{GradientExchange, Group, Machine, Policy, PutBack, ReduceOp, Reduction, Settings};
use brevity_testing::worlds::boxed;
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::{on_groups, on_transports, suite};
use bytemuck::Pod;

/// A call in which one rank is odd, and which may go well on some ranks.
type Odd = fn(&Group, bool) -> Result<(), String>;

/// The words of what must be equal, and the call.
const CALLS: [(&str, Odd); 27] = [
    ("root", |group, odd| text(group.broadcast(&mut [1.0f32; 3], u32::from(odd)))),
    ("large root", |group, odd| text(group.broadcast(&mut vec![1.0f32; 300_000], u32::from(odd)))),
    ("length", |group, odd| text(group.broadcast(&mut vec![1.0f32; 3 + usize::from(odd)], 0))),
    ("type", |group, odd| {
        text(if odd { group.broadcast(&mut [1u32; 3], 0) } else { group.broadcast(&mut [1.0f32; 3], 0) })
    }),
    ("operation", |group, odd| {
        text(if odd { group.barrier() } else { group.all_reduce(&mut [1.0f32], ReduceOp::Sum) })
    }),
    ("reduction", |group, odd| {
        text(group.all_reduce(&mut [1.0f32], if odd { ReduceOp::Max } else { ReduceOp::Sum }))
    }),
    ("name of a reduction", |group, odd| {
        text(group.all_reduce(&mut [1.0f32], first_of(if odd { "last" } else { "first" })))
    }),
    ("elements of a reduction", |group, odd| {
        text(if odd {
            group.all_reduce(&mut [[1u16; 3]; 4], first_of("first"))
        } else {
            group.all_reduce(&mut [[1u16; 5]; 4], first_of("first"))
        })
    }),
    ("length of a sum", |group, odd| {
        text(group.all_reduce(&mut vec![1.0f32; 70_000 + usize::from(odd)], ReduceOp::Sum))
    }),
    ("length of an all-gather", |group, odd| {
        let own = vec![1u8; 5 + usize::from(odd)];
        text(group.all_gather(&own, &mut vec![0; own.len() * group.world_size() as usize]))
    }),
    ("type of a varying all-gather", |group, odd| {
        text(if odd {
            group.all_gather_varying(vec![1u32]).map(drop)
        } else {
            group.all_gather_varying(vec![1i32]).map(drop)
        })
    }),
    ("dimension", |group, odd| {
        text(group.sparse_all_gather(sparse(4 + usize::from(odd)).view(), 2).map(drop))
    }),
    ("limit", |group, odd| text(group.sparse_all_gather(sparse(4).view(), 1 + usize::from(odd)).map(drop))),
    ("limit of top-k", |group, odd| {
        text(group.topk_all_reduce(sparse(4).view(), 1 + usize::from(odd)).map(drop))
    }),
    ("k of gTop-k", |group, odd| {
        text(group.gtopk_all_reduce(sparse(4).view(), 1 + usize::from(odd), PutBack::Conserving).map(drop))
    }),
    ("rule of gTop-k", |group, odd| {
        let rule = if odd { PutBack::MergerKeeps } else { PutBack::Conserving };
        text(group.gtopk_all_reduce(sparse(4).view(), 2, rule).map(drop))
    }),
    ("rank of a low-rank state", |group, odd| low_rank(group, [4, 6], 1 + usize::from(odd))),
    ("shape of a low-rank state", |group, odd| low_rank(group, if odd { [6, 4] } else { [4, 6] }, 1)),
    ("split", |group, odd| text(if odd { group.duplicate().map(drop) } else { group.barrier() })),
    ("a call more", |group, odd| {
        text(if odd { group.broadcast(&mut [1.0f32; 3], group.rank()) } else { Ok(()) })
    }),
    ("a call less", |group, odd| {
        text(if odd { Ok(()) } else { group.all_reduce(&mut [1.0f32; 3], ReduceOp::Sum) })
    }),
    ("name of a tensor", |group, odd| exchange(group, if odd { "b" } else { "a" }, 64, Policy::dense())),
    ("length of a tensor", |group, odd| exchange(group, "a", 64 + usize::from(odd), Policy::dense())),
    ("policy", |group, odd| exchange(group, "a", 64, if odd { Policy::dense() } else { Policy::topk(0.5) })),
    ("density", |group, odd| exchange(group, "a", 64, Policy::topk(if odd { 0.25 } else { 0.5 }))),
    ("order of exchanges", |group, odd| {
        let build = || GradientExchange::builder(group).tensor("a", [64], Policy::topk(0.5)).build();
        let mut exchanges =
            [build().map_err(|error| error.to_string())?, build().map_err(|error| error.to_string())?];
        exchanges[usize::from(odd)].average(&mut [vec![1.0f32; 64]]).map_err(|error| error.to_string())
    }),
    ("an exchange more", |group, odd| {
        if odd {
            let _ = GradientExchange::builder(group).tensor("x", [3], Policy::dense()).build();
        }
        exchange(group, "a", 64, Policy::topk(0.5))
    }),
];

/// A reduction of the program.
fn first_of<T: Pod>(name: &str) -> Reduction<T> {
    Reduction::new(name, |_: &mut [T], _: &[T]| Ok(()))
}

fn text<T>(result: Result<T, Error>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

fn sparse(dim: usize) -> SparseVec {
    let mut dense = vec![0.0; dim];
    dense[1] = 3.0;
    suite::sparse(&dense, 1)
}

fn exchange(group: &Group, name: &str, length: usize, policy: Policy) -> Result<(), String> {
    let built = GradientExchange::builder(group).tensor(name, [length], policy).build();
    let average = |mut exchange: GradientExchange| exchange.average(&mut [vec![1.0f32; length]]);
    built.and_then(average).map_err(|error| error.to_string())
}

fn low_rank(group: &Group, [rows, columns]: [usize; 2], rank: usize) -> Result<(), String> {
    let mut batch = Batch::new(vec![LowRank::new(rows, columns, rank, 1).unwrap()]);
    text(group.low_rank_all_reduce(&mut batch, &[&vec![1.0; rows * columns]]).map(drop))
}

/// Each call on a group of its own, each rank being odd once. Returns how often the text did not say which
/// call differs.
fn differ(group: &Group) -> u32 {
    let mut untold = 0;
    for (what, call) in CALLS {
        for odd in 0..group.world_size() {
            let part = group.duplicate().unwrap();
            let start = Instant::now();
            let first = call(&part, part.rank() == odd);
            let last = text(part.all_reduce(&mut [1.0f32], ReduceOp::Sum));
            let Err(error) = first.and(last) else { panic!("{what}: nobody has found it") };
            let is_right = error.contains("do all ranks make the same calls");
            assert!(is_right, "{what}, rank {odd} is odd, rank {}: {error}", group.rank());
            untold += u32::from(!error.contains("different calls: "));
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: before the deadline");
            let mut others = [1u32];
            group.all_reduce(&mut others, ReduceOp::Sum).unwrap();
            assert_eq!(others, [group.world_size()], "the other group goes on");
        }
    }
    untold
}

/// A rank that is out of its call for half a second under load can't be asked.
fn nearly_all_are_told(world_size: u32, untold: &[u32]) {
    let all = CALLS.len() as u32 * world_size;
    assert!(untold.iter().all(|untold| *untold <= all / 4), "{untold:?} of {all} not told");
}

on_every_wire! {
    all_find_out => |wire: Wire| {
        for world_size in [2, 4] {
            let untold = on_transports(wire.world(world_size), differ);
            nearly_all_are_told(world_size, &untold);
        }
    };
}

#[test]
fn all_find_out_over_slots() {
    for world_size in [2, 4] {
        let here = LocalGroup::in_process(world_size).unwrap().into_iter();
        let ranks = boxed(local::world(world_size)).into_iter().zip(here);
        let open =
            |(transport, here)| Group::opened(Opened::in_process(transport, Some(here)), Settings::default());
        nearly_all_are_told(world_size, &on_groups(ranks.map(open).collect(), differ));
    }
}

/// Groups that are not joined have the settings that they are made with: ranks whose algorithms could differ
/// find out in their first call.
#[test]
fn other_plans_are_found_in_the_first_call() {
    let machine = Machine { reduce: 0.2e-9, ..Machine::default() };
    for other in [
        Settings { machine: Some(machine), ..Settings::default() },
        Settings { any_order: true, ..Settings::default() },
        Settings { segment_bytes: 4096, ..Settings::default() },
        Settings { wishes: "all-reduce:ring".parse().unwrap(), ..Settings::default() },
    ] {
        let open =
            |(rank, transport)| Group::new(transport, if rank == 1 { other } else { Settings::default() });
        let groups: Vec<Group> = (0..).zip(boxed(local::world(2))).map(open).collect();
        let errors = on_groups(groups, |group| group.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap_err());
        for error in errors {
            let is_found = matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
            assert!(is_found, "{error} with {other:?}");
        }
    }
    let placed = |hosts: [u32; 2]| {
        move |transport| {
            Group::opened(Opened::in_process(transport, None).with_hosts(&hosts), Settings::default())
        }
    };
    let mut ranks = boxed(local::world(2)).into_iter();
    let groups = [[0, 0], [0, 1]].map(|hosts| placed(hosts)(ranks.next().unwrap()));
    let errors = on_groups(groups.into(), |group| group.barrier().unwrap_err());
    assert!(errors.iter().all(|error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. })));
}
