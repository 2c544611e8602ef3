//! Groups that go on without the dead, on a simulated network: a rank is killed after each of its messages,
//! and another one after each of its messages of the agreement that follows.
//!
//! Continuous integration runs worlds of up to four ranks; `ci/exhaustive.sh` runs the tests that are
//! ignored.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use brevity::collectives::{Error, Result};
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, Settings};
use brevity_tests::random::Random;
use brevity_tests::started::Collective;

/// When all ranks have done everything: long after anything that may still happen.
pub(crate) const END: Duration = Duration::from_secs(4000);

/// The timeout of calls. Silent ranks are out after it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of calls where links are cut: far more than any call takes. Longer ones take longer to run.
const SHORT: Duration = Duration::from_millis(100);

/// The time before each look at a group: long after any agreement then.
const LOOK: Duration = Duration::from_secs(10);

/// A world, and what its ranks do on each group: they begin again on the one that is left after a loss.
#[derive(Clone, Copy, Debug)]
struct Plan {
    world_size: u32,
    collectives: &'static [Collective],
    /// Whether any number of ranks goes on.
    any: bool,
    /// Chooses the links; all are equal for 0.
    seed: u64,
    /// How many more calls the ranks of a group make later. Who has missed a failure is alone in them.
    looks: u32,
}

/// What a rank ends with.
#[derive(Debug)]
struct Ended {
    /// The members of its last group, in the world's numbers; or why it has none.
    last: Result<Vec<u32>>,
    /// The messages that it had sent before its first agreement and after its last one.
    messages: [u64; 2],
    /// When its last group was made.
    at: Duration,
}

impl Plan {
    const fn new(world_size: u32, collectives: &'static [Collective]) -> Self {
        Self { world_size, collectives, any: false, seed: 0, looks: 0 }
    }

    fn links(&self) -> Links {
        let mut links = Links::new(100e-6, 1e-9);
        if self.seed > 0 {
            let mut state = self.seed;
            for (low, high) in self.pairs() {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let alpha = 10e-6 + (state >> 40) as f64 / (1 << 24) as f64 * 500e-6;
                links = links.with_link(Rank(low), Rank(high), alpha, 1e-9);
            }
        }
        links
    }

    fn simulate(&self, faults: impl IntoIterator<Item = Fault>) -> Vec<Ended> {
        let cluster = Cluster::new(self.world_size, self.links()).with_faults(faults);
        run(cluster.clone(), |transport| {
            let timeout = if self.looks > 0 { SHORT } else { TIMEOUT };
            let group = Group::new(transport, Settings { timeout, ..Settings::default() });
            self.run_rank(group, &cluster)
        })
        .unwrap()
    }

    async fn run_rank(&self, world: Group, cluster: &Cluster) -> Ended {
        let (mut group, mut messages, mut at) = (world.clone(), None, Duration::ZERO);
        let sent = || world.statistics().messages_sent;
        loop {
            if self.lasts(&group, cluster).await {
                break;
            }
            messages.get_or_insert(sent());
            let shrunk = if self.any { group.start_shrink_any().await } else { group.start_shrink().await };
            at = cluster.now();
            match shrunk {
                Ok(next) => group = next,
                Err(error) => {
                    let ended = Ended { last: Err(error), messages: [messages.unwrap_or(0), sent()], at };
                    is_open_until(END, &world, cluster).await;
                    until_end(&world, cluster).await;
                    return ended;
                }
            }
        }
        let last = Ok(group.members().iter().map(|member| member.0).collect());
        Ended { last, messages: [messages.unwrap_or(sent()), sent()], at }
    }

    /// Whether a group does its work and stays open.
    async fn lasts(&self, group: &Group, cluster: &Cluster) -> bool {
        let mut is_good = self.use_group(group).await.is_ok();
        for turn in 0..self.looks {
            is_good = is_good && is_open_until(cluster.now() + LOOK, group, cluster).await;
            is_good = is_good && Collective::AllReduce.run(group, turn).await.is_ok();
        }
        // The others may find a death that this rank does not meet any more.
        is_good && is_open_until(END, group, cluster).await
    }

    async fn use_group(&self, group: &Group) -> Result<()> {
        for (turn, collective) in self.collectives.iter().enumerate() {
            collective.run(group, turn as u32).await?;
        }
        Ok(())
    }

    /// Whether so many ranks of the old group go on; a majority by default.
    fn goes_on(&self, living: &[u32]) -> bool {
        let counts = 2 * living.len() + usize::from(living[0] == 0) > self.world_size as usize;
        self.any || counts
    }

