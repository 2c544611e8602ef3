//! What some ranks have saved goes on in another number of ranks: nothing is lost, nothing counts twice, and
//! what can't be taken over changes nothing.

use std::sync::Arc;

use brevity::compress::Error as Compress;
use brevity::compress::state::{self, Fault, Reader, State, Writer};
use brevity::{Error, GradientExchange, Group, Policy};
use brevity_compress::float_modes::{FLUSHING, STANDARD, set_float_mode};
use brevity_tests::{on_local, oracle};

const SHAPE: [usize; 2] = [12, 20];
const COUNT: usize = SHAPE[0] * SHAPE[1];

/// How many ranks saved, and how many go on.
const CHANGES: [(u32, u32); 4] = [(4, 3), (3, 2), (5, 1), (2, 3)];

/// Those that deliver sums as they are, or leave them in residuals.
const EXACT: [&str; 16] = [
    "dense",
    "auto:0.1",
    "topk:0.1",
    "topk:0.1,threshold=sampled",
    "topk:0.1,scope=model",
    "topk:0.1,dense-steps=6",
    "topk:0.1,hierarchical=yes",
    "gtopk:0.1",
    "gtopk:0.1,threshold=adaptive",
    "gtopk:0.1,put-back=merger-keeps",
    "gtopk:0.1,hierarchical=yes",
    "oktopk:0.1",
    "oktopk:0.1,scope=bucket",
    "random-k:0.1",
    "random-block:0.1",
    "block:0.1",
];

/// Those that round, or deliver something else than the sum of gradients.
const OTHERS: [&str; 16] = [
    "topk:0.1,values=bf16",
    "gtopk:0.1,values=one-bit-mean",
    "gtopk:0.1,put-back=published",
    "topk:0.1,momentum=0.5",
    "gtopk:0.1,momentum=0.5,nesterov=yes,clip=1000000",
    "oktopk:0.1,samomentum=0.5",
    "quantised:bf16",
    "quantised:one-bit-mean",
    "low-rank:2,min=1",
    "low-rank:2,min=1,post-momentum=0.5",
    "low-rank:2,min=1,dense-steps=4",
    "low-rank:50",
    "unbiased-low-rank:2,min=1",
    "best-low-rank:2,min=1",
    "atomo:2,min=1",
    "sign-norm",
];

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn built(group: &Group, text: &str) -> GradientExchange {
    GradientExchange::builder(group).tensor("weight", SHAPE, policy(text)).build().unwrap()
}

/// Whole numbers that every number of ranks up to 5 divides, so that averages are exact.
fn gradient(rank: u32, step: u32) -> Vec<f32> {
    oracle::vector(rank + 100 * step, COUNT).into_iter().map(|value| 60.0 * value).collect()
}

fn saved(exchange: &GradientExchange) -> Vec<u8> {
    let mut state = Vec::new();
    exchange.save(&mut state).unwrap();
    state
}

fn residual(exchange: &GradientExchange) -> Vec<f32> {
    exchange.residual("weight").unwrap()
}

/// Makes a step, and adds what it delivers on all ranks together.
fn step(exchange: &mut GradientExchange, gradient: Vec<f32>, delivered: &mut [f32]) {
    let world_size = exchange.group().world_size() as f32;
    let mut gradients = [gradient];
    exchange.average(&mut gradients).unwrap();
    delivered.iter_mut().zip(&gradients[0]).for_each(|(all, average)| *all += world_size * average);
}

/// A step that fails on all ranks: its gradient stays.
fn fail(exchange: &mut GradientExchange, gradient: Vec<f32>) {
    let group = exchange.group().clone();
    // Another rank may have closed the group already.
    let _ = group.barrier();
    group.abort();
    exchange.average(&mut [gradient]).unwrap_err();
}

/// Rank `q` of `Q` loads what rank `q` has saved, and takes over what the ranks `q + Q`, `q + 2 Q` ... have.
fn take(exchange: &mut GradientExchange, states: &[Vec<u8>]) {
    let group = exchange.group().clone();
    for (rank, state) in
        states.iter().enumerate().skip(group.rank() as usize).step_by(group.world_size() as usize)
    {
        if rank as u32 == group.rank() {
            exchange.load_of(rank as u32, &mut &state[..]).unwrap();
        } else {
            exchange.take_over(rank as u32, &mut &state[..]).unwrap();
        }
    }
    if group.world_size() as usize > states.len() {
        exchange.share_state::<f32, Vec<f32>>(&group, 0, &mut []).unwrap();
    }
}

