//! Collectives and their blocking and non-blocking forms, on ranks that are threads.

use brevity::ReduceOp;
use brevity_tests::suite::{self, COUNTS, WORLD_SIZES, vectors};
use brevity_tests::{on_local, oracle};

fn for_all_worlds(body: impl Fn(u32, usize)) {
    for world_size in WORLD_SIZES {
        for count in COUNTS {
            body(world_size, count);
        }
    }
}

#[test]
fn every_collective_matches_its_oracle() {
    for_all_worlds(|world_size, count| {
        on_local(world_size, move |group| {
            group.run(suite::description(), async |call| suite::run(call, count).await)
        });
    });
}

#[test]
fn averages_and_extremes() {
    for_all_worlds(|world_size, count| {
        let all = vectors(world_size, count);
        let results = on_local(world_size, move |group| {
            [ReduceOp::Average, ReduceOp::Max, ReduceOp::Min].map(|reduction| {
                let mut data = oracle::vector(group.rank(), count);
                group.all_reduce(&mut data, reduction).unwrap();
                data
            })
        });
        let fold = |pick: fn(f32, f32) -> f32| -> Vec<f32> {
            (0..count).map(|i| all.iter().map(|vector| vector[i]).reduce(pick).unwrap()).collect()
        };
        let average: Vec<f32> = oracle::sum(&all).iter().map(|sum| sum / world_size as f32).collect();
        for result in results {
            assert_eq!(result, [average.clone(), fold(f32::max), fold(f32::min)]);
        }
    });
}

#[test]
fn broadcast_reaches_all_from_any_root() {
    for_all_worlds(|world_size, count| {
        for root in 0..world_size {
            let results = on_local(world_size, move |group| {
                let mut data = oracle::vector(group.rank(), count);
                group.broadcast(&mut data, root).unwrap();
                data
            });
            assert!(results.iter().all(|result| *result == oracle::vector(root, count)));
        }
    });
}

#[test]
fn gathering_keeps_rank_order() {
    for_all_worlds(|world_size, count| {
        let equal = vectors(world_size, count).concat();
        let varying: Vec<_> =
            (0..world_size).map(|rank| oracle::vector(rank, count * rank as usize)).collect();
        let results = on_local(world_size, move |group| {
            let mut all = vec![0.0; count * group.world_size() as usize];
            group.all_gather(&oracle::vector(group.rank(), count), &mut all).unwrap();
            let own = oracle::vector(group.rank(), count * group.rank() as usize);
            (all, group.all_gather_varying(own).unwrap())
        });
        for result in results {
            assert_eq!(result, (equal.clone(), varying.clone()));
        }
    });
}

#[test]
fn barriers_hold() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    for world_size in WORLD_SIZES {
        let arrived = Arc::new(AtomicU32::new(0));
        on_local(world_size, move |group| {
            for round in 1..=20 {
                arrived.fetch_add(1, Ordering::SeqCst);
                group.barrier().unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= round * group.world_size());
            }
        });
    }
}

#[test]
fn handles_run_side_by_side() {
    let results = on_local(4, |group| {
        let first = group.start_all_reduce(oracle::vector(group.rank(), 1000), ReduceOp::Sum);
        let second = group.start_all_reduce(vec![group.rank() as u64; 3], ReduceOp::Max);
        // Waited for in another order than started, and differently on each rank.
        if group.rank() % 2 == 0 {
            let (second, first) = (second.wait(), first.wait());
            (first, second)
        } else {
            (first.wait(), second.wait())
        }
    });
    let expected = oracle::sum(&vectors(4, 1000));
    for ((sum, first), (max, second)) in results {
        first.unwrap();
        second.unwrap();
        assert_eq!(sum, expected);
        assert_eq!(max, [3, 3, 3]);
    }
}

#[test]
fn a_dropped_handle_leaves_the_peers_theirs() {
    let results = on_local(3, |group| {
        let handle = group.start_all_reduce(oracle::vector(group.rank(), 100_000), ReduceOp::Sum);
        if group.rank() == 1 {
            drop(handle);
            group.barrier().unwrap();
            return Vec::new();
        }
        let (sum, result) = handle.wait();
        result.unwrap();
        group.barrier().unwrap();
        sum
    });
    assert_eq!(results[0], oracle::sum(&vectors(3, 100_000)));
    assert_eq!(results[2], results[0]);
}

#[test]
fn different_calls_are_found_out() {
    use brevity::collectives::Error;
    let results = on_local(2, |group| {
        let mut data = vec![0.0f32; if group.rank() == 0 { 4 } else { 5 }];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err()
    });
    let mut mismatches = 0;
    for (rank, error) in results.into_iter().enumerate() {
        match &error {
            Error::Mismatch { rank: peer, .. } => {
                mismatches += 1;
                assert_eq!(peer.index(), 1 - rank);
                assert!(error.to_string().contains("all-reduce of 4 f32 (sum)"), "{error}");
                assert!(error.to_string().contains("all-reduce of 5 f32 (sum)"), "{error}");
            }
            // The other rank has noticed first.
            Error::Differs { rank: peer, .. } => assert_eq!(peer.index(), 1 - rank),
            other => panic!("{other}"),
        }
    }
    assert!(mismatches >= 1);
}

