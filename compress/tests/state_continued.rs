//! After a restart from saved state, low rank and quantisers continue with the same bits as without it.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod faults;

use brevity_compress::Error;
use brevity_compress::generator::Generator;
use brevity_compress::low_rank::{
    Batch, ErrorMemory, ErrorRule, Factors, LowRank, PowerSgd, UnbiasedLowRank, Workspace,
};
use brevity_compress::quantise::{
    BucketFeedback, Bucketed, DeferredFeedback, Feedback, HalfPrecision, Magnitude, MinMax, Norm, OnePass,
    Qsgd, Quantiser, Sign, Ternary, TwoBit,
};
use brevity_compress::state::{self, Fault, Reader, State, Writer};
use faults::{check_damage, fault};
use proptest::prelude::*;

fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Generator::new(seed).fill_normal(&mut values);
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Rows, columns and rank of each matrix.
type Shapes = Vec<(usize, usize, usize)>;

fn powersgd(shapes: &Shapes, rule: ErrorRule, seed: u64) -> PowerSgd {
    let states = shapes.iter().map(|&(rows, cols, rank)| LowRank::new(rows, cols, rank, seed).unwrap());
    PowerSgd::new(Batch::new(states.collect()), rule)
}

/// A step of one of two ranks, without the other: half of the factors are its own. In every third step
/// gradients are zero, so that columns are eventually drawn again. Returns the bits of all results.
fn step(powersgd: &mut PowerSgd, number: u64) -> Vec<u32> {
    let mut factors = Factors::default();
    let shapes: Vec<usize> =
        powersgd.batch().states().iter().map(|state| state.rows() * state.cols()).collect();
    factors.p.resize(powersgd.batch().p_len(), 0.0);
    factors.own_q.resize(powersgd.batch().q_len(), 0.0);
    for (position, &n) in shapes.iter().enumerate() {
        let gradient = if number % 3 == 2 { vec![0.0; n] } else { normal(n, 100 * number + position as u64) };
        powersgd.accumulate(position, &gradient, &mut factors.p).unwrap();
    }
    factors.p.iter_mut().for_each(|p| *p *= 0.5);
    powersgd.batch_mut().orthonormalise(&mut factors.p).unwrap();
    powersgd.right_factors(&factors.p, &mut factors.own_q).unwrap();
    factors.q = factors.own_q.iter().map(|q| q * 0.5).collect();
    let mut out = [bits(&factors.p), bits(&factors.own_q)].concat();
    for (position, n) in shapes.into_iter().enumerate() {
        let mut update = vec![f32::NAN; n];
        powersgd.reconstruct(position, &factors, &mut update).unwrap();
        out.extend(bits(&update));
    }
    powersgd.commit(&factors).unwrap();
    out
}

fn residuals(powersgd: &PowerSgd) -> Vec<u32> {
    (0..powersgd.memories().len()).flat_map(|position| bits(&powersgd.residual(position))).collect()
}

