//! Ok-Topk all-reduces against a serial reference, on simulated networks.

mod reference;
mod volume;

use std::collections::BTreeMap;

use brevity::collectives::dense::{all_gather, all_reduce};
use brevity::collectives::sparse::{Coder, OkTopk, Periods, Wire, describe_ok_topk};
use brevity::collectives::{Call, Chunk, Error};
use brevity::compress::quantise::Values;
use brevity::compress::{SparseVec, state};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, ReduceOp, Settings};
use brevity_tests::{on_local, oracle};

use self::reference::Reference;

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];
const COUNT: usize = 300;
const K: usize = 20;
const STEPS: u32 = 6;
const PERIODS: Periods = Periods { local_threshold: 3, global_threshold: 4, partition: 2 };

/// How a test runs.
#[derive(Clone, Copy)]
struct Run {
    world_size: u32,
    count: usize,
    k: usize,
    wire: Wire,
    /// Whether each step begins with a state that was saved and loaded.
    reloads: bool,
    /// The scale of each step's gradients.
    scales: [f32; STEPS as usize],
    /// Whether the sum has entries at the first indices only, although each rank has others everywhere.
    is_skewed: bool,
}

impl Run {
    fn new(world_size: u32, count: usize, k: usize) -> Self {
        let scales = [1.0; STEPS as usize];
        Self { world_size, count, k, wire: Wire::Pairs, reloads: false, scales, is_skewed: false }
    }

    /// Integers times the scale of the step.
    fn gradient(&self, rank: u32, step: u32) -> Vec<f32> {
        if self.is_skewed {
            let sign = if rank.is_multiple_of(2) { 1.0 } else { -1.0 };
            let value = |index: usize| match index {
                0..5 => 70.0 + index as f32,
                8..288 if index % 8 == 7 => sign * 60.0,
                _ => 0.0,
            };
            return (0..self.count).map(value).collect();
        }
        let scale = self.scales[step as usize];
        oracle::vector(rank + 1000 * step, self.count).into_iter().map(|value| scale * value).collect()
    }

    fn state(&self) -> OkTopk {
        OkTopk::new(self.count, self.k, self.world_size).with_periods(PERIODS)
    }

    /// The steps of all ranks.
    fn steps(self) -> Vec<Vec<Step>> {
        let cluster = Cluster::new(self.world_size, Links::new(1e-5, 1e-9));
        run(cluster, |transport| self.steps_of(Group::new(transport, Settings::default()))).unwrap()
    }

    async fn steps_of(self, group: Group) -> Vec<Step> {
        let (mut state, mut coder) = (self.state(), Coder::new(self.wire));
        let mut residual = vec![0.0; self.count];
        let mut steps = Vec::new();
        for step in 0..STEPS {
            if self.reloads {
                let saved = state::to_bytes(&state);
                state = self.state();
                state::from_bytes(&mut state, &saved).unwrap();
            }
            let gradient = self.gradient(group.rank(), step);
            residual.iter_mut().zip(&gradient).for_each(|(residual, value)| *residual += value);
            let before = residual.clone();
            let mut local = SparseVec::new(self.count);
            state.select(&residual, &mut local).unwrap();
            let sent = local.len();
            local.indices().iter().for_each(|index| residual[*index as usize] = 0.0);
            let (call, outcome) = group.start_ok_topk_all_reduce(local, state, coder).await;
            let outcome = outcome.unwrap();
            (state, coder) = (call.state, call.coder);
            outcome.put_back.add_to(&mut residual);
            steps.push(Step { before, sent, result: outcome.result, residual: residual.clone() });
        }
        assert_eq!(state.step(), u64::from(STEPS));
        steps
    }
}

/// A step of one rank.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    /// The residual with the gradient.
    before: Vec<f32>,
    sent: usize,
    result: SparseVec,
    residual: Vec<f32>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

fn result_bits(result: &SparseVec) -> (&[u32], Vec<u32>) {
    (result.indices(), result.values().iter().map(|value| value.to_bits()).collect())
}

#[test]
fn results_and_residuals_are_those_of_the_serial_algorithm() {
    for world_size in WORLD_SIZES {
        for (count, k) in [(0, 0), (1, 1), (COUNT, 0), (COUNT, 1), (COUNT, K), (COUNT, COUNT)] {
            // Thirds, so that another order of sums has other bits.
            let case = Run { scales: [1.0 / 3.0; STEPS as usize], ..Run::new(world_size, count, k) };
            let ranks = case.steps();
            let mut reference = Reference::new(world_size, count, k, PERIODS);
            for step in 0..STEPS as usize {
                let gradients: Vec<_> =
                    (0..world_size).map(|rank| case.gradient(rank, step as u32)).collect();
                let expected = reference.step(&gradients);
                for (rank, steps) in ranks.iter().enumerate() {
                    let what = format!("rank {rank} of {world_size}, n = {count}, k = {k}, step {step}");
                    let Step { result, residual, .. } = &steps[step];
                    let found: BTreeMap<u32, f32> = result.iter().collect();
                    assert_eq!(found, expected, "{what}");
                    assert_eq!(result_bits(result), result_bits(&ranks[0][step].result), "{what}");
                    assert_eq!(bits(residual), bits(&reference.residuals()[rank]), "{what}");
                    assert!(result.len() <= 2 * k && steps[step].sent <= 2 * k, "{what}");
                }
            }
        }
    }
}

