//! Collectives on a simulated network: many ranks, virtual time, and mass over several steps.

use brevity::collectives::sparse::{Coder, Wire, describe_gtopk, gtopk_all_reduce};
use brevity::compress::SparseVec;
use brevity::compress::feedback::Residual;
use brevity::compress::select::TopKScratch;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, PutBack, ReduceOp, Settings};
use brevity_tests::oracle;
use brevity_tests::suite::{self, COUNTS, WORLD_SIZES, vectors};

/// Gigabit Ethernet as in the gTop-k paper: 0.436 ms a message, 9 ns a byte.
fn ethernet() -> Links {
    Links::new(0.436e-3, 9e-9)
}

fn on_sim<R, F>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    let cluster = Cluster::new(world_size, ethernet());
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

#[test]
fn every_collective_matches_its_oracle() {
    for world_size in WORLD_SIZES {
        for count in COUNTS {
            on_sim(world_size, |group| async move {
                group
                    .start(suite::description(), (), move |call, ()| {
                        Box::pin(async move { suite::run(call, count).await })
                    })
                    .await
            });
        }
    }
}

#[test]
fn two_hundred_and_fifty_six_ranks() {
    let expected = oracle::sum(&vectors(256, 1000));
    let sums = on_sim(256, |group| async move {
        let (sum, result) = group.start_all_reduce(oracle::vector(group.rank(), 1000), ReduceOp::Sum).await;
        result.unwrap();
        let (_, gathered) = group
            .start(suite::description(), group.rank(), |call, rank| {
                Box::pin(async move {
                    let own = suite::sparse(&oracle::vector(*rank, 1000), 10);
                    gtopk_all_reduce(call, own.view(), 10, PutBack::Conserving, &mut Coder::pairs(), 0).await
                })
            })
            .await;
        (sum, gathered.unwrap().result)
    });
    let tops = vectors(256, 1000).iter().map(|vector| oracle::top_k(vector, 10)).collect();
    let top = oracle::gtopk(tops, 10);
    for (sum, result) in &sums {
        assert_eq!(*sum, expected);
        assert!(result.iter().eq(top.iter().map(|(&i, &v)| (i, v))));
    }
}

/// The state of one rank of the mass test from step to step.
struct Accounts {
    rank: u32,
    residual: Residual,
    delivered: Vec<f32>,
}

const COUNT: usize = 2000;
const K: usize = 20;
const STEPS: u32 = 6;

#[test]
fn gtopk_conserves_mass_over_steps_for_up_to_64_ranks() {
    for world_size in [1, 2, 3, 5, 8, 13, 16, 31, 64] {
        for rule in [PutBack::Conserving, PutBack::MergerKeeps] {
            let accounts = account(world_size, rule);
            let put_in: Vec<_> = (0..world_size)
                .flat_map(|rank| (0..STEPS).map(move |step| oracle::vector(rank + 1000 * step, COUNT)))
                .collect();
            let mut parts: Vec<_> = accounts.iter().map(|rank| rank.residual.values().to_vec()).collect();
            parts.push(accounts[0].delivered.clone());
            assert_eq!(oracle::sum(&parts), oracle::sum(&put_in), "{rule:?}, P = {world_size}");
        }
    }
}

#[test]
fn the_published_rule_loses_mass() {
    let accounts = account(16, PutBack::Published);
    let put_in: Vec<_> = (0..16)
        .flat_map(|rank| (0..STEPS).map(move |step| oracle::vector(rank + 1000 * step, COUNT)))
        .collect();
    let mut parts: Vec<_> = accounts.iter().map(|rank| rank.residual.values().to_vec()).collect();
    parts.push(accounts[0].delivered.clone());
    assert_ne!(
        oracle::sum(&parts),
        oracle::sum(&put_in),
        "nothing was lost: is the option still the published rule?"
    );
}

/// Runs gTop-k with feedback for some steps.
fn account(world_size: u32, rule: PutBack) -> Vec<Accounts> {
    on_sim(world_size, |group| async move {
        let accounts =
            Accounts { rank: group.rank(), residual: Residual::new(COUNT), delivered: vec![0.0; COUNT] };
        let (accounts, ()) = group
            .start(describe_gtopk(COUNT, K, rule, Wire::Pairs), accounts, move |call, accounts| {
                Box::pin(async move {
                    let (mut selected, mut scratch) = (SparseVec::new(COUNT), TopKScratch::new());
                    for step in 0..STEPS {
                        let Accounts { rank, residual, delivered } = accounts;
                        residual.accumulate(&oracle::vector(*rank + 1000 * step, COUNT)).unwrap();
                        residual.select(K, &mut selected, &mut scratch).unwrap();
                        let mut pairs = Coder::pairs();
                        let outcome =
                            gtopk_all_reduce(call, selected.view(), K, rule, &mut pairs, 0).await.unwrap();
                        residual.put_back(outcome.put_back.view()).unwrap();
                        outcome.result.add_to(delivered);
                    }
                })
            })
            .await;
        accounts
    })
}
