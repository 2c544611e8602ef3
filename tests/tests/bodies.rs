//! Bodies of calls that not all ranks can go on with: nobody waits for those that can't.

use std::time::{Duration, Instant};

use brevity::collectives::dense::{AllReduce, AllToAll, Broadcast, Lengths};
use brevity::collectives::low_rank::low_rank_all_reduce;
use brevity::collectives::{Buffers, Call, Chunk, Description, Error, Memory, Operation, Result};
use brevity::compress::SparseVec;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::{Group, ReduceOp, Settings};
use brevity_tests::on_host;

use crate::dense::{in_segments, on_hosts_with_slots};

/// Less than the timeout, for which a rank waits that is not told.
const SOON: Duration = Duration::from_secs(20);

fn body() -> Description {
    Description::new(Operation::MESSAGE, 0, 0)
}

/// Slots are wished for where only two of three ranks have them, those of one of two hosts.
#[test]
fn all_ranks_decide_alike_whether_a_wish_for_slots_is_heard() {
    let settings = Settings { wishes: "all-reduce:slots".parse().unwrap(), ..in_segments(4096) };
    let sums = on_hosts_with_slots(&[0, 0, 1], settings, |group| {
        let started = Instant::now();
        let sum: Result<Vec<f32>> = group.run_in_order(body(), async |call| {
            let data = Chunk::from(vec![1.0_f32; 100]);
            Ok(call.run_in_place(&AllReduce::new::<f32>(ReduceOp::Sum)?, data).await?.into_vec())
        });
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
        sum.unwrap()
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 3.0));
}

/// What rank 1 of two hands to a collective in a body is refused there.
fn rank_1_is_refused(what: impl AsyncFn(&Call<'_, '_>) -> Result<()> + Clone + Send + 'static) {
    on_host(2, Settings { timeout: 5 * SOON, ..Settings::default() }, move |group| {
        let started = Instant::now();
        let ended = group.run(body(), async |call| what(call).await);
        match group.rank() {
            1 => assert!(matches!(ended, Err(Error::Length { .. })), "{ended:?}"),
            _ => assert!(matches!(&ended, Err(Error::Aborted { rank }) if rank.0 == 1), "{ended:?}"),
        }
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    });
}

#[test]
fn a_rank_that_is_refused_in_a_body_leaves_it() {
    rank_1_is_refused(async |call| {
        let input = Some(&[0_u8; 20][..20 - 4 * call.rank() as usize]);
        let memory = Memory { input, output: Chunk::from(vec![0_f32; 5]).cast() };
        call.run(&Broadcast::new::<f32>(1), memory).await.map(drop)
    });
    rank_1_is_refused(async |call| {
        let mut batch = Batch::new(vec![LowRank::new(4, 5, 2, 1)?]);
        let matrix = vec![1.0; 20 - call.rank() as usize];
        low_rank_all_reduce(call, &mut batch, &[&matrix], &[0]).await.map(drop)
    });
}

/// Receivers would understand equal lengths beside listed ones in different ways.
#[test]
fn an_all_to_all_with_a_list_on_one_side_is_refused() {
    let group = Group::solo();
    for (sent, received) in [(Lengths::Equal, Lengths::each(&[3])), (Lengths::each(&[3]), Lengths::Equal)] {
        let (input, mut output) = ([0_u8; 3], [0_u8; 3]);
        let memory = Buffers { input: Some(&input), output: &mut output };
        let refused = group.call(&AllToAll::new::<u8>(sent, received), memory).unwrap_err();
        assert!(refused.to_string().contains("list both or neither"), "{refused}");
    }
    group.barrier().unwrap();
}

/// A vector whose indices have no room is refused before others know of the call.
#[test]
fn a_sparse_vector_that_is_too_long_leaves_the_group_open() {
    let group = Group::solo();
    let refused = group.sparse_all_gather(SparseVec::new((1 << 32) + 1).view(), 0).unwrap_err();
    assert!(matches!(refused, Error::Compress(_)), "{refused}");
    group.barrier().unwrap();
}
