//! Ranks that come back: they get model and state of a rank that has gone on, and from then on all ranks have
//! the same results. Gradients are those of `going_on`, so mass is exact.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brevity::collectives::Error as Collective;
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Element, Error, GradientExchange, Group, Policy, ReduceOp, Settings};
use brevity_tests::{on_host, on_local};
use half::{bf16, f16};

use crate::going_on::{COUNT, EXACT, TENSORS, Tensors, add, exchange, gradients, residuals, sums};

const FROM: u32 = 1;

/// The steps of the old group, of which the last one fails, and those of the new one.
const OLD: u32 = 3;
const NEW: std::ops::Range<u32> = OLD + 1..OLD + 6;

/// What is left of a group of four that has lost rank 3.
struct Past {
    exchanges: Vec<GradientExchange>,
    residuals_of_the_dead: Tensors,
    /// Handed in, less delivered.
    due: Tensors,
}

/// What a rank of the new group has.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    model: Vec<Vec<u32>>,
    averages: Vec<Tensors>,
    steps: u64,
    residuals: Tensors,
}

fn bits(tensors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    tensors.iter().map(|tensor| tensor.iter().map(|value| value.to_bits()).collect()).collect()
}

/// The model of a rank, with numbers that no arithmetic keeps.
fn model(rank: u32) -> Tensors {
    let nan = f32::from_bits(0x7fc0_1234 + rank);
    vec![vec![rank as f32 + 0.1; COUNT], vec![nan, -0.0, f32::MIN_POSITIVE / 4.0], vec![]]
}

/// Steps of four ranks; the others go on when the last one has left.
fn lose_one() -> Past {
    let ranks = on_local(4, |group| {
        let (rank, mut exchange) = (group.rank(), exchange(group));
        let mut delivered = vec![vec![0.0; COUNT]; EXACT];
        for step in 0..OLD {
            let mut averages = gradients(rank, step);
            exchange.average(&mut averages).unwrap();
            add(&mut delivered, &sums(&averages, 4), 1.0);
        }
        if rank == 3 {
            return (None, residuals(&exchange), delivered);
        }
        let mut averages = gradients(rank, OLD);
        exchange.average(&mut averages).unwrap_err();
        let left = group.shrink().unwrap();
        assert!(!exchange.go_on(&left, &mut averages).unwrap());
        (Some(exchange), Tensors::new(), delivered)
    });
    let mut due = vec![vec![0.0; COUNT]; EXACT];
    add(&mut due, &ranks[0].2, -1.0);
    for rank in 0..4 {
        (0..OLD + u32::from(rank < 3)).for_each(|step| add(&mut due, &gradients(rank, step), 1.0));
    }
    let residuals_of_the_dead = ranks[3].1.clone();
    Past {
        exchanges: ranks.into_iter().filter_map(|(exchange, ..)| exchange).collect(),
        due,
        residuals_of_the_dead,
    }
}

/// Whatever the ranks had, all have the model and the results of one; and nothing is lost or doubled.
fn check(outcomes: &[Outcome], mut due: Tensors, residuals_of_the_dead: &Tensors) {
    for outcome in outcomes {
        assert_eq!(outcome.model, bits(&model(FROM)));
        assert_eq!(outcome.steps, u64::from(OLD + NEW.end - NEW.start));
        for (averages, first) in outcome.averages.iter().zip(&outcomes[0].averages) {
            for tensor in 0..TENSORS {
                assert_eq!(
                    bits(&averages[tensor..=tensor]),
                    bits(&first[tensor..=tensor]),
                    "tensor {tensor}"
                );
            }
        }
        add(&mut due, &outcome.residuals, -1.0);
    }
    for (rank, step) in (0..4).flat_map(|rank| NEW.map(move |step| (rank, step))) {
        add(&mut due, &gradients(rank, step), 1.0);
    }
    outcomes[0].averages.iter().for_each(|averages| add(&mut due, &sums(averages, 4), -1.0));
    assert_eq!(due, residuals_of_the_dead[..EXACT]);
}

