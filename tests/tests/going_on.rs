//! Exchanges that go on after a death at any message of a step, on a simulated network: all ranks that are
//! left have delivered the same steps, and nothing is lost or counted twice.
//!
//! Gradients are whole numbers, so sums of the first tensors are exact; the others have every other kind of
//! policy, and all ranks get the same bits.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use brevity::compress::SparseVec;
use brevity::compress::quantise::Values;
use brevity::compress::select::{TopKScratch, top_k};
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Error, GradientExchange, Group, Policy, PutBack, Scope, Settings, Threshold};

const STEPS: u32 = 3;
pub(crate) const COUNT: usize = 60;
pub(crate) const TENSORS: usize = 15;
/// The first ones, of which mass is counted.
pub(crate) const EXACT: usize = 7;
/// Those of low rank, of which gradients have rank 1: columns are drawn anew in each step.
const MATRICES: std::ops::Range<usize> = 7..9;
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
}

pub(crate) type Tensors = Vec<Vec<f32>>;

/// What a rank has done.
#[derive(Clone, Debug, Default)]
struct Diary {
    /// The steps that it has begun.
    begun: Vec<u32>,
    /// The averages that were delivered, by step, and over how many ranks they are.
    delivered: Vec<(u32, u32, Tensors)>,
    /// Its residuals after its last step that has ended here.
    residuals: Tensors,
    messages: u64,
    /// The steps that others had delivered, and this rank had not.
    caught_up: u32,
    has_ended: bool,
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

    fn simulate(self, faults: Option<Fault>) -> Vec<Diary> {
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
        diary.borrow_mut().residuals = residuals(&exchange);
        loop {
            let mut averages = gradients(own, step.min(STEPS - 1));
            let is_well = if step < STEPS {
                diary.borrow_mut().begun.push(step);
                let size = group.world_size();
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
                let size = group.world_size();
                let Ok(left) = group.start_shrink().await else { break };
                group = left;
                if exchange.go_on_async(&group, &mut averages).await.unwrap() {
                    let mut diary = diary.borrow_mut();
                    diary.delivered.push((step - 1, size, averages.clone()));
                    diary.caught_up += 1;
                }
                // They go on with the step that the last one of them has begun.
                let (steps, reduced) = group.start_all_reduce(vec![step], brevity::ReduceOp::Max).await;
                reduced.unwrap();
                step = steps[0];
            }
            diary.borrow_mut().residuals = residuals(&exchange);
        }
        diary.borrow_mut().has_ended = true;
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

    /// What a rank has handed in, in the steps that it has begun.
    fn handed_in(rank: u32, begun: &[u32]) -> Tensors {
        let mut all = vec![vec![0.0; COUNT]; TENSORS];
        begun.iter().for_each(|step| add(&mut all, &gradients(rank, *step), 1.0));
        all
    }

    /// Kills a rank. Returns how many ranks have learned afterwards that a step was delivered.
    fn kill(self, fault: Fault) -> u32 {
        let Fault::KillAfter { rank: Rank(victim), messages } = fault else { unreachable!() };
        let diaries = self.simulate(Some(fault));
        let case = || format!("{self:?}, killed after {messages} messages of rank {victim}: {diaries:#?}");
        let living: Vec<u32> = (0..self.world_size).filter(|rank| *rank != victim).collect();
        let first = &diaries[living[0] as usize];
        for rank in &living {
            let diary = &diaries[*rank as usize];
            assert!(diary.has_ended, "rank {rank}, {}", case());
            assert_eq!(diary.delivered, first.delivered, "ranks {} and {rank}, {}", living[0], case());
        }
        let dead = &diaries[victim as usize];
        // The last step that the dead has begun may have been delivered.
        let last = dead.begun.last().copied();
        let ended = dead.delivered.last().map(|(step, ..)| *step);
        let was_delivered = first.delivered.iter().any(|(step, ..)| Some(*step) == last) && ended != last;
        let mut lost = Self::lost(&diaries, victim, case);
        for (tensor, lost) in lost.iter_mut().enumerate() {
            let mut kept = dead.residuals[tensor].clone();
            if let Some(last) = last.filter(|_| ended != last) {
                kept.iter_mut().zip(&gradients(victim, last)[tensor]).for_each(|(kept, own)| *kept += own);
                if was_delivered {
                    match tensor {
                        0 => kept.fill(0.0),
                        1 => {
                            let (mut sent, mut scratch) = (SparseVec::new(COUNT), TopKScratch::new());
                            let k = (DENSITY * COUNT as f64).round() as usize;
                            top_k(&kept, k, &mut sent, &mut scratch).unwrap();
                            sent.iter().for_each(|(index, _)| kept[index as usize] = 0.0);
                        }
                        // What merges have returned to the dead nobody knows.
                        _ => continue,
                    }
                }
            }
            assert_eq!(*lost, kept, "tensor {tensor}, {}", case());
        }
        diaries.iter().map(|diary| diary.caught_up).sum()
    }

    /// What all have handed in, less what was delivered, and what the living still have: what is lost with
    /// the dead.
    fn lost(diaries: &[Diary], victim: u32, case: impl Fn() -> String) -> Tensors {
        let mut lost = vec![vec![0.0; COUNT]; EXACT];
        let first = diaries.iter().enumerate().find(|(rank, _)| *rank != victim as usize);
        let (_, first) = first.unwrap_or_else(|| panic!("{}", case()));
        let delivered = first.delivered.iter().map(|(_, size, averages)| sums(averages, *size));
        delivered.for_each(|sums| add(&mut lost, &sums, -1.0));
        for (rank, diary) in diaries.iter().enumerate() {
            add(&mut lost, &Self::handed_in(rank as u32, &diary.begun), 1.0);
            if rank != victim as usize {
                add(&mut lost, &diary.residuals, -1.0);
            }
        }
        lost
    }
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

fn kill_everywhere(seeds: std::ops::RangeInclusive<u64>) {
    let mut all_caught_up = 0;
    for world_size in 2..=4 {
        for way in [Way::AtOnce, Way::TensorByTensor] {
            let (mut deaths, mut caught_up) = (0, 0);
            for seed in seeds.clone() {
                let plan = Plan { world_size, way, seed };
                let calm = plan.simulate(None);
                assert!(calm.iter().all(|diary| diary.has_ended && diary.delivered.len() == STEPS as usize));
                // Of two ranks, the higher one does not go on alone.
                for victim in u32::from(world_size == 2)..world_size {
                    for messages in 1..=calm[victim as usize].messages {
                        deaths += 1;
                        caught_up += plan.kill(Fault::KillAfter { rank: Rank(victim), messages });
                    }
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
