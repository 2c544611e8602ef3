//! Groups that are in use at once on a simulated network: a rank is killed after each of its messages.
//!
//! Of three groups, two have the victim as a member. The third goes on untouched; in the others each survivor
//! has the right result or an error that names the victim, and the next call fails.
//!
//! Continuous integration runs worlds of up to five ranks in a few orders of some of the collectives;
//! `ci/exhaustive.sh` runs the tests that are ignored: all orders, worlds of five and six, and random links.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use brevity::collectives::Result;
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, Settings};
use brevity_tests::mixed::{ThreeGroups, is_lost};
use brevity_tests::started::Collective;

/// When all groups are made and their use begins; when all ranks have done everything.
const START: Duration = Duration::from_millis(100);
const END: Duration = Duration::from_secs(1);

/// Long after anything that may still happen.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Three groups of a world, and what they do.
#[derive(Clone, Copy, Debug)]
struct Plan {
    groups: ThreeGroups,
    /// Which collective each group begins with, and how many it has to do.
    first: [usize; 3],
    count: usize,
    /// Chooses the links; all are equal for 0.
    seed: u64,
}

/// What a rank ends with.
#[derive(Debug)]
struct Ended {
    /// By group; none of a group that the rank is not in.
    parts: [Option<InGroup>; 3],
    /// A call on the group of all ranks afterwards.
    world: Result<()>,
    /// The messages before and after the groups were in use.
    messages: [u64; 2],
    at: Duration,
}

#[derive(Debug)]
struct InGroup {
    /// The collectives that have ended well, and the error of the next one.
    done: usize,
    first: Result<()>,
    /// A call afterwards.
    later: Result<()>,
}

impl Plan {
    /// A latency of 100 us and 1 ns a byte, or random ones.
    fn links(&self) -> Links {
        let mut links = Links::new(100e-6, 1e-9);
        if self.seed > 0 {
            let mut state = self.seed;
            for (low, high) in
                (0..self.groups.world_size).flat_map(|high| (0..high).map(move |low| (low, high)))
            {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let alpha = 10e-6 + (state >> 40) as f64 / (1 << 24) as f64 * 500e-6;
                links = links.with_link(Rank(low), Rank(high), alpha, 1e-9);
            }
        }
        links
    }

    /// The collectives of a group, in order. The third group has more to do, so that it outlasts the others.
    fn collectives(&self, group: usize) -> impl Iterator<Item = Collective> {
        let count = if group == 2 { self.count * 3 / 2 } else { self.count };
        Collective::ALL.into_iter().cycle().skip(self.first[group]).take(count)
    }

    fn simulate(&self, fault: Option<Fault>) -> Vec<Ended> {
        let cluster = Cluster::new(self.groups.world_size, self.links()).with_faults(fault);
        let ended = run(cluster.clone(), |transport| {
            let group = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
            self.run_rank(group, &cluster)
        });
        ended.unwrap()
    }

    async fn run_rank(&self, world: Group, cluster: &Cluster) -> Ended {
        let own = world.rank();
        let mut parts = Vec::new();
        for which in 0..3 {
            let colour = self.groups.has(which, own).then_some(0);
            if let Some(part) = world.start_split(colour, own).await.unwrap() {
                parts.push((which, part));
            }
        }
        let before = world.statistics().messages_sent;
        until(START, &world, cluster).await;
        let first = at_once(parts.iter().map(|(which, part)| self.use_group(*which, part))).await;
        let (after, at) = (world.statistics().messages_sent, cluster.now());
        let later = at_once(parts.iter().map(|(_, part)| Collective::Barrier.run(part, 0))).await;
        let on_world = Collective::Barrier.run(&world, 0).await;
        // A rank that leaves is lost for those that still need it.
        until(END, &world, cluster).await;
        let mut ended = Ended { parts: [None, None, None], world: on_world, messages: [before, after], at };
        for ((which, _), ((done, first), later)) in parts.iter().zip(first.into_iter().zip(later)) {
            ended.parts[*which] = Some(InGroup { done, first, later });
        }
        ended
    }

    /// Runs the collectives of a group until one fails.
    async fn use_group(&self, which: usize, part: &Group) -> (usize, Result<()>) {
        for (turn, collective) in self.collectives(which).enumerate() {
            if let Err(error) = collective.run(part, turn as u32).await {
                return (turn, Err(error));
            }
        }
        (self.collectives(which).count(), Ok(()))
    }

    /// Kills the victim before the groups are in use, and after each of its messages there. Returns the
    /// collectives that each death has interrupted.
    fn kill_everywhere(&self) -> Vec<Vec<Collective>> {
        let calm = self.simulate(None);
        for ended in &calm {
            let is_well = |part: &InGroup| part.first.is_ok() && part.later.is_ok();
            assert!(ended.parts.iter().flatten().all(is_well) && ended.world.is_ok(), "{self:?}: {ended:?}");
        }
        let (rank, [before, after]) = (Rank(self.groups.victim), calm[self.groups.victim as usize].messages);
        let after_messages = (before + 1..=after).map(|messages| Fault::KillAfter { rank, messages });
        let faults = [Fault::Kill { rank, at: START / 2 }].into_iter().chain(after_messages);
        faults.map(|fault| self.kill(fault)).collect()
    }

