//! One of several ranks lies in an Ok-Topk all-reduce: the others must get valid results, or errors that name
//! it.

use std::time::Duration;

use brevity_compress::SparseVec;
use brevity_compress::generator::Generator;
use brevity_compress::quantise::Values;
use ucx_sys_wrap::sim::{Cluster, Links, run};

use crate::error::{Error, Result};
use crate::group::{Group, Settings};
use crate::sparse::ok_topk::lies::{Lies, lie};
use crate::sparse::{Coder, OkTopk, OkTopkSum, Wire, describe_ok_topk};

const DIM: usize = 200;
const K: usize = 12;

/// What a rank gets.
enum Outcome {
    Honest(Result<OkTopkSum>),
    /// Whether it has changed what other ranks have sent.
    Liar(bool),
}

/// The first four bytes select the number of ranks, the one that lies, how entries are written, and in which
/// step. The others are its lies.
pub fn ok_topk_lies(data: &[u8]) {
    outcomes(data);
}

/// How many honest ranks have a result, and how many an error.
fn outcomes(data: &[u8]) -> (usize, usize) {
    let Some((&[ranks, liar, format, step], lies)) = data.split_first_chunk() else { return (0, 0) };
    let world_size = 5 + u32::from(ranks % 4);
    let liar = u32::from(liar) % world_size;
    let wire = match format % 4 {
        0 | 1 => Wire::Pairs,
        2 => Wire::Coded(Values::F32),
        _ => Wire::Coded(Values::Bf16),
    };
    let outcomes = run(Cluster::new(world_size, Links::new(1e-6, 1e-9)), |transport| {
        let settings = Settings { timeout: Duration::from_secs(60), ..Settings::default() };
        let group = Group::new(transport, settings);
        let lies = (group.rank() == liar).then(|| Lies::new(lies));
        part(group, wire, u64::from(step % 3), lies)
    });
    let Ok(outcomes) = outcomes else { unreachable!("the simulated network fails: {:?}", outcomes.err()) };
    check(liar, &outcomes)
}

/// The entries of a rank in a step.
fn entries(rank: u32, step: u64) -> Result<SparseVec> {
    let mut generator = Generator::for_stream(u64::from(rank), step);
    let mut indices: Vec<u32> = (0..K).map(|_| generator.below(DIM as u64) as u32).collect();
    indices.sort_unstable();
    indices.dedup();
    let values = indices.iter().map(|_| generator.normal()).collect();
    Ok(SparseVec::from_parts(DIM, indices, values)?)
}

/// Some steps as they should be, and one more.
async fn part(group: Group, wire: Wire, steps: u64, lies: Option<Lies>) -> Outcome {
    let mut state = OkTopk::new(DIM, K, group.world_size());
    for step in 0..steps {
        let local = match entries(group.rank(), step) {
            Ok(local) => local,
            Err(error) => return Outcome::Honest(Err(error)),
        };
        let (call, outcome) = group.start_ok_topk_all_reduce(local, state, Coder::new(wire)).await;
        if outcome.is_err() {
            return Outcome::Honest(outcome);
        }
        state = call.state;
    }
    let local = match entries(group.rank(), steps) {
        Ok(local) => local,
        Err(error) => return Outcome::Honest(Err(error)),
    };
    let Some(lies) = lies else {
        return Outcome::Honest(group.start_ok_topk_all_reduce(local, state, Coder::new(wire)).await.1);
    };
    let description = describe_ok_topk(&state, wire);
    let started = group.start(description, (local, state, Coder::new(wire), lies), |call, given| {
        Box::pin(async move {
            let (local, state, coder, lies) = given;
            lie(call, local.view(), state, coder, lies).await
        })
    });
    let ((.., lies), _) = started.await;
    Outcome::Liar(lies.has_passed_on)
}

/// Checks what honest ranks have.
fn check(liar: u32, outcomes: &[Outcome]) -> (usize, usize) {
    let has_passed_on = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Liar(true)));
    let (mut sums, mut errors) = (0, Vec::new());
    for outcome in outcomes {
        match outcome {
            Outcome::Honest(Ok(OkTopkSum { result, put_back })) => {
                assert!(result.len() <= 2 * K && result.values().iter().all(|value| value.is_finite()));
                for vector in [result, put_back] {
                    assert!(vector.dim() == DIM && vector.indices().is_sorted_by(|a, b| a < b));
                    assert!(vector.indices().iter().all(|index| (*index as usize) < DIM), "{vector:?}");
                }
                sums += 1;
            }
            Outcome::Honest(Err(error)) => errors.push(error),
            Outcome::Liar(_) => {}
        }
    }
    let is_late = |error: &&&Error| matches!(error, Error::Timeout { .. });
    assert!(!errors.iter().any(|error| is_late(&error)), "{errors:?}");
    // All ranks hear of values that are not finite. Other errors are the liar's fault, who is named by
    // whoever finds it out, unless it has passed on the vectors of others with faults of its own.
    let is_poison = |error: &&&Error| matches!(error, Error::NonFinite { .. } | Error::Overflow { .. });
    let names = |error: &&&Error| error.to_string().contains(&format!("rank {liar}"));
    let is_told = errors.iter().all(|error| is_poison(&error)) || errors.iter().any(|error| names(&error));
    assert!(is_told || has_passed_on, "nobody names rank {liar}: {errors:?}");
    (sums, errors.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_lies_all_ranks_have_sums() {
        for ranks in 0..4 {
            for format in 1..4 {
                for step in 0..3 {
                    let world_size = 5 + usize::from(ranks);
                    assert_eq!(outcomes(&[ranks, 3, format, step]), (world_size - 1, 0));
                }
            }
        }
    }

    /// Each stage alone: the others stay as they should be.
    #[test]
    fn a_lie_in_any_stage_does_no_harm() {
        let mut generator = Generator::new(7);
        let (mut sums, mut errors) = (0, 0);
        for seed in 0..600 {
            let mut data: Vec<u8> = (0..4).map(|_| generator.next_u64() as u8).collect();
            // Even bytes are the truth.
            data.extend(std::iter::repeat_n(0, seed % 12));
            data.push(1);
            data.extend((0..60).map(|_| generator.next_u64() as u8));
            let found = outcomes(&data);
            (sums, errors) = (sums + found.0, errors + found.1);
        }
        println!("{sums} sums, {errors} errors");
        assert!(sums > 100 && errors > 500, "{sums} sums, {errors} errors");
    }

    #[test]
    fn the_corpus_does_no_harm() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/ok_topk_lies");
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "{} is empty", folder.display());
        files.iter().for_each(|file| ok_topk_lies(&std::fs::read(file).unwrap()));
    }

    #[test]
    fn lies_everywhere_do_no_harm() {
        let mut generator = Generator::new(8);
        for _ in 0..600 {
            let data: Vec<u8> = (0..400).map(|_| generator.next_u64() as u8).collect();
            outcomes(&data);
        }
    }
}
