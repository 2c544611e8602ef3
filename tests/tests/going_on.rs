//! Exchanges that go on after a death at any message of a step, on a simulated network: all ranks that are
//! left have delivered the same steps, and nothing is lost or counted twice.
//!
//! Gradients are whole numbers, so sums of the first tensors are exact; the others have every other kind of
//! policy, and all ranks get the same bits.

mod ledger;
mod twice;

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use brevity::compress::quantise::Values;
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Error, GradientExchange, Group, Policy, PutBack, ReduceOp, Scope, Settings, Threshold};

const STEPS: u32 = 3;
pub(crate) const COUNT: usize = 60;
pub(crate) const TENSORS: usize = 15;
/// The first ones, of which mass is counted.
pub(crate) const EXACT: usize = 7;
/// Those of low rank, of which gradients have rank 1: columns are drawn anew in each step.
const MATRICES: Range<usize> = 7..9;
const DENSITY: f64 = 0.1;

/// Networks of other latencies, here and in `ci/exhaustive.sh`.
const SEEDS: u64 = 1;
const MANY_SEEDS: u64 = 40;

const TIMEOUT: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(4000);

/// How a step is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    AtOnce,
    TensorByTensor,
}

/// What the ranks do.
#[derive(Clone, Copy, Debug)]
struct Plan {
    world_size: u32,
    way: Way,
    /// Chooses the links.
    seed: u64,
    /// Whether fewer than a majority go on.
    any: bool,
}

pub(crate) type Tensors = Vec<Vec<f32>>;

/// What a rank has done.
#[derive(Clone, Debug, Default)]
struct Diary {
    /// The steps that it has begun, and among how many ranks.
    begun: Vec<(u32, u32)>,
    /// The averages that were delivered, by step, and over how many ranks they are.
    delivered: Vec<(u32, u32, Tensors)>,
    /// Its residuals before its first step, and after each one that has ended here.
    residuals: Vec<Tensors>,
    messages: u64,
    /// Of each time that it has gone on, or has failed to: its messages from the shrink on.
    going_on: Vec<(Range<u64>, bool)>,
    /// The steps that others had delivered, and this rank had not.
    caught_up: u32,
    has_ended: bool,
}

impl Diary {
    /// Notes what the rank has once its last step has ended.
    fn settle(&mut self, exchange: &GradientExchange) {
        self.residuals.truncate(self.begun.len());
        self.residuals.push(residuals(exchange));
    }
}

/// The gradients of a rank: whole numbers, different ones in each step.
pub(crate) fn gradients(rank: u32, step: u32) -> Tensors {
    let value = |tensor: usize, place: usize| {
        if MATRICES.contains(&tensor) {
            return ((rank + step + 1) as usize * (place / 10 + 1) * (place % 10 + 1)) as f32;
        }
        let seed = (rank * 31 + step * 7 + tensor as u32 * 3) as usize + place * 17;
        (seed * seed % 201) as f32 - 100.0
    };
    (0..TENSORS).map(|tensor| (0..COUNT).map(|place| value(tensor, place)).collect()).collect()
}

pub(crate) fn exchange(group: &Group) -> GradientExchange {
    let policies = [
        Policy::dense(),
        Policy::topk(DENSITY),
        Policy::gtopk(DENSITY),
        Policy::gtopk(DENSITY).put_back(PutBack::MergerKeeps),
        Policy::gtopk(DENSITY).hierarchical(),
        Policy::topk(DENSITY).scope(Scope::Bucket),
        Policy::topk(DENSITY).dense_steps(2),
        Policy::low_rank(2).min_compression(1.0).post_momentum(0.5),
        Policy::unbiased_low_rank(2).min_compression(1.0),
        Policy::oktopk(DENSITY),
        Policy::random_k(DENSITY),
        Policy::block(1.0).momentum(0.5),
        Policy::quantised(Values::Bf16),
        Policy::signum(0.5),
        Policy::topk(DENSITY).threshold(Threshold::Adaptive),
    ];
    let mut builder = GradientExchange::builder(group).keep_going();
    for (tensor, policy) in policies.into_iter().enumerate() {
        let shape = if MATRICES.contains(&tensor) { vec![6, 10] } else { vec![COUNT] };
        builder = builder.tensor(format!("tensor {tensor}"), shape, policy);
    }
    builder.build().unwrap()
}

pub(crate) fn residuals(exchange: &GradientExchange) -> Tensors {
    (0..TENSORS).map(|tensor| exchange.residual(&format!("tensor {tensor}")).unwrap()).collect()
}

/// The sums of averages over `size` ranks, of the tensors of which they are exact.
pub(crate) fn sums(averages: &Tensors, size: u32) -> Tensors {
    let sum = |average: &f32| (average * size as f32).round();
    averages[..EXACT].iter().map(|tensor| tensor.iter().map(sum).collect()).collect()
}