    /// Returns the collectives that have failed.
    fn kill(&self, fault: Fault) -> Vec<Collective> {
        let ended = self.simulate(Some(fault));
        let mut interrupted = Vec::new();
        for (rank, ended) in ended.iter().enumerate().filter(|(rank, _)| *rank != self.groups.victim as usize)
        {
            let case = || format!("{self:?}, {fault:?}, rank {rank}: {ended:?}");
            assert!(ended.at < END / 2, "{}", case());
            assert!(is_lost(&ended.world, self.groups.victim), "{}", case());
            for (which, part) in ended.parts.iter().enumerate() {
                let Some(InGroup { done, first, later }) = part else { continue };
                let is_right = match which {
                    2 => first.is_ok() && later.is_ok(),
                    _ => {
                        (first.is_ok() || is_lost(first, self.groups.victim))
                            && is_lost(later, self.groups.victim)
                    }
                };
                assert!(is_right, "group {which}, {}", case());
                interrupted.extend(self.collectives(which).nth(*done));
            }
        }
        interrupted
    }
}

async fn until(time: Duration, group: &Group, cluster: &Cluster) {
    poll_fn(|_| {
        group.progress();
        if cluster.now() >= time { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Runs all futures at the same time.
async fn at_once<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                *result = Some(output);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// Every victim of a world, in both layouts, and so many orders of the collectives of the first groups, of
/// which each has a third to do.
fn plans(world_size: u32, orders: usize) -> impl Iterator<Item = Plan> {
    let count = Collective::ALL.len();
    let layouts = (0..world_size).flat_map(|victim| [(victim, false), (victim, true)]);
    layouts.flat_map(move |(victim, are_apart)| {
        (0..orders).map(move |order| {
            let first = [0, order * count / orders + usize::from(are_apart), victim as usize + order];
            let groups = ThreeGroups { world_size, victim, are_apart };
            Plan { groups, first: first.map(|first| first % count), count: count.div_ceil(3), seed: 0 }
        })
    })
}

/// The same, each with all to do.
fn whole(plans: impl Iterator<Item = Plan>) -> impl Iterator<Item = Plan> {
    plans.map(|plan| Plan { count: Collective::ALL.len(), ..plan })
}

fn kill_in(plans: impl Iterator<Item = Plan>) {
    let deaths: Vec<_> = plans.flat_map(|plan| plan.kill_everywhere()).collect();
    let interrupted = deaths.concat();
    println!("{} deaths have interrupted {} calls", deaths.len(), interrupted.len());
    let missed = Collective::ALL.into_iter().find(|collective| !interrupted.contains(collective));
    assert_eq!(missed, None, "no death interrupts it");
}

#[test]
fn of_two_ranks_a_death_at_any_message_ends_its_groups_alone() {
    kill_in(plans(2, 4));
}

#[test]
fn of_three_ranks_a_death_at_any_message_ends_its_groups_alone() {
    kill_in(plans(3, 4));
}

#[test]
fn of_four_ranks_a_death_at_any_message_ends_its_groups_alone() {
    kill_in(plans(4, 3));
}

#[test]
fn of_five_ranks_a_death_at_any_message_ends_its_groups_alone() {
    kill_in(plans(5, 3).filter(|plan| plan.groups.victim.is_multiple_of(2)));
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_deaths_at_any_message_in_all_orders() {
    (2..=6).for_each(|world_size| kill_in(whole(plans(world_size, Collective::ALL.len()))));
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_deaths_at_any_message_over_random_links() {
    for world_size in [5, 6] {
        let plans: Vec<Plan> = whole(plans(world_size, 7)).collect();
        kill_in((1..=500).map(|seed| Plan { seed, ..plans[seed as usize % plans.len()] }));
    }
}

/// Four groups that overlap, three tasks a rank: 1,000 collectives in all.
#[test]
fn many_collectives_on_groups_that_overlap() {
    let groups: [&[u32]; 4] = [&[0, 1, 2], &[2, 3, 4], &[0, 2, 4], &[0, 1, 2, 3, 4]];
    let cluster = Cluster::new(5, Links::new(100e-6, 1e-9));
    let ended = run(cluster, |transport| async move {
        let world = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
        let mut parts = Vec::new();
        for members in groups {
            let colour = members.contains(&world.rank()).then_some(0);
            parts.push(world.start_split(colour, world.rank()).await.unwrap());
        }
        // A task for each of three groups, and the fourth in the task of one of them.
        let tasks = (0..3).map(|which| {
            let mine: Vec<_> = parts[which].iter().chain(parts[3].iter().filter(|_| which == 0)).collect();
            async move {
                for turn in 0..250 {
                    for part in &mine {
                        // The same on all ranks of the group.
                        let random = (turn * 4 + part.world_size()).wrapping_mul(0x9e37_79b9) >> 16;
                        let collective = Collective::ALL[random as usize % Collective::ALL.len()];
                        collective.run(part, turn).await.unwrap();
                    }
                }
            }
        });
        at_once(tasks).await.len()
    });
    assert_eq!(ended.unwrap(), [3; 5]);
}