/// In one process, by messages and over shared memory.
#[test]
fn a_rank_that_comes_back_goes_on_with_the_others() {
    for by_slots in [false, true] {
        let Past { exchanges, due, residuals_of_the_dead } = lose_one();
        let exchanges: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new(exchanges.into_iter().map(Some).collect()));
        let body = move |group: &Group| {
            let rank = group.rank();
            let kept = exchanges.lock().unwrap().get_mut(rank as usize).and_then(Option::take);
            let mut exchange = kept.unwrap_or_else(|| exchange(group));
            let before = residuals(&exchange);
            assert_eq!(rank == 3, before.iter().flatten().all(|value| *value == 0.0));
            if rank == 2 {
                // Without the warm start and the momentum that the others have, at another step.
                exchange.rejoin(&Group::solo());
                exchange.set_steps(77).unwrap();
            }
            let mut model = model(rank);
            exchange.share_state_within(group, FROM, &mut model, Duration::from_secs(60)).unwrap();
            assert_eq!((before, exchange.number()), (residuals(&exchange), 0));
            let averages = NEW.map(|step| {
                let mut averages = gradients(rank, step);
                exchange.average(&mut averages).unwrap();
                averages
            });
            let averages = averages.collect();
            Outcome {
                model: bits(&model),
                averages,
                steps: exchange.steps(),
                residuals: residuals(&exchange),
            }
        };
        let outcomes = if by_slots { on_host(4, Settings::default(), body) } else { on_local(4, body) };
        check(&outcomes, due, &residuals_of_the_dead);
    }
}

#[test]
fn a_rank_that_comes_back_goes_on_with_the_others_on_a_slow_network() {
    let Past { exchanges, due, residuals_of_the_dead } = lose_one();
    let mut exchanges = exchanges.into_iter();
    let outcomes = run(Cluster::new(4, Links::new(100e-6, 1e-9)), |transport| {
        let (group, kept) = (Group::new(transport, Settings::default()), exchanges.next());
        async move {
            let rank = group.rank();
            let mut exchange = kept.unwrap_or_else(|| exchange(&group));
            let mut model = model(rank);
            exchange.share_state_async(&group, FROM, &mut model).await.unwrap();
            let mut all = Vec::new();
            for step in NEW {
                let ((left, averages), stepped) = exchange.start(gradients(rank, step)).await;
                stepped.unwrap();
                (exchange, all) = (left, [all, vec![averages]].concat());
            }
            let (steps, residuals) = (exchange.steps(), residuals(&exchange));
            Outcome { model: bits(&model), averages: all, steps, residuals }
        }
    });
    check(&outcomes.unwrap(), due, &residuals_of_the_dead);
}

/// What a rank of a job of three has done, of which the third one is new.
#[derive(Clone, Debug, Default)]
struct Diary {
    /// Its messages before it shares its state, and afterwards.
    messages: (u64, u64),
    /// The residuals before.
    residuals: Tensors,
    /// The steps that it has begun.
    begun: Vec<u32>,
    /// The averages of steps that were done, and of how many ranks.
    delivered: Vec<(u32, Tensors)>,
    /// How it has ended, if it lives.
    end: Option<Outcome>,
}

/// A step. Returns whether it was done.
async fn step(
    exchange: &mut Option<GradientExchange>,
    number: u32,
    own: u32,
    diary: &RefCell<Diary>,
) -> bool {
    let Some(moved) = exchange.take() else { return false };
    let size = moved.group().world_size();
    diary.borrow_mut().begun.push(number);
    let ((moved, averages), stepped) = moved.start(gradients(own, number)).await;
    *exchange = Some(moved);
    if stepped.is_ok() {
        diary.borrow_mut().delivered.push((size, averages));
    }
    stepped.is_ok()
}

async fn run_rank(world: Group, diary: &RefCell<Diary>) {
    let own = world.rank();
    let old = world.start_split((own < 2).then_some(0), 0).await.unwrap();
    let mut kept = Some(exchange(old.as_ref().unwrap_or(&world)));
    let mut model = model(if own < 2 { FROM } else { 2 });
    for number in 0..if own < 2 { 2 } else { 0 } {
        assert!(step(&mut kept, number, own, diary).await);
    }
    diary.borrow_mut().residuals = residuals(kept.as_ref().unwrap());
    let sent = || world.statistics().messages_sent;
    let before = sent();
    let shared = kept.as_mut().unwrap().share_state_async(&world, 0, &mut model).await;
    diary.borrow_mut().messages = (before, sent());
    let steps = kept.as_ref().unwrap().steps();
    assert_eq!(steps, if own < 2 || shared.is_ok() { 2 } else { 0 }, "half a state, {shared:?}");
    let has_state = own < 2 || shared.is_ok();
    if shared.is_err() || !step(&mut kept, 2, own, diary).await {
        // Who is left shares again.
        let Ok(left) = world.start_shrink().await else { return };
        let rank = if has_state { left.rank() } else { u32::MAX };
        let (from, reduced) = left.start_all_reduce(vec![rank], ReduceOp::Min).await;
        reduced.unwrap();
        kept.as_mut().unwrap().share_state_async(&left, from[0], &mut model).await.unwrap();
        assert!(step(&mut kept, 3, own, diary).await);
    }
    assert!(step(&mut kept, 4, own, diary).await);
    let exchange = kept.unwrap();
    let averages = diary.borrow().delivered.iter().map(|(_, averages)| averages.clone()).collect();
    let (steps, residuals) = (exchange.steps(), residuals(&exchange));
    diary.borrow_mut().end = Some(Outcome { model: bits(&model), averages, steps, residuals });
}