/// What each rank of so many has, after `take`, of the vectors of others.
fn taken(vectors: &[Vec<f32>], ranks: u32) -> Vec<Vec<f32>> {
    let of = |rank: u32| -> Vec<Vec<f32>> {
        vectors.iter().skip(rank as usize).step_by(ranks as usize).cloned().collect()
    };
    (0..ranks)
        .map(|rank| oracle::sum(&of(rank)))
        .map(|sum| if sum.is_empty() { vec![0.0; COUNT] } else { sum })
        .collect()
}

#[test]
fn all_that_is_handed_in_is_delivered_or_waits() {
    for ((before, after), text) in CHANGES.into_iter().flat_map(|change| EXACT.map(|text| (change, text))) {
        let ranks = on_local(before, move |group| {
            let (mut exchange, mut delivered) = (built(group, text), vec![0.0; COUNT]);
            (0..4).for_each(|number| step(&mut exchange, gradient(group.rank(), number), &mut delivered));
            (saved(&exchange), delivered)
        });
        let early = ranks[0].1.clone();
        let states: Arc<Vec<_>> = Arc::new(ranks.into_iter().map(|(state, _)| state).collect());
        let ranks = on_local(after, move |group| {
            let (mut exchange, mut delivered) = (built(group, text), vec![0.0; COUNT]);
            take(&mut exchange, &states);
            assert_eq!(exchange.steps(), 4);
            (4..8).for_each(|number| step(&mut exchange, gradient(group.rank(), number), &mut delivered));
            (delivered, residual(&exchange))
        });
        let given = |ranks: u32, steps: std::ops::Range<u32>| -> Vec<Vec<f32>> {
            (0..ranks).flat_map(|rank| steps.clone().map(move |number| gradient(rank, number))).collect()
        };
        let given = oracle::sum(&[given(before, 0..4), given(after, 4..8)].concat());
        let mut found = vec![early, ranks[0].0.clone()];
        found.extend(ranks.into_iter().map(|(_, left)| left));
        assert_eq!(oracle::sum(&found), given, "{text}, {before} to {after}");
    }
}

/// Also of policies that round: whole numbers that wait after a failure stay whole.
#[test]
fn whole_numbers_that_wait_add_up_exactly() {
    for ((before, after), text) in
        CHANGES.into_iter().flat_map(|change| EXACT.into_iter().chain(OTHERS).map(move |text| (change, text)))
    {
        let ranks = on_local(before, move |group| {
            let mut exchange = built(group, text);
            fail(&mut exchange, gradient(group.rank(), 0));
            (saved(&exchange), residual(&exchange))
        });
        // Nesterov's momentum counts half of a gradient once more.
        let factor = if text.contains("nesterov") { 1.5 } else { 1.0 };
        let (states, left): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        let given = (0..before).map(|rank| gradient(rank, 0).iter().map(|value| factor * value).collect());
        assert_eq!(left, given.collect::<Vec<Vec<f32>>>(), "{text}");
        let found = on_local(after, move |group| {
            let mut exchange = built(group, text);
            take(&mut exchange, &states);
            let left = residual(&exchange);
            exchange.average(&mut [vec![0.0f32; COUNT]]).unwrap();
            left
        });
        assert_eq!(found, taken(&left, after), "{text}, {before} to {after}");
        assert_eq!(oracle::sum(&found), oracle::sum(&left), "{text}, {before} to {after}");
    }
}

/// After steps of all kinds: warm starts, thresholds and draws are those that all ranks have alike.
#[test]
fn residuals_of_every_policy_add_up() {
    for ((before, after), text) in
        CHANGES.into_iter().flat_map(|change| EXACT.into_iter().chain(OTHERS).map(move |text| (change, text)))
    {
        let ranks = on_local(before, move |group| {
            let mut exchange = built(group, text);
            (0..3).for_each(|number| exchange.average(&mut [gradient(group.rank(), number)]).unwrap());
            fail(&mut exchange, gradient(group.rank(), 3));
            (saved(&exchange), residual(&exchange))
        });
        let (states, left): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        let found = on_local(after, move |group| {
            let mut exchange = built(group, text);
            take(&mut exchange, &states);
            let left = residual(&exchange);
            (3..5).for_each(|number| exchange.average(&mut [gradient(group.rank(), number)]).unwrap());
            left
        });
        assert_eq!(found, taken(&left, after), "{text}, {before} to {after}");
    }
}