impl Plan {
    /// Latencies from 10 to 510 us, 1 ns a byte.
    fn links(self) -> Links {
        let (mut links, mut state) = (Links::new(100e-6, 1e-9), self.seed);
        for (low, high) in (0..self.world_size).flat_map(|high| (0..high).map(move |low| (low, high))) {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let alpha = 10e-6 + (state >> 40) as f64 / (1 << 24) as f64 * 500e-6;
            links = links.with_link(Rank(low), Rank(high), alpha, 1e-9);
        }
        links
    }

    fn simulate(self, faults: impl IntoIterator<Item = Fault>) -> Vec<Diary> {
        let diaries: Vec<_> = (0..self.world_size).map(|_| Rc::new(RefCell::new(Diary::default()))).collect();
        let cluster = Cluster::new(self.world_size, self.links()).with_faults(faults);
        let ended = run(cluster.clone(), |transport| {
            let group = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
            let diary = Rc::clone(&diaries[group.rank() as usize]);
            let cluster = cluster.clone();
            async move { self.run_rank(group, &diary, &cluster).await }
        });
        ended.unwrap();
        diaries.into_iter().map(|diary| diary.borrow().clone()).collect()
    }

    async fn run_rank(self, world: Group, diary: &RefCell<Diary>, cluster: &Cluster) {
        let own = world.rank();
        let (mut group, mut step) = (world.clone(), 0);
        let mut exchange = exchange(&group);
        diary.borrow_mut().residuals.push(residuals(&exchange));
        loop {
            let mut averages = gradients(own, step.min(STEPS - 1));
            let is_well = if step < STEPS {
                let size = group.world_size();
                diary.borrow_mut().begun.push((step, size));
                let (left, stepped) = self.step(exchange, &mut averages).await;
                exchange = left;
                diary.borrow_mut().messages = world.statistics().messages_sent;
                let is_well = match stepped {
                    Ok(()) => {
                        diary.borrow_mut().delivered.push((step, size, averages.clone()));
                        true
                    }
                    Err(Error::Collective(_)) => false,
                    Err(error) => panic!("{error}"),
                };
                step += 1;
                is_well
            } else {
                // The others may find a death that this rank does not meet any more.
                let is_open = poll_fn(|_| match group.failure() {
                    Some(_) => Poll::Ready(false),
                    None if cluster.now() >= END => Poll::Ready(true),
                    None => Poll::Pending,
                });
                if is_open.await {
                    break;
                }
                false
            };
            if !is_well {
                let refused =
                    exchange.save(&mut Vec::new()).and_then(|()| exchange.set_steps(exchange.steps()));
                if let Err(refused) = refused {
                    // What others have perhaps delivered can be neither saved nor sent again.
                    assert!(refused.to_string().contains("go_on"), "{refused}");
                    assert!(exchange.begin().is_err() && exchange.residual("tensor 0").is_none());
                    let shared = exchange.share_state_async(&group, 0, &mut [[0.0f32]]).await;
                    assert!(shared.unwrap_err().to_string().contains("go_on"));
                }
                let Some(gone) = self.go_on(group, (&mut exchange, &mut averages), (&mut step, diary)).await
                else {
                    break;
                };
                group = gone;
            }
            diary.borrow_mut().settle(&exchange);
        }
        diary.borrow_mut().has_ended = true;
    }

    /// Goes on, also after further deaths meanwhile. `None` if too few ranks are left.
    async fn go_on(
        self,
        mut group: Group,
        (exchange, averages): (&mut GradientExchange, &mut Tensors),
        (step, diary): (&mut u32, &RefCell<Diary>),
    ) -> Option<Group> {
        loop {
            // Those of the step that may be delivered.
            let size = exchange.group().world_size();
            let sent = || group.statistics().messages_sent;
            let before = sent();
            let shrunk = if self.any { group.start_shrink_any().await } else { group.start_shrink().await };
            let left = shrunk.ok()?;
            let gone_on = match exchange.go_on_async(&left, averages).await {
                Ok(was_delivered) => {
                    let mut diary = diary.borrow_mut();
                    if was_delivered {
                        diary.delivered.push((*step - 1, size, averages.clone()));
                        diary.caught_up += 1;
                    }
                    diary.settle(exchange);
                    true
                }
                Err(Error::Collective(_)) => false,
                Err(error) => panic!("{error}"),
            };
            diary.borrow_mut().going_on.push((before..sent(), gone_on));
            group = left;
            // They go on with the step that the last one of them has begun.
            if gone_on && let (steps, Ok(())) = group.start_all_reduce(vec![*step], ReduceOp::Max).await {
                *step = steps[0];
                return Some(group);
            }
        }
    }