    /// Runs with these deaths. All survivors have the same group, of the survivors alone; or none, if they
    /// are not enough.
    fn kill(&self, faults: &[Fault]) -> Vec<Ended> {
        let ended = self.simulate(faults.iter().copied());
        let case = || format!("{self:?}, {faults:?}: {ended:?}");
        let dead: Vec<u32> = faults.iter().filter_map(|fault| self.victim(*fault, &ended)).collect();
        let living: Vec<u32> = (0..self.world_size).filter(|rank| !dead.contains(rank)).collect();
        let decided = ended.iter().filter(|ended| ended.last.is_ok()).count();
        for rank in &living {
            let Ended { last, at, .. } = &ended[*rank as usize];
            match last {
                Ok(members) => assert_eq!(*members, living, "rank {rank}: {}", case()),
                // A second death may come before or after the first decision.
                Err(Error::NoMajority { .. }) => {
                    assert!(!self.goes_on(&living) && decided == 0, "rank {rank}: {}", case());
                }
                Err(error) => panic!("rank {rank}: {error}: {}", case()),
            }
            assert!(*at < TIMEOUT / 2, "nobody waits for a timeout: rank {rank}: {}", case());
        }
        ended
    }

    /// Cuts these links, before or after a death: all ranks of at most one group go on, and no other ones.
    fn cut(&self, links: &[(u32, u32)], at: Duration, death: Option<u32>) {
        let died = Duration::from_micros(60);
        let death = death.map(|rank| Fault::Kill { rank: Rank(rank), at: died });
        let cuts = links.iter().map(|(a, b)| Fault::Cut { a: Rank(*a), b: Rank(*b), at });
        let ended = self.simulate(death.into_iter().chain(cuts));
        let goes_on = |rank: u32| ended[rank as usize].last.as_ref().ok();
        for rank in 0..self.world_size {
            let others = goes_on(rank).map_or(&[][..], |members| &members[..]);
            let is_one_group = others.iter().all(|other| goes_on(*other) == goes_on(rank));
            let is_alone = (0..self.world_size)
                .all(|other| others.is_empty() || others.contains(&other) || goes_on(other).is_none());
            assert!(is_one_group && is_alone, "{self:?}, {links:?} at {at:?}, {death:?}: {ended:#?}");
        }
    }

    /// Cuts links at random, as a rule between no two sides, at each of 24 moments. Returns how often.
    fn cut_any(&self, random: &mut Random, times: usize) -> usize {
        for moment in 0..24 {
            for _ in 0..times {
                let links: Vec<_> = self.pairs().filter(|_| random.below(2) == 0).collect();
                let death = (random.below(3) == 0).then(|| random.below(self.world_size as usize) as u32);
                self.cut(&links, Duration::from_micros(50 * moment), death);
            }
        }
        24 * times
    }

    /// The links between two sides, one of which has the ranks whose bits are set.
    fn between(&self, side: u32) -> Vec<(u32, u32)> {
        let is_cut = |(low, high): &(u32, u32)| (side >> low ^ side >> high) & 1 == 1;
        self.pairs().filter(is_cut).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        (0..self.world_size).flat_map(|high| (0..high).map(move |low| (low, high)))
    }

    /// Cuts the network in two in all ways, at each of 24 moments of the call and the agreement: without a
    /// death, and after one. Returns the number of cuts.
    fn cut_everywhere(&self) -> usize {
        let mut count = 0;
        for moment in 0..24 {
            for links in (1..1_u32 << (self.world_size - 1)).map(|side| self.between(side)) {
                for death in [None, Some(0), Some(self.world_size - 1)] {
                    self.cut(&links, Duration::from_micros(50 * moment), death);
                    count += 1;
                }
            }
        }
        count
    }

    /// The rank that dies, unless it has ended before.
    fn victim(&self, fault: Fault, ended: &[Ended]) -> Option<u32> {
        match fault {
            Fault::Kill { rank, .. } => Some(rank.0),
            Fault::KillAfter { rank, messages } => {
                (ended[rank.0 as usize].messages[1] >= messages).then_some(rank.0)
            }
            Fault::Stall { .. } | Fault::Cut { .. } => None,
        }
    }

    /// All messages after which a rank may die while everything goes well.
    fn deaths(&self, rank: u32) -> impl Iterator<Item = Fault> + use<> {
        let messages = self.simulate(None)[rank as usize].messages[1];
        (1..=messages).map(move |messages| Fault::KillAfter { rank: Rank(rank), messages })
    }