/// What all ranks had is the result and what they have: exactly where rounded integers are integers.
fn check_mass(case: Run) {
    let ranks = case.steps();
    let whole = [Values::F32, Values::F16, Values::Bf16].map(Wire::Coded);
    let most = if case.wire == Wire::Pairs || whole.contains(&case.wire) { 0.0 } else { 0.5 };
    for step in 0..STEPS as usize {
        let before: Vec<_> = ranks.iter().map(|steps| steps[step].before.clone()).collect();
        let mut after: Vec<_> = ranks.iter().map(|steps| steps[step].residual.clone()).collect();
        let result = &ranks[0][step].result;
        after.push(result.to_dense());
        let what = format!("{:?}, P = {}, k = {}, step {step}", case.wire, case.world_size, case.k);
        for (found, given) in oracle::sum(&after).iter().zip(oracle::sum(&before)) {
            assert!((found - given).abs() <= most, "{what}: {found} of {given}");
        }
        for steps in &ranks {
            assert_eq!(result_bits(&steps[step].result), result_bits(result), "{what}");
            assert!(steps[step].result.len() <= 2 * case.k && steps[step].sent <= 2 * case.k, "{what}");
        }
    }
}

#[test]
fn mass_is_conserved_on_every_wire() {
    for world_size in WORLD_SIZES {
        for wire in [Wire::Pairs, Wire::Coded(Values::F16), Wire::Coded(Values::EightBit)] {
            check_mass(Run { wire, ..Run::new(world_size, COUNT, K) });
        }
    }
    for (values, world_size) in
        Values::ALL.into_iter().flat_map(|values| [1, 3, 8].map(|size| (values, size)))
    {
        check_mass(Run { wire: Wire::Coded(values), ..Run::new(world_size, COUNT, K) });
    }
}

/// All of the sum is in the region of rank 0, because the rest of each rank's entries cancels: so sums move.
#[test]
fn sums_that_move_are_conserved() {
    for wire in [Wire::Pairs, Wire::Coded(Values::F32), Wire::Coded(Values::Bf16), Wire::Coded(Values::F16)] {
        for world_size in [6, 8] {
            let case = Run { wire, is_skewed: true, ..Run::new(world_size, COUNT, 2 * K) };
            check_mass(case);
            for step in case.steps().concat() {
                assert_eq!(step.result.indices(), [0, 1, 2, 3, 4], "{wire:?}, P = {world_size}");
            }
        }
    }
}

#[test]
fn thresholds_of_another_scale_lose_nothing_and_keep_few() {
    for (world_size, wire) in [1, 2, 5, 8]
        .into_iter()
        .flat_map(|size| [Wire::Pairs, Wire::Coded(Values::Bf16)].map(|wire| (size, wire)))
    {
        let case = Run { wire, ..Run::new(world_size, COUNT, K) };
        check_mass(Run { scales: [0.0, 1.0, 1024.0, 0.0, 0.0, 1.0], ..case });
        check_mass(Run { scales: [1024.0, 0.0, 1.0, 0.0, 1024.0, 0.0], ..case });
    }
    // So large and so small that a ladder around the last threshold says nothing.
    for steps in (Run { scales: [0.0, 1e-40, 1e30, 1e-30, 1e34, 0.0], ..Run::new(5, COUNT, K) }).steps() {
        let kept: Vec<usize> = steps.iter().map(|step| step.result.len()).collect();
        assert!(kept[0] == 0 && kept[1..].iter().all(|kept| (K / 2..=2 * K).contains(kept)), "{kept:?}");
    }
}

#[test]
fn a_loaded_state_goes_on_as_the_saved_one() {
    for wire in [Wire::Pairs, Wire::Coded(Values::EightBit)] {
        let case = Run { wire, ..Run::new(3, COUNT, K) };
        assert_eq!(Run { reloads: true, ..case }.steps(), case.steps(), "{wire:?}");
    }
    let saved = state::to_bytes(&OkTopk::new(9, 2, 3));
    for mut other in [OkTopk::new(8, 2, 3), OkTopk::new(9, 3, 3), OkTopk::new(9, 2, 4)] {
        let refused = state::from_bytes(&mut other, &saved).unwrap_err().to_string();
        assert!(refused.starts_with("saved state has shape [9, 2, 3, 32, 32, 64]"), "{refused}");
    }
}

