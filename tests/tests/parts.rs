//! Parts of one call that run at the same time.

use brevity::collectives::engine::{join, join_all};
use brevity::collectives::low_rank::low_rank_all_reduce;
use brevity::collectives::sparse::{Coder, topk_all_reduce};
use brevity::collectives::{Call, Error, Result};
use brevity::compress::SparseVec;
use brevity::compress::low_rank::{Batch, Factors, LowRank};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};
use brevity_tests::{oracle, suite};

const SIDE: usize = 8;

/// The factors of the mean of all ranks' matrices, by part 0.
async fn low_rank(call: &Call<'_, '_>, rank: u32) -> Result<Factors> {
    let mut batch = Batch::new(vec![LowRank::new(SIDE, SIDE, 1, 7).unwrap()]);
    let matrix = oracle::vector(rank, SIDE * SIDE);
    low_rank_all_reduce(&call.part(0), &mut batch, &[&matrix], &[0]).await
}

/// The sum of sparse vectors, by part 1, which the last rank poisons.
async fn poisoned(call: &Call<'_, '_>, rank: u32) -> Result<SparseVec> {
    let part = call.part(1);
    let value = if rank + 1 == call.world_size() { f32::NAN } else { 1.0 };
    let own = SparseVec::from_parts(100, vec![rank], vec![value]).unwrap();
    let outcome = topk_all_reduce(&part, own.view(), 1, &mut Coder::pairs(), 0).await?;
    part.check_poison().map(|()| outcome.sum)
}

/// A rank that has heard of one part's poison goes on with the others: it must not leave another part early.
#[test]
fn what_poisons_a_part_does_not_end_another() {
    for world_size in [2, 3, 4, 7] {
        let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
        let ended = run(cluster, |transport| async move {
            let group = Group::new(transport, Settings::default());
            let call = group.start_with_parts(suite::description(), 2, group.rank(), |call, rank| {
                Box::pin(async move { join(low_rank(call, *rank), poisoned(call, *rank)).await })
            });
            let (factors, sum) = call.await.1;
            // The poison of a part is not one of the next call.
            group.start_barrier().await.1.unwrap();
            (factors.map(|factors| factors.q), sum)
        })
        .unwrap();
        let first = ended[0].0.as_ref().unwrap();
        for (factors, sum) in &ended {
            assert_eq!(factors.as_ref().unwrap(), first);
            let last = world_size - 1;
            assert!(matches!(sum, Err(Error::NonFinite { rank, tensor: 0 }) if rank.0 == last), "{sum:?}");
        }
    }
}

#[test]
fn any_number_of_parts_end_in_any_order() {
    const PARTS: u32 = 9;
    let cluster = Cluster::new(4, Links::new(1e-5, 1e-9));
    let sums = run(cluster, |transport| async move {
        let group = Group::new(transport, Settings::default());
        let own = SparseVec::from_parts(100, vec![group.rank()], vec![1.0]).unwrap();
        let call = group.start_with_parts(suite::description(), PARTS, own, |call, own| {
            Box::pin(async move {
                let own = own.view();
                // Some begin late on some ranks.
                let order = (0..PARTS).map(|index| (index * 2 + call.rank()) % PARTS);
                let parts = order.map(|index| async move {
                    let (part, mut coder) = (call.part(index), Coder::pairs());
                    topk_all_reduce(&part, own, 1, &mut coder, index).await.map(|outcome| outcome.sum)
                });
                join_all(parts).await.into_iter().collect::<Result<Vec<_>>>()
            })
        });
        call.await.1.unwrap()
    });
    let expected = SparseVec::from_parts(100, vec![0, 1, 2, 3], vec![1.0; 4]).unwrap();
    assert!(
        sums.unwrap()
            .iter()
            .all(|sums| sums.len() == PARTS as usize && sums.iter().all(|sum| *sum == expected))
    );
}