    /// Kills each rank at each of its messages. Returns the number of deaths.
    fn kill_everywhere(&self) -> usize {
        let deaths: Vec<Fault> = (0..self.world_size).flat_map(|rank| self.deaths(rank)).collect();
        deaths.iter().for_each(|death| _ = self.kill(&[*death]));
        deaths.len()
    }

    /// Likewise, and then another one at each of the messages that it sends afterwards.
    fn kill_twice(&self) -> usize {
        let mut count = 0;
        for first in (0..self.world_size).flat_map(|rank| self.deaths(rank)) {
            let ended = self.kill(&[first]);
            let Some(victim) = self.victim(first, &ended) else { continue };
            for rank in (0..self.world_size).filter(|rank| *rank != victim) {
                let [before, after] = ended[rank as usize].messages;
                for messages in before..=after {
                    self.kill(&[first, Fault::KillAfter { rank: Rank(rank), messages }]);
                    count += 1;
                }
            }
        }
        count
    }
}

/// Whether the group stays open so long.
pub(crate) async fn is_open_until(time: Duration, group: &Group, cluster: &Cluster) -> bool {
    poll_fn(|_| {
        if group.failure().is_some() {
            return Poll::Ready(false);
        }
        if cluster.now() >= time { Poll::Ready(true) } else { Poll::Pending }
    })
    .await
}