/// Velocities are linear in the gradients: half of what was delivered comes again.
#[test]
fn momentum_before_selection_adds_up() {
    for ((before, after), momentum) in CHANGES
        .into_iter()
        .flat_map(|change| ["momentum=0.5", "samomentum=0.5"].map(|momentum| (change, momentum)))
    {
        let build = move |group: &Group| built(group, &format!("topk:0.1,{momentum},dense-steps=9"));
        let states = on_local(before, move |group| {
            let mut exchange = build(group);
            exchange.average(&mut [gradient(group.rank(), 0)]).unwrap();
            saved(&exchange)
        });
        let delivered = on_local(after, move |group| {
            let (mut exchange, mut delivered) = (build(group), vec![0.0; COUNT]);
            take(&mut exchange, &states);
            step(&mut exchange, vec![0.0; COUNT], &mut delivered);
            delivered
        });
        let given: Vec<_> = (0..before).map(|rank| gradient(rank, 0)).collect();
        let half: Vec<f32> = oracle::sum(&given).iter().map(|sum| sum / 2.0).collect();
        assert!(delivered.iter().all(|found| *found == half), "{momentum}, {before} to {after}");
    }
}

/// One tensor of each policy.
fn all_policies() -> impl Iterator<Item = &'static str> {
    EXACT.into_iter().chain(OTHERS).chain(["signum:0.5"])
}

/// An exchange of these, after a step, and one that has failed.
fn exchange_of_all(number: u32) -> GradientExchange {
    let group = Group::solo();
    let builder = GradientExchange::builder(&group);
    let builder = all_policies().fold(builder, |builder, text| builder.tensor(text, SHAPE, policy(text)));
    let mut exchange = builder.build().unwrap();
    let gradients = |step| -> Vec<_> { all_policies().map(|_| gradient(number, step)).collect() };
    exchange.average(&mut gradients(0)).unwrap();
    group.abort();
    exchange.average(&mut gradients(1)).unwrap_err();
    exchange
}

/// The two parts of a state.
fn split(state: &[u8]) -> (&[u8], &[u8]) {
    let dimensions = usize::from(state[5]);
    let length = &state[12 + 8 * dimensions..][..8];
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    state.split_at(24 + 8 * dimensions + length + 4)
}

/// Contents with right checksums.
struct Forged(Vec<u8>);

impl Forged {
    /// The contents of the second part of a state.
    fn of(state: &[u8]) -> Self {
        let part = split(state).1;
        Self(part[32..part.len() - 4].to_vec())
    }
}

impl State for Forged {
    fn kind(&self) -> [u8; 4] {
        *b"exc2"
    }

    fn shape(&self) -> Vec<u64> {
        vec![(all_policies().count() * COUNT) as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.bytes(&self.0);
    }

    fn read_contents(&mut self, _: &mut Reader<'_>) -> Result<(), Compress> {
        unreachable!("it is only written")
    }
}

#[test]
fn a_state_that_is_cut_off_or_damaged_changes_nothing() {
    let (mut exchange, other) = (exchange_of_all(0), saved(&exchange_of_all(1)));
    let before = saved(&exchange);
    let mut refused = |bytes: &[u8]| {
        let error = exchange.take_over(0, &mut &*bytes).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{error}");
        assert!(saved(&exchange) == before, "{error}");
    };
    for length in (0..other.len()).step_by(97) {
        refused(&other[..length]);
    }
    for bit in (0..8 * other.len()).step_by(1009) {
        let mut damaged = other.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        refused(&damaged);
    }
    let (plan, contents) = split(&other);
    refused(plan);
    refused(contents);
    refused(&[plan, plan].concat());
}

#[test]
fn values_that_are_not_finite_change_nothing() {
    let (mut exchange, other) = (exchange_of_all(0), saved(&exchange_of_all(1)));
    let (before, forged) = (saved(&exchange), Forged::of(&other));
    assert!([split(&other).0, &state::to_bytes(&forged)].concat() == other);
    let mut refused = 0;
    for place in (0..forged.0.len() / 4).step_by(7) {
        let mut contents = forged.0.clone();
        let value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][place % 3];
        contents[4 * place..4 * place + 4].copy_from_slice(&value.to_le_bytes());
        let state = [split(&other).0, &state::to_bytes(&Forged(contents))].concat();
        match exchange.take_over(0, &mut &state[..]) {
            Err(error) => {
                assert!(matches!(error, Error::State(_)), "{error}");
                assert!(saved(&exchange) == before, "{error}");
                refused += 1;
            }
            // It is no value, but a seed or a counter that is this rank's own.
            Ok(()) => exchange.load(&mut &before[..]).unwrap(),
        }
    }
    let values = all_policies().count() * COUNT / 7;
    assert!(refused >= values, "{refused} of {values} values");
}

