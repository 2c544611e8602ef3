//! A refused call takes neither a number nor a turn at the slots: the rank mends it and makes it again.

use std::thread;
use std::time::Duration;

use brevity_compress::SparseVec;
use brevity_compress::low_rank::{Batch, LowRank};
use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::buffer::Pool;
use ucx_sys_wrap::local;
use ucx_sys_wrap::shm::LocalGroup;

use super::*;
use crate::data::ReduceOp;
use crate::error::Error;
use crate::group::Settings;

const SIDE: usize = 4;

/// Each call of a group that can refuse its arguments.
#[derive(Clone, Copy, Debug)]
enum Called {
    Broadcast,
    BroadcastTo,
    BroadcastShared,
    AllReduce,
    StartAllReduce,
    AllGather,
    SparseAllGather,
    Topk,
    Gtopk,
    StartGtopk,
    LowRank,
    LowRankList,
}

const ALL: [Called; 12] = [
    Called::Broadcast,
    Called::BroadcastTo,
    Called::BroadcastShared,
    Called::AllReduce,
    Called::StartAllReduce,
    Called::AllGather,
    Called::SparseAllGather,
    Called::Topk,
    Called::Gtopk,
    Called::StartGtopk,
    Called::LowRank,
    Called::LowRankList,
];

fn sparse() -> SparseVec {
    SparseVec::from_parts(SIDE, vec![0, 2], vec![1.0, 2.0]).unwrap()
}

/// Makes the call, with an argument that it refuses if `is_bad`.
fn make(group: &Group, called: Called, is_bad: bool) -> Result<()> {
    let sparse = sparse();
    let owned = sparse.clone();
    let local = owned.view();
    let limit = if is_bad { 1 } else { 2 };
    let root = if is_bad { 2 } else { 0 };
    let reduction = if is_bad { ReduceOp::Average } else { ReduceOp::Sum };
    let cut = usize::from(is_bad);
    match called {
        Called::Broadcast => group.broadcast(&mut [1, 2], root),
        // Only the root's input is looked at: rank 1 is the root.
        Called::BroadcastTo => group.broadcast_to(&[1, 2], &mut vec![0; 2 + cut], 1),
        Called::BroadcastShared => {
            let pool = Pool::new();
            group.broadcast_shared(pool.take::<f32>(SIDE).unwrap(), root).map(drop)
        }
        Called::AllReduce => group.all_reduce(&mut [1, 2], reduction),
        Called::StartAllReduce => group.start_all_reduce(vec![1, 2], reduction).wait().1,
        Called::AllGather => group.all_gather(&[1, 2], &mut vec![0; 4 - cut]),
        Called::SparseAllGather => group.sparse_all_gather(local, limit).map(drop),
        Called::Topk => group.topk_all_reduce(local, limit).map(drop),
        Called::Gtopk => group.gtopk_all_reduce(local, limit, PutBack::default()).map(drop),
        Called::StartGtopk => {
            let call = group.start_gtopk_all_reduce(sparse, limit, PutBack::default(), Coder::pairs());
            call.wait().1.map(drop)
        }
        Called::LowRank | Called::LowRankList => {
            let mut batch = Batch::new(vec![LowRank::new(SIDE, SIDE, 1, 7).unwrap()]);
            let matrix = [1.0; SIDE * SIDE];
            let matrices: &[&[f32]] = match called {
                Called::LowRankList if is_bad => &[],
                _ => &[&matrix[cut..]],
            };
            group.low_rank_all_reduce(&mut batch, matrices).map(drop)
        }
    }
}

fn groups(on_one_host: bool) -> Vec<Group> {
    let settings = Settings { timeout: Duration::from_secs(20), ..Settings::default() };
    let mut local_groups =
        LocalGroup::in_process(2).unwrap().into_iter().map(|group| on_one_host.then_some(group));
    let world = local::world(2).into_iter();
    world
        .map(|rank| {
            Group::opened(Opened::in_process(Box::new(rank), local_groups.next().flatten()), settings)
        })
        .collect()
}

fn a_refused_call_can_be_mended(on_one_host: bool) {
    let ranks = groups(on_one_host).into_iter().map(|group| {
        thread::spawn(move || {
            for called in ALL {
                if group.rank() == 1 {
                    let refused = make(&group, called, true).unwrap_err();
                    assert!(
                        matches!(
                            refused,
                            Error::Length { .. } | Error::NoSuchRoot { .. } | Error::Reduction { .. }
                        ),
                        "{called:?}: {refused}"
                    );
                }
                make(&group, called, false).unwrap_or_else(|error| panic!("{called:?}: {error}"));
            }
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn a_refused_call_over_messages_can_be_mended() {
    a_refused_call_can_be_mended(false);
}

#[test]
fn a_refused_call_over_slots_can_be_mended() {
    a_refused_call_can_be_mended(true);
}