#[test]
fn a_value_that_is_not_finite_is_the_same_error_everywhere_and_no_step() {
    let huge = (3, f32::MAX);
    for (world_size, entry) in
        [(1, (3, f32::INFINITY)), (2, (3, f32::NAN)), (5, (3, f32::INFINITY)), (5, huge)]
    {
        let found = on_local(world_size, move |group| {
            let is_last = group.rank() + 1 == group.world_size();
            let (index, value) = if is_last || entry == huge { entry } else { (1, 1.0) };
            let own = SparseVec::from_parts(9, vec![index], vec![value]).unwrap();
            let mut state = OkTopk::new(9, 1, group.world_size());
            let error = group.ok_topk_all_reduce(own.view(), &mut state).unwrap_err();
            let own = SparseVec::from_parts(9, vec![3], vec![1.0]).unwrap();
            let after = group.ok_topk_all_reduce(own.view(), &mut state).unwrap();
            (error, after.result.iter().collect::<Vec<_>>(), state.step())
        });
        for (error, after, step) in found {
            assert!(matches!(error, Error::NonFinite { tensor: 0, .. }), "{error}");
            assert!(after == [(3, world_size as f32)] && step == 1, "{after:?}, {step}");
        }
    }
}

#[test]
fn another_state_is_a_mismatch_or_refused() {
    let usual = || OkTopk::new(9, 2, 2);
    let others: [fn() -> OkTopk; 2] = [
        || OkTopk::new(9, 3, 2),
        || OkTopk::new(9, 2, 2).with_periods(Periods { partition: 5, ..Periods::default() }),
    ];
    for other in others {
        let errors = on_local(2, move |group| {
            let mut state = if group.rank() == 1 { other() } else { usual() };
            let own = SparseVec::new(9);
            let result = group.ok_topk_all_reduce(own.view(), &mut state);
            result.and_then(|_| group.barrier()).unwrap_err()
        });
        let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().any(is_told), "{errors:?}");
    }
    let group = Group::solo();
    let own = SparseVec::from_parts(9, vec![1, 2, 3], vec![1.0; 3]).unwrap();
    for mut state in [OkTopk::new(8, 4, 1), OkTopk::new(9, 1, 1), OkTopk::new(9, 4, 2)] {
        let refused = group.ok_topk_all_reduce(own.view(), &mut state).unwrap_err();
        assert!(matches!(refused, Error::Length { .. }), "{refused}");
    }
}

/// How far a rank takes part honestly, and what it says then.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Entries(&'static [u32]),
    Share([u64; 3]),
    Sums(&'static [u32]),
}

/// A rank that sends something else than it should. Its region is 5..10.
async fn lie(call: &Call<'_, '_>, lie: Lie) -> Result<(), Error> {
    let entries = |indices: &[u32]| (indices.to_vec(), vec![1.0_f32; indices.len()]);
    all_reduce(call, Chunk::from(vec![9_u64]), ReduceOp::Sum).await?;
    let first = if let Lie::Entries(indices) = lie { indices } else { &[] };
    let room = (vec![0_u32; 2], vec![0.0_f32; 2]);
    call.send(0, 0, entries(first)).await?;
    call.recv_up_to(0, 0, room).await?;
    all_reduce(call, Chunk::from(vec![0_u64; 32]), ReduceOp::Sum).await?;
    let own = if let Lie::Share(own) = lie { own } else { [0; 3] };
    all_gather(call, Chunk::from([[0; 3], own].concat())).await?;
    let last = if let Lie::Sums(indices) = lie { indices } else { &[] };
    call.send(0, 0, (vec![last.len() as u32], entries(last))).await?;
    // Rank 0 ends the call.
    call.recv(0, 9, vec![0_u8; 1]).await.map(drop)
}

#[test]
fn what_a_rank_may_not_send_is_refused_by_name() {
    let lies = [
        Lie::Entries(&[7]),
        Lie::Entries(&[2, 1]),
        Lie::Entries(&[4, 10]),
        Lie::Share([1, 1, 1]),
        Lie::Share([6, 0, 6]),
        Lie::Share([u64::MAX, 1, 0]),
        Lie::Sums(&[6]),
        Lie::Sums(&[0]),
        Lie::Sums(&[5, 11]),
    ];
    for told in lies {
        let found = on_local(2, move |group| {
            let mut state = OkTopk::new(10, 1, 2);
            if group.rank() == 1 {
                let description = describe_ok_topk(&state, Wire::Pairs);
                let _ended = group.run(description, async |call| lie(call, told).await);
                return None;
            }
            let own = SparseVec::from_parts(10, vec![1], vec![1.0]).unwrap();
            let error = group.ok_topk_all_reduce(own.view(), &mut state).unwrap_err();
            Some((error, state.step()))
        });
        let (error, step) = found[0].as_ref().unwrap();
        assert!(error.to_string().starts_with("rank 1 sent "), "{told:?}: {error}");
        assert_eq!(*step, 0);
    }
}