#[test]
fn sums_that_are_not_finite_change_nothing() {
    // Of these, gradients are clipped, or as large ones refused.
    let small = ["clip", "best", "atomo"];
    let is_small = move |text: &&str| small.iter().any(|word| text.contains(word));
    let policies = || EXACT.into_iter().chain(OTHERS).filter(move |text| !is_small(text));
    for large in 0..policies().count() {
        let build = || {
            let builder = GradientExchange::builder(&Group::solo());
            policies()
                .fold(builder, |builder, text| builder.tensor(text, SHAPE, policy(text)))
                .build()
                .unwrap()
        };
        let kept = || {
            let mut exchange = build();
            let mut gradients: Vec<_> = policies().map(|_| gradient(0, 0)).collect();
            gradients[large][COUNT - 1] = 1.8e38;
            exchange.group().abort();
            exchange.average(&mut gradients).unwrap_err();
            exchange
        };
        let (mut exchange, text) = (kept(), policies().nth(large).unwrap());
        assert_eq!(exchange.residual(text).unwrap()[COUNT - 1], 1.8e38, "{text}");
        let before = saved(&exchange);
        match exchange.take_over(0, &mut &before[..]) {
            Err(Error::StateOverflow { rank: 0, tensor }) => assert_eq!(tensor, text),
            other => panic!("{text}: {other:?}"),
        }
        assert!(saved(&exchange) == before, "{text}");
    }
}

#[test]
fn only_states_of_the_same_step_count_once() {
    let mut exchange = built(&Group::solo(), "gtopk:0.1");
    let states: Vec<_> = (0..3)
        .map(|number| {
            let state = saved(&exchange);
            exchange.average(&mut [gradient(0, number)]).unwrap();
            state
        })
        .collect();
    exchange.load(&mut &states[1][..]).unwrap();
    for (found, steps) in [(&states[0], 0), (&states[2], 2)] {
        match exchange.take_over(0, &mut &found[..]).unwrap_err() {
            Error::State(Compress::State(fault)) => {
                assert_eq!(fault, Fault::Steps { found: steps, expected: 1 });
            }
            other => panic!("{other}"),
        }
    }
    assert!(saved(&exchange) == states[1]);
    let mut fresh = built(&Group::solo(), "gtopk:0.1");
    fresh.take_over(0, &mut &states[2][..]).unwrap();
    assert_eq!(fresh.steps(), 0);
    let wrong = fresh.take_over(3, &mut &states[2][..]).unwrap_err().to_string();
    assert!(wrong.contains("the state of rank 0, expected the state of rank 3"), "{wrong}");
    let mut step = fresh.begin().unwrap();
    step.ready(0, &gradient(0, 0)).unwrap();
    step.leave();
    assert!(matches!(fresh.take_over(0, &mut &states[0][..]), Err(Error::Order { .. })));
}

/// A signum tensor has a momentum and no residual: it stays that of the rank.
#[test]
fn the_momentum_of_signum_stays() {
    let built = |number| {
        let mut exchange = built(&Group::solo(), "signum:0.5");
        exchange.average(&mut [gradient(number, 0)]).unwrap();
        exchange
    };
    let (mut exchange, other) = (built(0), saved(&built(1)));
    let before = saved(&exchange);
    assert!(before != other);
    exchange.take_over(0, &mut &other[..]).unwrap();
    assert!(saved(&exchange) == before);
}

/// The sums do not depend on the mode of the processor.
#[test]
fn small_numbers_are_kept() {
    let kept = |value: f32| {
        let mut exchange = built(&Group::solo(), "dense");
        exchange.group().abort();
        exchange.average(&mut [vec![value; COUNT]]).unwrap_err();
        exchange
    };
    let least = f32::from_bits(1);
    let (mut exchange, state) = (kept(least), saved(&kept(least)));
    set_float_mode(FLUSHING);
    let outcome = exchange.take_over(0, &mut &state[..]);
    set_float_mode(STANDARD);
    outcome.unwrap();
    assert_eq!(residual(&exchange), vec![2.0 * least; COUNT]);
}