#[test]
fn one_rank_that_calls_something_else_is_found_out_by_the_first_messages() {
    use brevity::collectives::Error;
    // Sizes for which one algorithm or the other is chosen; calls may take five minutes.
    for (world_size, count) in [(2, 4), (3, 4), (4, 4), (5, 4), (6, 4), (7, 4), (8, 4), (3, 1_000_000)] {
        for (stray, calls_barrier) in (0..world_size).flat_map(|rank| [(rank, true), (rank, false)]) {
            let errors = on_local(world_size, move |group| {
                let result = if (group.rank() == stray) == calls_barrier {
                    group.barrier()
                } else {
                    group.all_reduce(&mut vec![0.0f32; count], ReduceOp::Sum)
                };
                // Some ranks may have finished before the failure was noticed: their next call fails.
                result.err().unwrap_or_else(|| group.barrier().unwrap_err())
            });
            let is_right = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
            assert!(errors.iter().all(is_right), "P = {world_size}, rank {stray}: {errors:?}");
            assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
        }
    }
}

/// Each rank in turn is the odd one. The next call fails on ranks that had ended theirs.
#[test]
fn limits_and_rules_that_differ_are_found_out() {
    use brevity::collectives::Error;
    use brevity::{Group, PutBack};
    type Sparse = fn(&Group, bool) -> Result<(), Error>;
    fn local() -> brevity::compress::SparseVec {
        suite::sparse(&[0.0, 3.0, 0.0, 5.0], 1)
    }
    let calls: [(&str, Sparse); 4] = [
        ("conserving", |group, odd| {
            let rule = if odd { PutBack::MergerKeeps } else { PutBack::Conserving };
            group.gtopk_all_reduce(local().view(), 1, rule).map(drop)
        }),
        ("at most 1 entries", |group, odd| {
            group.gtopk_all_reduce(local().view(), 1 + usize::from(odd), PutBack::Conserving).map(drop)
        }),
        ("at most 1 entries", |group, odd| {
            group.topk_all_reduce(local().view(), 1 + usize::from(odd)).map(drop)
        }),
        ("at most 1 entries", |group, odd| {
            group.sparse_all_gather(local().view(), 1 + usize::from(odd)).map(drop)
        }),
    ];
    for (words, call) in calls {
        for (world_size, odd) in [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)] {
            let errors = on_local(world_size, move |group| {
                let outcome = call(group, group.rank() == odd);
                outcome.err().unwrap_or_else(|| group.barrier().unwrap_err())
            });
            let is_named = |error: &Error| matches!(error, Error::Mismatch { .. });
            let is_end = |error: &Error| matches!(error, Error::Differs { .. });
            assert!(errors.iter().all(|error| is_named(error) || is_end(error)), "{errors:?}");
            let named = errors.iter().filter(|error| is_named(error)).map(Error::to_string);
            assert!(
                named.clone().count() > 0 && named.clone().all(|text| text.contains(words)),
                "{errors:?}"
            );
        }
    }
}

#[test]
fn a_rank_that_breaks_the_rules_keeps_nobody_waiting() {
    use brevity::collectives::Error;
    use brevity::collectives::sparse::{Coder, Wire, describe_gtopk, gtopk_all_reduce};
    // Rank 1 sends more entries than it says and the others allow; the call may take five minutes.
    let rule = brevity::PutBack::Conserving;
    let errors = on_local(4, move |group| {
        let k = if group.rank() == 1 { 500 } else { 5 };
        let local = suite::sparse(&oracle::vector(group.rank(), 1000), k);
        let call = group.start(describe_gtopk(1000, 5, rule, Wire::Pairs), local, move |call, local| {
            Box::pin(async move {
                gtopk_all_reduce(call, local.view(), k, rule, &mut Coder::pairs(), 0).await.map(drop)
            })
        });
        call.wait().1.unwrap_err()
    });
    assert!(
        matches!(&errors[0], Error::Transport(cause) if cause.to_string().contains("rank 1 sent")),
        "{errors:?}"
    );
    assert!(
        errors[1..].iter().all(|error| matches!(error, Error::Aborted { rank } if rank.0 == 0)),
        "{errors:?}"
    );
}

#[test]
fn a_limit_above_the_length_is_the_length() {
    on_local(2, |group| {
        let local = suite::sparse(&oracle::vector(group.rank(), 10), 10);
        let gathered = group.sparse_all_gather(local.view(), usize::MAX).unwrap();
        let total = group.topk_all_reduce(local.view(), usize::MAX).unwrap();
        let top = group.gtopk_all_reduce(local.view(), usize::MAX, brevity::PutBack::Conserving).unwrap();
        assert_eq!(gathered[group.rank() as usize], local);
        assert_eq!(top.result.to_dense(), total.to_dense());
    });
}