    async fn step(
        self,
        exchange: GradientExchange,
        gradients: &mut Tensors,
    ) -> (GradientExchange, Result<(), Error>) {
        match self.way {
            Way::AtOnce => {
                let ((exchange, averages), stepped) = exchange.start(std::mem::take(gradients)).await;
                *gradients = averages;
                (exchange, stepped)
            }
            Way::TensorByTensor => {
                let mut exchange = exchange;
                let mut step = exchange.begin().unwrap();
                for tensor in (0..TENSORS).rev() {
                    step.ready(tensor, &gradients[tensor]).unwrap();
                }
                let stepped = step.finish_async(gradients).await.map(drop);
                (exchange, stepped)
            }
        }
    }

    /// A death of each rank at each message that it sends in its steps.
    fn deaths(self) -> Vec<Fault> {
        let calm = self.simulate([]);
        assert!(calm.iter().all(|diary| diary.has_ended && diary.delivered.len() == STEPS as usize));
        let deaths_of = |(rank, diary): (u32, &Diary)| {
            let death = move |messages| Fault::KillAfter { rank: Rank(rank), messages };
            (1..=diary.messages).map(death)
        };
        (0..).zip(&calm).flat_map(deaths_of).collect()
    }
}

fn victim_of(fault: &Fault) -> u32 {
    let Fault::KillAfter { rank, .. } = fault else { unreachable!() };
    rank.0
}

pub(crate) fn add(to: &mut Tensors, from: &Tensors, sign: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += sign * from);
    }
}

#[test]
fn after_a_death_at_any_message_all_have_delivered_the_same_steps() {
    kill_everywhere(1..=SEEDS);
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_deaths_at_any_message_of_steps() {
    kill_everywhere(1..=MANY_SEEDS);
}

fn kill_everywhere(seeds: RangeInclusive<u64>) {
    let mut all_caught_up = 0;
    for world_size in 2..=4 {
        for way in [Way::AtOnce, Way::TensorByTensor] {
            let (mut deaths, mut caught_up) = (0, 0);
            for seed in seeds.clone() {
                let plan = Plan { world_size, way, seed, any: false };
                // Of two ranks, the higher one does not go on alone.
                let has_majority = |fault: &Fault| world_size > 2 || victim_of(fault) > 0;
                for fault in plan.deaths().into_iter().filter(has_majority) {
                    deaths += 1;
                    caught_up += plan.kill(&[fault]).iter().map(|diary| diary.caught_up).sum::<u32>();
                }
            }
            println!(
                "{world_size} ranks, {way:?}: {deaths} deaths; {caught_up} ranks had a step to catch up"
            );
            all_caught_up += caught_up;
        }
    }
    assert!(all_caught_up > 0, "no death leaves ranks a step apart");
}

/// A rank gives up waiting in the barrier of a step, and the others have passed it.
#[test]
fn a_step_that_is_dropped_in_its_barrier_is_decided_later() {
    let cluster = Cluster::new(2, Links::new(100e-6, 1e-9));
    let ended = run(cluster, |transport| async move {
        let group = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
        let builder = GradientExchange::builder(&group).tensor("a", [2], Policy::dense()).keep_going();
        let mut exchange = builder.build().unwrap();
        let mut gradients = [vec![group.rank() as f32; 2]];
        let step = exchange.begin().unwrap();
        if group.rank() == 0 {
            let mut finish = Box::pin(step.finish_async(&mut gradients));
            // All messages of the bucket and the barrier have been sent when the other rank has ended.
            let mut polls = 0;
            poll_fn(|context| {
                polls += 1;
                match finish.as_mut().poll(context) {
                    Poll::Ready(_) => Poll::Ready(()),
                    Poll::Pending if polls > 6 => Poll::Ready(()),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await;
            drop(finish);
        } else {
            let _ = step.finish_async(&mut gradients).await;
        }
        let left = group.start_shrink().await.unwrap();
        let mut averages = [vec![0.0; 2]];
        let caught_up = exchange.go_on_async(&left, &mut averages).await.unwrap();
        (caught_up, exchange.residual("a").unwrap())
    });
    // Delivered on both or put back on both.
    let ended = ended.unwrap();
    let kept: f32 = ended.iter().map(|(_, residual)| residual[0]).sum();
    assert!(kept == 0.0 || (kept == 1.0 && ended.iter().all(|(caught_up, _)| !caught_up)), "{ended:?}");
}

#[test]
fn an_exchange_says_what_to_do() {
    let group = Group::solo();
    let mut plain = GradientExchange::builder(&group).tensor("a", [2], Policy::dense()).build().unwrap();
    let refused = plain.go_on(&group, &mut [vec![0.0; 2]]).unwrap_err().to_string();
    assert!(refused.contains("keep_going"), "{refused}");
    let builder = GradientExchange::builder(&group).tensor("a", [2], Policy::dense());
    let mut keeping = builder.keep_going().build().unwrap();
    keeping.average(&mut [vec![1.0; 2]]).unwrap();
    assert!(keeping.go_on(&group, &mut [vec![0.0; 3]]).is_err());
    assert!(!keeping.go_on(&group, &mut [vec![0.0; 2]]).unwrap());
    keeping.average(&mut [vec![1.0; 2]]).unwrap();
}