fn shapes() -> impl Strategy<Value = Shapes> {
    let shape = prop_oneof![(0_usize..9, 0_usize..9, 0_usize..5), (1_usize..4, 500_usize..530, 1_usize..3)];
    prop::collection::vec(shape, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn powersgd_goes_on_as_if_it_had_never_been_saved(
        shapes in shapes(),
        is_own: bool,
        before in 0_u64..4,
        is_amid: bool,
        seed: u64,
    ) {
        let rule = if is_own { ErrorRule::Own } else { ErrorRule::Global };
        let mut saved = powersgd(&shapes, rule, seed);
        (0..before).for_each(|number| drop(step(&mut saved, number)));
        if is_amid {
            // A step that was accumulated and then given up.
            let mut p = vec![0.0; saved.batch().p_len()];
            for (position, &(rows, cols, _)) in shapes.iter().enumerate() {
                saved.accumulate(position, &normal(rows * cols, seed), &mut p).unwrap();
            }
        }
        let mut twin = saved.clone();
        let bytes = state::to_bytes(&saved);
        // The object that loads it has another history, and a pending subtraction.
        let mut loaded = powersgd(&shapes, rule, !seed);
        step(&mut loaded, 7);
        state::from_bytes(&mut loaded, &bytes).unwrap();
        prop_assert_eq!(residuals(&loaded), residuals(&saved));
        prop_assert_eq!(&state::to_bytes(&loaded), &bytes);
        for number in 10..14 {
            let expected = step(&mut twin, number);
            prop_assert_eq!(&step(&mut loaded, number), &expected, "loaded, step {}", number);
            prop_assert_eq!(&step(&mut saved, number), &expected, "saved, step {}", number);
        }
        prop_assert_eq!(residuals(&loaded), residuals(&twin));
    }
}

#[test]
fn damaged_low_rank_state_is_refused_and_changes_nothing() {
    let shapes = vec![(3, 2, 1), (1, 4, 1)];
    let mut saved = powersgd(&shapes, ErrorRule::Own, 1);
    step(&mut saved, 0);
    let bytes = state::to_bytes(&saved);
    let mut into = powersgd(&shapes, ErrorRule::Own, 2);
    step(&mut into, 1);
    check_damage(&bytes, &mut into);
}

#[test]
fn low_rank_state_of_other_matrices_is_refused_and_changes_nothing() {
    let refused = |into: &Shapes| {
        let bytes = state::to_bytes(&powersgd(&vec![(8, 4, 2), (4, 8, 2)], ErrorRule::Own, 1));
        let mut into = powersgd(into, ErrorRule::Own, 2);
        step(&mut into, 0);
        let before = state::to_bytes(&into);
        let fault = fault(state::from_bytes(&mut into, &bytes));
        assert_eq!(state::to_bytes(&into), before);
        fault
    };
    let one_less = refused(&vec![(8, 4, 2)]);
    assert_eq!(one_less, Fault::Shape { found: vec![2, 24, 24, 64], expected: vec![1, 16, 8, 32] });
    // The same sums in another order.
    let turned = refused(&vec![(4, 8, 2), (8, 4, 2)]);
    let shown = "saved state holds matrix 0 of 8 x 4 at rank 2, expected matrix 0 of 4 x 8 at rank 2: \
                 was it saved with another model or other settings?";
    assert_eq!(turned.to_string(), shown);
}

/// Ranks compare the origin of their factors before they continue together.
#[test]
fn the_origin_tells_steps_apart() {
    let shapes = vec![(8, 4, 2), (4, 8, 2)];
    let mut saved = powersgd(&shapes, ErrorRule::Own, 1);
    assert_eq!(saved.batch().origin(), 0);
    let origins = [0, 1].map(|number| {
        step(&mut saved, number);
        let loaded = || {
            let mut loaded = powersgd(&shapes, ErrorRule::Own, 2);
            state::from_bytes(&mut loaded, &state::to_bytes(&saved)).unwrap();
            loaded
        };
        let (one, mut two) = (loaded(), loaded());
        step(&mut two, 9);
        assert_eq!(one.batch().origin(), two.batch().origin());
        two.restart();
        assert_eq!(two.batch().origin(), 0);
        one.batch().origin()
    });
    assert!(origins[0] != origins[1] && !origins.contains(&0), "{origins:?}");
}

#[test]
fn low_rank_state_with_a_nan_is_refused() {
    struct Forged;
    impl State for Forged {
        fn kind(&self) -> [u8; 4] {
            *b"lowr"
        }

        fn shape(&self) -> Vec<u64> {
            vec![1, 1, 1]
        }

        fn write_contents(&self, contents: &mut Writer) {
            contents.f32s(&[f32::NAN]);
            contents.part(&Generator::new(1));
        }

        fn read_contents(&mut self, _: &mut Reader<'_>) -> Result<(), Error> {
            Ok(())
        }
    }
    let refused = state::from_bytes(&mut LowRank::new(1, 1, 1, 1).unwrap(), &state::to_bytes(&Forged));
    assert!(matches!(refused, Err(Error::NonFinite { index: 0, .. })), "{refused:?}");
}

#[test]
fn parts_of_low_rank_state_come_back_by_themselves() {
    let (mut workspace, m) = (Workspace::default(), normal(12, 1));
    // The residual of one rank can be loaded for another rank.
    let (one, two) = (LowRank::new(3, 4, 1, 1).unwrap(), LowRank::new(3, 4, 2, 1).unwrap());
    let (mut memory, mut p) = (ErrorMemory::new(&one), vec![0.0; one.p_len()]);
    memory.accumulate(&one, &m, &mut p, &mut workspace).unwrap();
    memory.commit(&one, &p, &[1.0, 2.0, 3.0, 4.0], &mut workspace).unwrap();
    let mut other = ErrorMemory::new(&two);
    state::from_bytes(&mut other, &state::to_bytes(&memory)).unwrap();
    assert_eq!(bits(&other.residual()), bits(&memory.residual()));
    let mut turned = ErrorMemory::new(&LowRank::new(4, 3, 1, 1).unwrap());
    let fault = fault(state::from_bytes(&mut turned, &state::to_bytes(&memory)));
    assert_eq!(fault, Fault::Shape { found: vec![3, 4], expected: vec![4, 3] });

    let (mut unbiased, mut loaded) =
        (UnbiasedLowRank::new(5, 6, 2, 1).unwrap(), UnbiasedLowRank::new(5, 6, 2, 2).unwrap());
    unbiased.draw(&mut workspace);
    state::from_bytes(&mut loaded, &state::to_bytes(&unbiased)).unwrap();
    unbiased.draw(&mut workspace);
    loaded.draw(&mut workspace);
    assert_eq!(bits(unbiased.u()), bits(loaded.u()));
}

const N: usize = 1300;

/// Steps before and after, each with the bytes it sends; `into` has another history.
fn continues<F: State + Clone>(mut saved: F, mut into: F, mut step: impl FnMut(&mut F, &[f32]) -> Vec<u8>) {
    for before in 0..3 {
        let mut twin = saved.clone();
        step(&mut into, &normal(N, 50 + before));
        state::from_bytes(&mut into, &state::to_bytes(&saved)).unwrap();
        for number in 0..2 {
            let gradient = normal(N, 10 + 5 * before + number);
            let expected = step(&mut twin, &gradient);
            assert!(step(&mut into, &gradient) == expected, "loaded after {before} steps, then {number}");
            assert!(step(&mut saved, &gradient) == expected, "saved after {before} steps, then {number}");
        }
    }
}

/// A feedback and its quantiser, both of which are saved.
#[derive(Clone)]
struct Both<F, Q> {
    feedback: F,
    quantiser: fn(&F) -> &Q,
    quantiser_mut: fn(&mut F) -> &mut Q,
}

impl<F: State, Q: State> State for Both<F, Q> {
    fn kind(&self) -> [u8; 4] {
        *b"both"
    }

    fn shape(&self) -> Vec<u64> {
        self.feedback.shape()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.part(&self.feedback);
        contents.part((self.quantiser)(&self.feedback));
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.part(&mut self.feedback)?;
        contents.part((self.quantiser_mut)(&mut self.feedback))
    }
}

fn any<Q: Quantiser>(feedback: &mut Feedback<Q>, gradient: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    feedback.compress(gradient, &mut bytes).unwrap();
    bytes
}

fn bucket<Q: Bucketed>(feedback: &mut BucketFeedback<Q>, gradient: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    feedback.compress(gradient, &mut bytes).unwrap();
    bytes
}

fn deferred<Q: OnePass>(feedback: &mut DeferredFeedback<Q>, gradient: &[f32]) -> Vec<u8> {
    feedback.compress(gradient).unwrap().to_vec()
}

#[test]
fn feedback_of_quantisers_goes_on_as_if_it_had_never_been_saved() {
    let half = |_| Feedback::new(N, HalfPrecision::bf16()).unwrap();
    continues(half(1), half(2), any);
    let min_max = |_| BucketFeedback::new(N, MinMax::new(512)).unwrap();
    continues(min_max(1), min_max(2), bucket);
    let sign = |_| DeferredFeedback::new(N, Sign::new(Magnitude::Mean)).unwrap();
    continues(sign(1), sign(2), deferred);
}

#[test]
fn quantisers_that_remember_go_on_as_if_they_had_never_been_saved() {
    let ternary = |seed| Ternary::clipped(seed, 2.5);
    continues(ternary(1), ternary(2), |ternary, gradient| {
        let mut bytes = Vec::new();
        ternary.encode(gradient, &mut bytes).unwrap();
        bytes
    });
    let both = |seed| Both {
        feedback: BucketFeedback::new(N, Qsgd::new(127, 512, Norm::Euclidean, seed)).unwrap(),
        quantiser: BucketFeedback::quantiser,
        quantiser_mut: BucketFeedback::quantiser_mut,
    };
    continues(both(1), both(2), |both, gradient| bucket(&mut both.feedback, gradient));
    let both = |_| Both {
        feedback: DeferredFeedback::new(N, TwoBit::new(Magnitude::Mean)).unwrap(),
        quantiser: DeferredFeedback::quantiser,
        quantiser_mut: DeferredFeedback::quantiser_mut,
    };
    continues(both(1), both(2), |both, gradient| deferred(&mut both.feedback, gradient));
}

/// Rounding errors are the same in every feedback.
#[test]
fn residuals_of_quantisers_serve_each_other() {
    let mut before = DeferredFeedback::new(N, Sign::new(Magnitude::Mean)).unwrap();
    before.compress(&normal(N, 1)).unwrap();
    let mut after = BucketFeedback::new(N, MinMax::new(512)).unwrap();
    state::from_bytes(&mut after, &state::to_bytes(&before)).unwrap();
    assert_eq!(bits(after.residual()), bits(before.residual()));
    let mut shorter = Feedback::new(N - 1, MinMax::new(512)).unwrap();
    let fault = fault(state::from_bytes(&mut shorter, &state::to_bytes(&before)));
    assert_eq!(fault, Fault::Shape { found: vec![N as u64], expected: vec![N as u64 - 1] });
}

/// A threshold that is neither there nor missing.
#[test]
fn impossible_two_bit_state_is_refused() {
    let mut bytes = state::to_bytes(&TwoBit::default());
    let contents = bytes.len() - 4 - 12;
    bytes[contents] = 2;
    let end = bytes.len() - 4;
    let sum = crc32(&bytes[contents..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    let found = fault(state::from_bytes(&mut TwoBit::default(), &bytes));
    assert_eq!(found, Fault::Contents { what: "a threshold is there or not" });
}

/// The checksum, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let byte = |sum: u32, &byte: &u8| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    };
    !bytes.iter().fold(!0, byte)
}