pub(crate) async fn until_end(group: &Group, cluster: &Cluster) {
    poll_fn(|_| {
        group.progress();
        if cluster.now() >= END { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn after_a_death_at_any_message_of_any_collective_the_others_go_on() {
    for world_size in 2..=4 {
        let deaths = Plan::new(world_size, &Collective::ALL).kill_everywhere();
        println!("{world_size} ranks: {deaths} deaths");
    }
}

#[test]
fn as_few_as_are_left_go_on_if_that_is_asked_for() {
    for world_size in 2..=3 {
        Plan { any: true, ..Plan::new(world_size, &[Collective::AllReduce]) }.kill_everywhere();
    }
}

#[test]
fn a_second_death_in_the_agreement_leaves_one_group_too() {
    let deaths = Plan::new(4, &[Collective::AllReduce]).kill_twice();
    assert!(deaths > 100, "{deaths}");
}

/// Both groups are closed by a death, and the ranks shrink them in different orders.
#[test]
fn two_groups_shrink_at_once() {
    let cluster = Cluster::new(4, Links::new(100e-6, 1e-9))
        .with_faults([Fault::Kill { rank: Rank(3), at: Duration::from_millis(20) }]);
    let ended = run(cluster.clone(), |transport| {
        let cluster = cluster.clone();
        async move {
            let world = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
            let twin = world.start_split(Some(0), world.rank()).await.unwrap().unwrap();
            is_open_until(END, &world, &cluster).await;
            if world.rank() == 3 {
                return;
            }
            let (first, second) = if world.rank() == 1 { (&twin, &world) } else { (&world, &twin) };
            let (mut first, mut second) = (Box::pin(first.start_shrink()), Box::pin(second.start_shrink()));
            let (mut one, mut two) = (None, None);
            poll_fn(|context| {
                if one.is_none()
                    && let Poll::Ready(group) = first.as_mut().poll(context)
                {
                    one = Some(group.unwrap());
                }
                if two.is_none()
                    && let Poll::Ready(group) = second.as_mut().poll(context)
                {
                    two = Some(group.unwrap());
                }
                if one.is_some() && two.is_some() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let (one, two) = (one.unwrap(), two.unwrap());
            // In one order again.
            for group in if world.rank() == 1 { [two, one] } else { [one, two] } {
                assert_eq!(group.members(), [Rank(0), Rank(1), Rank(2)]);
                Collective::AllReduce.run(&group, 0).await.unwrap();
            }
            let again = world.start_shrink().await;
            assert!(matches!(again, Err(Error::HasShrunk)), "{:?}", again.err());
            until_end(&world, &cluster).await;
        }
    });
    ended.unwrap();
}

/// A rank that is stopped is out after the timeout, and learns of it when it wakes.
#[test]
fn a_rank_that_was_stopped_is_excluded() {
    for stopped in 0..4 {
        let plan = Plan::new(4, &[Collective::AllReduce, Collective::Barrier]);
        let at = Duration::from_micros(50);
        let stall = Fault::Stall { rank: Rank(stopped), at, lasting: 20 * TIMEOUT };
        let ended = plan.simulate([stall]);
        let others: Vec<u32> = (0..4).filter(|rank| *rank != stopped).collect();
        for rank in &others {
            let Ended { last, at, .. } = &ended[*rank as usize];
            assert_eq!(last.as_ref().unwrap(), &others, "{stopped} stopped: {ended:?}");
            // Each rank has waited for its timeout before.
            assert!(*at < 5 * TIMEOUT, "{stopped} stopped: {ended:?}");
        }
        assert!(matches!(ended[stopped as usize].last, Err(Error::Excluded)), "{stopped} stopped: {ended:?}");
    }
}

/// Of a network that is cut in two, the side with the majority goes on, or with rank 0 if both are as large.
#[test]
fn of_a_cut_network_one_side_goes_on() {
    for world_size in 2..=5_u32 {
        for side in 1..(1_u32 << (world_size - 1)) {
            let is_far = |rank: &u32| side >> rank & 1 == 1;
            let pairs = (0..world_size).flat_map(|high| (0..high).map(move |low| (low, high)));
            let cuts = pairs
                .filter(|(low, high)| is_far(low) != is_far(high))
                .map(|(low, high)| Fault::Cut { a: Rank(low), b: Rank(high), at: Duration::from_micros(50) });
            let ended = Plan::new(world_size, &[Collective::AllReduce]).simulate(cuts);
            let far: Vec<u32> = (0..world_size).filter(is_far).collect();
            let near: Vec<u32> = (0..world_size).filter(|rank| !is_far(rank)).collect();
            let enough = |ranks: &[u32]| {
                2 * ranks.len() + usize::from(ranks.first() == Some(&0)) > world_size as usize
            };
            for ranks in [far, near] {
                for rank in &ranks {
                    let last = &ended[*rank as usize].last;
                    let is_right = match last {
                        Ok(members) => enough(&ranks) && *members == ranks,
                        Err(error) => !enough(&ranks) && matches!(error, Error::NoMajority { .. }),
                    };
                    assert!(is_right, "{world_size} ranks, side {side:b}, rank {rank}: {ended:?}");
                }
            }
        }
    }
}

/// Also if it is cut while a call ends, or while the ranks agree after a death.
#[test]
fn whenever_a_network_is_cut_one_group_goes_on_at_most() {
    for world_size in 2..=5 {
        let plan = Plan { looks: 3, ..Plan::new(world_size, &[Collective::AllReduce]) };
        let cuts = plan.cut_everywhere();
        println!("{world_size} ranks: {cuts} cuts");
    }
}

/// Also if members answer the rank that leads and can't reach each other.
#[test]
fn whatever_links_are_cut_one_group_goes_on_at_most() {
    for world_size in 3..=5 {
        let plan = Plan { looks: 3, ..Plan::new(world_size, &[Collective::AllReduce]) };
        let cuts = plan.cut_any(&mut Random::new(world_size.into()), 4);
        println!("{world_size} ranks: {cuts} cuts");
    }
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_cuts_of_links() {
    for (world_size, seed) in (3..=6).flat_map(|size| (0..20).map(move |seed| (size, seed))) {
        for collectives in [&[Collective::AllReduce][..], &[Collective::Barrier, Collective::TopK(false)]] {
            let plan = Plan { looks: 3, seed, ..Plan::new(world_size, collectives) };
            plan.cut_any(&mut Random::new(seed + 1), 10);
        }
        println!("{world_size} ranks, links {seed}");
    }
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_cuts_of_networks() {
    for (world_size, seed) in (3..=6).flat_map(|size| (0..20).map(move |seed| (size, seed))) {
        for collectives in [&[Collective::AllReduce][..], &[Collective::Barrier, Collective::TopK(false)]] {
            let plan = Plan { looks: 3, seed, ..Plan::new(world_size, collectives) };
            plan.cut_everywhere();
        }
        println!("{world_size} ranks, links {seed}");
    }
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_deaths_at_any_message_of_larger_worlds() {
    for world_size in 5..=6 {
        let plans = (1..=500).map(|seed| Plan { seed, ..Plan::new(world_size, &Collective::ALL) });
        for (place, plan) in plans.enumerate() {
            let rank = place as u32 % world_size;
            let deaths: Vec<Fault> = plan.deaths(rank).collect();
            plan.kill(&[deaths[place * 7 % deaths.len()]]);
        }
    }
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_second_deaths_in_the_agreement() {
    for collective in &Collective::ALL {
        for world_size in 3..=5 {
            let deaths = Plan::new(world_size, std::slice::from_ref(collective)).kill_twice();
            println!("{collective:?}, {world_size} ranks: {deaths} second deaths");
        }
    }
}