fn simulate(links: &Links, fault: Option<Fault>) -> Vec<Diary> {
    let diaries: Vec<_> = (0..3).map(|_| Rc::new(RefCell::new(Diary::default()))).collect();
    let ended = run(Cluster::new(3, links.clone()).with_faults(fault), |transport| {
        let group = Group::new(transport, Settings::default());
        let diary = Rc::clone(&diaries[group.rank() as usize]);
        async move { run_rank(group, &diary).await }
    });
    ended.unwrap();
    diaries.into_iter().map(|diary| diary.borrow().clone()).collect()
}

/// The living have the same model and results, and nothing but the residual of the dead is lost.
fn kill(links: &Links, victim: u32, messages: u64) {
    let diaries = simulate(links, Some(Fault::KillAfter { rank: Rank(victim), messages }));
    let case = || format!("killed after {messages} messages of rank {victim}: {diaries:#?}");
    let mut due = vec![vec![0.0; COUNT]; EXACT];
    for (rank, diary) in (0..).zip(&diaries) {
        // What the dead has begun afterwards has reached nobody.
        let begun = diary.begun.iter().filter(|step| rank != victim || **step < 2);
        begun.for_each(|step| add(&mut due, &gradients(rank, *step), 1.0));
    }
    let living: Vec<_> = (0..3).filter(|rank| *rank != victim).collect();
    let mut ends = Vec::new();
    for rank in living {
        let end = diaries[rank as usize].end.clone().unwrap_or_else(|| panic!("rank {rank}, {}", case()));
        assert_eq!(end.model, bits(&model(FROM)), "rank {rank}, {}", case());
        add(&mut due, &end.residuals, -1.0);
        ends.push(end);
    }
    assert_eq!(ends[0].steps, ends[1].steps, "{}", case());
    let last = |end: &Outcome| {
        end.averages[end.averages.len() - 2..].iter().map(|all| bits(all)).collect::<Vec<_>>()
    };
    assert_eq!(last(&ends[0]), last(&ends[1]), "{}", case());
    // One of the living was there from the beginning.
    let longest =
        diaries.iter().filter(|diary| diary.end.is_some()).max_by_key(|diary| diary.delivered.len());
    let delivered = &longest.unwrap().delivered;
    delivered.iter().for_each(|(size, averages)| add(&mut due, &sums(averages, *size), -1.0));
    assert_eq!(due, diaries[victim as usize].residuals[..EXACT], "{}", case());
}

#[test]
fn a_death_at_any_message_leaves_exchanges_that_share_again() {
    let uneven = Links::new(100e-6, 1e-9).with_link(Rank(0), Rank(1), 900e-6, 1e-9);
    for links in [Links::new(100e-6, 1e-9), uneven.with_link(Rank(1), Rank(2), 10e-6, 1e-9)] {
        let calm = simulate(&links, None);
        assert!(calm.iter().all(|diary| diary.end.is_some()));
        let mut deaths = 0;
        for victim in 0..3 {
            let (before, after) = calm[victim as usize].messages;
            for messages in before + 1..=after {
                kill(&links, victim, messages);
                deaths += 1;
            }
        }
        assert!(deaths > 6, "only {deaths} deaths");
    }
}

/// How rank 2 differs from the others.
#[derive(Clone, Copy, Debug)]
enum Other {
    Policy,
    Name,
    Seed,
    KeepGoing,
    Length,
    Parameters,
    Type,
    From,
    Number,
}

#[test]
fn ranks_that_differ_are_told_and_keep_what_they_have() {
    for (other, words) in [
        (Other::Policy, "tensor \"a\" of 8 elements, top 4 entries"),
        (Other::Name, "tensor \"b\" of 8 elements, top 2 entries"),
        (Other::Seed, "seed 7"),
        (Other::KeepGoing, "keep going true"),
        (Other::Length, "parameter 1 of 2 f32"),
        (Other::Parameters, "and 1 parameters"),
        (Other::Type, "parameter 0 of 3 f64"),
        (Other::From, "state of rank 0 for exchange 0"),
        (Other::Number, "for exchange 1 and"),
    ] {
        // On a busy machine a rank may not be told in time in what they differ.
        let mut tries = (0..20).map(|_| on_local(3, move |group| share_with_another(group, other)));
        let is_told = tries.any(|errors| errors.iter().all(|error| error.contains(words)));
        assert!(is_told, "{other:?}: nothing of {words:?}");
    }
}

