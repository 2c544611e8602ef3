//! Barriers over the memory that ranks of one host share; ranks are threads, each with its own mapping.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use brevity::collectives::{Algorithm, Error, Operation, Result};
use brevity::transport::Rank;
use brevity::{Group, ReduceOp, Settings};
use brevity_tests::on_host;

const ROUNDS: u32 = 100;

/// Blocking and started.
const FORMS: [fn(&Group) -> Result<()>; 2] = [Group::barrier, |group| group.start_barrier().wait().1];

/// The errors of all ranks except the last, which does `other` and drops its group.
fn errors(settings: Settings, call: fn(&Group) -> Result<()>, other: fn(&Group)) -> Vec<Error> {
    let mut results = on_host(3, settings, move |group| {
        if group.rank() == 2 {
            other(group);
            return None;
        }
        call(group).err()
    });
    assert!(results.pop().is_some());
    results.into_iter().map(Option::unwrap).collect()
}

fn hasty() -> Settings {
    Settings { timeout: Duration::from_millis(300), ..Settings::default() }
}

/// Ranks come late in turn, so that the others wait by the slow path too. Nothing is sent.
#[test]
fn no_rank_leaves_before_all_have_come() {
    for world_size in 1..=5 {
        let arrived = Arc::new(AtomicU32::new(0));
        let sent = on_host(world_size, Settings::default(), move |group| {
            for round in 1..=ROUNDS {
                if round % 10 == 0 && round / 10 % world_size == group.rank() {
                    sleep(Duration::from_millis(2));
                }
                arrived.fetch_add(1, Ordering::SeqCst);
                FORMS[round as usize / 7 % 2](group).unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= round * world_size);
            }
            group.statistics().messages_sent
        });
        assert!(sent.iter().all(|sent| *sent == 0), "{sent:?}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    for call in FORMS {
        for error in errors(Settings::default(), call, |_| {}) {
            assert!(matches!(error, Error::PeerLost { rank: Rank(2) }), "{error}");
        }
        for error in errors(Settings::default(), call, Group::abort) {
            assert!(matches!(error, Error::Aborted { rank: Rank(2) }), "{error}");
        }
        let errors = errors(hasty(), call, |_| sleep(Duration::from_secs(2)));
        let is_named = |error: &Error| {
            let Error::Timeout { operation, rank, round: 0, .. } = error else { return false };
            *operation == Operation::BARRIER && *rank == Rank(2)
        };
        assert!(errors.iter().any(is_named), "{errors:?}");
        assert!(errors.iter().all(|error| matches!(error, Error::Timeout { .. })), "{errors:?}");
    }
}

#[test]
fn a_rank_that_calls_something_else_is_named() {
    let others: [fn(&Group) -> Result<()>; 3] = [
        |group| group.all_reduce(&mut [1.0f32], ReduceOp::Sum),
        |group| group.duplicate().map(drop),
        |group| group.start_broadcast(vec![1.0f32; 9], 0).wait().1,
    ];
    for (call, other) in FORMS.into_iter().flat_map(|call| others.map(|other| (call, other))) {
        let errors = on_host(3, Settings::default(), move |group| {
            (if group.rank() == 2 { other(group) } else { call(group) }).unwrap_err()
        });
        let names = |rank: usize| matches!(errors[rank], Error::Mismatch { rank: Rank(2), .. });
        assert!(names(0) || names(1) || matches!(errors[2], Error::Mismatch { .. }), "{errors:?}");
        let is_end = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().all(is_end), "{errors:?}");
    }
}

/// Barriers of a group and of its parts, and sums, started in the same order and waited for in another.
#[test]
fn barriers_keep_their_turn_among_other_calls() {
    for world_size in 1..=4 {
        on_host(world_size, Settings::default(), move |group| {
            let part = group.split(Some(group.rank() % 2), 0).unwrap().unwrap();
            for round in 0..30 {
                let count = [1, 700, 70_000][round as usize % 3];
                let start = |of: &Group| of.start_all_reduce(vec![1f32; count], ReduceOp::Sum);
                let (first, early, second) = (start(group), group.start_barrier(), start(group));
                let (of_part, sum_of_part) = (part.start_barrier(), start(&part));
                if (round + group.rank()) % 2 == 0 {
                    group.barrier().unwrap();
                    part.barrier().unwrap();
                } else {
                    group.start_barrier().wait().1.unwrap();
                    part.start_barrier().wait().1.unwrap();
                }
                assert!(early.test() && of_part.test(), "calls take their turns in order");
                for (sum, size) in
                    [(second, world_size), (sum_of_part, part.world_size()), (first, world_size)]
                {
                    let (data, result) = sum.wait();
                    result.unwrap();
                    assert!(data.iter().all(|sum| *sum == size as f32));
                }
                early.wait().1.unwrap();
                of_part.wait().1.unwrap();
            }
        });
    }
}

/// A barrier has no vectors: algorithms that are meant for these leave it as it is. Its own go by messages.
#[test]
fn a_barrier_heeds_only_its_own_algorithms() {
    let wished = Settings { wishes: "barrier:dissemination".parse().unwrap(), ..Settings::default() };
    for (settings, own) in [(Settings::default(), 0), (wished, 2)] {
        on_host(3, settings, move |group| {
            let count = |algorithm| {
                let before = group.statistics().messages_sent;
                let by = group.with_algorithm(algorithm);
                FORMS.map(|call| call(&by)).into_iter().collect::<Result<Vec<_>>>().unwrap();
                group.statistics().messages_sent - before
            };
            assert_eq!(count(None), 2 * own);
            assert_eq!(count(Some(Algorithm::Ring)), 2 * own);
            assert_eq!(count(Some(Algorithm::Dissemination)), 4, "two rounds each");
            let refused = group.with_algorithm(Some(Algorithm::Hosts)).barrier().unwrap_err();
            assert!(matches!(refused, Error::Algorithm { operation: Operation::BARRIER, .. }), "{refused}");
        });
    }
}