fn share_with_another(group: &Group, other: Other) -> String {
    let differs = group.rank() == 2;
    let other = Some(other).filter(|_| differs);
    let of = if differs { group.clone() } else { Group::solo() };
    if matches!(other, Some(Other::Number)) {
        let _first = GradientExchange::builder(&of).tensor("a", [8], Policy::topk(0.25)).build().unwrap();
    }
    let density = if matches!(other, Some(Other::Policy)) { 0.5 } else { 0.25 };
    let name = if matches!(other, Some(Other::Name)) { "b" } else { "a" };
    let mut builder = GradientExchange::builder(&of).tensor(name, [8], Policy::topk(density));
    match other {
        Some(Other::Seed) => builder = builder.seed(7),
        Some(Other::KeepGoing) => builder = builder.keep_going(),
        _ => {}
    }
    let mut exchange = builder.build().unwrap();
    let mut model = match other {
        Some(Other::Length) => vec![vec![1.0f32; 3], vec![2.0; 2]],
        Some(Other::Parameters) => vec![vec![1.0; 3]],
        _ => vec![vec![1.0; 3], vec![2.0; 1]],
    };
    let before = model.clone();
    let from = if matches!(other, Some(Other::From)) { 0 } else { FROM };
    let shared = if matches!(other, Some(Other::Type)) {
        exchange.share_state(group, from, &mut [vec![1.0f64; 3], vec![2.0; 1]])
    } else {
        exchange.share_state(group, from, &mut model)
    };
    let error = shared.unwrap_err();
    let is_told =
        matches!(error, Error::Collective(Collective::Mismatch { .. } | Collective::Differs { .. }));
    assert!(is_told, "{error:?}");
    assert!(model == before && exchange.group().is_same(&of) && exchange.number() <= 1);
    if !differs {
        exchange.average(&mut [vec![1.0f32; 8]]).unwrap();
    }
    error.to_string()
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_sent() {
    let group = Group::solo();
    let mut exchange = GradientExchange::builder(&group).tensor("a", [2], Policy::dense()).build().unwrap();
    let mut model = [vec![1.0f32; 2]];
    let refused = exchange.share_state(&group, 1, &mut model).unwrap_err();
    assert!(
        matches!(refused, Error::Collective(Collective::NoSuchRank { rank: 1, world_size: 1 })),
        "{refused}"
    );
    exchange.begin().unwrap().leave();
    let refused = exchange.share_state(&group, 0, &mut model).unwrap_err();
    assert!(refused.to_string().contains("in the middle of a step"), "{refused}");
    exchange.resume().unwrap().finish(&mut [vec![1.0f32; 2]]).unwrap();
    exchange.share_state(&group, 0, &mut model).unwrap();
    assert_eq!((model, exchange.number(), exchange.steps()), ([vec![1.0; 2]], 0, 1));
}

/// Nothing is converted on the way.
#[test]
fn parameters_of_every_type_keep_their_bits() {
    fn shared<E: Element>(values: [E; 3], zero: E) {
        let tensors = on_local(3, move |group| {
            let builder = GradientExchange::builder(group).tensor("a", [2], Policy::dense());
            let mut model = if group.rank() == FROM { [values] } else { [[zero; 3]] };
            builder.build().unwrap().share_state(group, FROM, &mut model).unwrap();
            bytemuck::bytes_of(&model[0]).to_vec()
        });
        assert_eq!(tensors, vec![bytemuck::bytes_of(&values).to_vec(); 3]);
    }
    shared([f16::from_bits(0x7e01), f16::from_bits(1), f16::NEG_INFINITY], f16::ZERO);
    shared([bf16::from_bits(0x7fc1), bf16::from_bits(1), bf16::MAX], bf16::ZERO);
    shared([f64::from_bits(0x7ff8_0000_0000_0001), -0.0, 1e300], 0.0);
    shared([u64::MAX, 1, 1 << 40], 0);
}

/// Ranks that come back build their exchanges in the order in which the others share them.
#[test]
fn several_exchanges_are_shared_one_after_the_other() {
    on_local(3, |group| {
        let of = if group.rank() == 2 { group.clone() } else { Group::solo() };
        let build = |policy| GradientExchange::builder(&of).tensor("a", [8], policy).build().unwrap();
        let mut exchanges = [Policy::topk(0.25), Policy::low_rank(1), Policy::topk(0.25)].map(build);
        for exchange in &mut exchanges {
            exchange.share_state::<f32, Vec<f32>>(group, 0, &mut []).unwrap();
        }
        for (number, exchange) in (0..).zip(&mut exchanges) {
            assert_eq!(exchange.number(), number);
            exchange.average(&mut [vec![1.0f32; 8]]).unwrap();
        }
    });
}
