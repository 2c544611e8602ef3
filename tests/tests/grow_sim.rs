//! Ranks that go to a new world, to which lost ones come back, on a simulated network: processes die after
//! each of their messages, and another one after each of its own.
//!
//! Each process has a place in the world of the old group and in the new one. How they meet and join is left
//! out: it has ended, or failed, before the first message that counts. Continuous integration runs worlds of
//! up to four ranks; `ci/exhaustive.sh` runs the tests that are ignored.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use brevity::collectives::engine::join;
use brevity::collectives::{Error, Result};
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::transport::{Rank, Transport};
use brevity::{Group, Settings};
use brevity_tests::started::Collective;

use crate::shrink::{END, TIMEOUT, is_open_until, until_end};

/// When all have joined, or failed to: only what comes later counts.
const JOINED: Duration = Duration::from_millis(50);

/// Some processes of a job, a bit for each.
type Set = u32;

/// A job that grows.
#[derive(Clone, Copy, Debug)]
struct Plan {
    size: u32,
    /// Those that come back. The others are left.
    back: Set,
    /// Those that are left and can't join the new world.
    failed: Set,
    /// Chooses the links; all are equal for 0.
    seed: u64,
    /// Whether the ranks of a last group make another call long afterwards.
    looks_again: bool,
}

/// What a process ends with.
#[derive(Debug)]
struct Ended {
    /// Whether its last group is of the new world. `None` for one that has come back and calls again.
    is_new: Option<bool>,
    /// The members of its last group; or why it has none.
    last: Result<Vec<u32>>,
    /// The messages that it had sent when it had joined, and at its end.
    messages: [u64; 2],
    /// When it began to confirm what it has joined, and when its last group was made.
    began: Duration,
    at: Duration,
}

fn has(set: Set, process: u32) -> bool {
    set >> process & 1 == 1
}

/// Whether so many of these processes are enough to go on.
fn go_on(living: &[u32], of: &[u32]) -> bool {
    2 * living.len() + usize::from(living.contains(&of[0])) > of.len()
}

impl Plan {
    const fn new(size: u32, back: Set) -> Self {
        Self { size, back, failed: 0, seed: 0, looks_again: false }
    }

    /// All jobs of so many ranks, of which some are left and others come back.
    fn all(size: u32) -> impl Iterator<Item = Self> {
        (1..(1 << size) - 1).map(move |back| Self::new(size, back))
    }

    /// Those of these jobs in which one that is left can't join.
    fn all_failing(size: u32) -> impl Iterator<Item = Self> {
        let failing =
            |plan: Self| plan.left().into_iter().map(move |failed| Self { failed: 1 << failed, ..plan });
        Self::all(size).flat_map(failing)
    }

    fn left(&self) -> Vec<u32> {
        (0..self.size).filter(|process| !has(self.back, *process)).collect()
    }

    fn links(&self) -> Links {
        let (mut links, mut state) = (Links::new(100e-6, 1e-9), self.seed);
        for (low, high) in (0..2 * self.size).flat_map(|high| (0..high).map(move |low| (low, high))) {
            if self.seed > 0 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let alpha = 10e-6 + (state >> 40) as f64 / (1 << 24) as f64 * 500e-6;
                links = links.with_link(Rank(low), Rank(high), alpha, 1e-9);
            }
        }
        links
    }

    fn simulate(&self, faults: &[Fault]) -> Vec<Ended> {
        let network = Cluster::new(2 * self.size, self.links()).with_twins();
        let cluster = network.with_faults(faults.iter().copied());
        let transports = RefCell::new(Vec::new());
        let ended = run(cluster.clone(), |transport| {
            let rank = transport.rank().0;
            transports.borrow_mut().push(Some(transport));
            let (cluster, transports) = (&cluster, &transports);
            async move {
                let take = |place: u32| transports.borrow_mut()[place as usize].take().unwrap();
                if rank >= self.size {
                    return None;
                }
                let mut ended = self.live(rank, [take(rank), take(rank + self.size)], cluster).await;
                ended.messages[1] = cluster.messages_sent(Rank(rank));
                Some(ended)
            }
        });
        ended.unwrap().into_iter().flatten().collect()
    }

    async fn live(&self, own: u32, worlds: [Box<dyn Transport>; 2], cluster: &Cluster) -> Ended {
        let sent = || cluster.messages_sent(Rank(own));
        let (last, zero) = (Ok(Vec::new()), Duration::ZERO);
        let mut ended = Ended { is_new: None, last, messages: [0; 2], began: zero, at: zero };
        let groups = self.join(own, worlds).await;
        poll_fn(|_| if cluster.now() >= JOINED { Poll::Ready(()) } else { Poll::Pending }).await;
        (ended.messages[0], ended.began) = (sent(), cluster.now());
        let (old, new) = match groups {
            Ok(groups) => groups,
            Err(error) => return Ended { last: Err(error), ..ended },
        };
        let left = self.left();
        let (is_new, group) = match (old, new) {
            (Some(old), new) => match old.start_confirm(new, &left).await {
                Ok(Some(next)) => {
                    let again = old.start_shrink().await;
                    assert!(matches!(again, Err(Error::HasGrown)), "{:?}", again.err());
                    (true, next)
                }
                Ok(None) | Err(_) => (false, old),
            },
            (None, Some(new)) => match new.start_confirm_return(&left).await {
                Ok(next) => (true, next),
                Err(error) => return Ended { last: Err(error), ..ended },
            },
            (None, None) => unreachable!("one that comes back has joined"),
        };
        (ended.is_new, ended.at) = (Some(is_new), cluster.now());
        ended.last = self.use_groups(group, cluster, &mut ended.at).await;
        ended
    }

    /// The old group of one that is left, and the new one of one that joins it.
    async fn join(
        &self,
        own: u32,
        worlds: [Box<dyn Transport>; 2],
    ) -> Result<(Option<Group>, Option<Group>)> {
        let settings = Settings { timeout: TIMEOUT, ..Settings::default() };
        let [old, new] = worlds.map(|world| Group::new(world, settings));
        let colour = (!has(self.back, own)).then_some(0);
        let (old, new) = join(old.start_split(colour, own), new.start_split(Some(1), own)).await;
        Ok((old?, new?.filter(|_| !has(self.failed, own))))
    }

    /// Makes calls until the end, and shrinks when one fails. Gives the members of the last group.
    async fn use_groups(&self, mut group: Group, cluster: &Cluster, at: &mut Duration) -> Result<Vec<u32>> {
        loop {
            let mut is_good = Collective::AllReduce.run(&group, 0).await.is_ok();
            if self.looks_again {
                is_good &= is_open_until(END / 2, &group, cluster).await;
                is_good = is_good && Collective::AllReduce.run(&group, 1).await.is_ok();
            }
            if is_good && is_open_until(END, &group, cluster).await {
                return Ok(group.members().iter().map(|member| member.0 % self.size).collect());
            }
            let next = group.start_shrink().await;
            *at = cluster.now();
            match next {
                Ok(next) => group = next,
                Err(error) => {
                    until_end(&group, cluster).await;
                    return Err(error);
                }
            }
        }
    }

    /// Runs with these deaths. All that are left and live have the same group, of the living alone; or none,
    /// if they are not enough.
    fn kill(&self, faults: &[Fault]) -> Vec<Ended> {
        let ended = self.simulate(faults);
        let case = || format!("{self:?}, {faults:?}: {ended:#?}");
        let is_dead = |process: &u32| {
            faults.iter().any(|fault| match fault {
                Fault::KillAfter { rank, messages } => {
                    rank.0 == *process && ended[*process as usize].messages[1] >= *messages
                }
                Fault::Kill { rank, .. } => rank.0 == *process,
                Fault::Stall { .. } | Fault::Cut { .. } => false,
            })
        };
        let old = self.left();
        let living_of = |of: &[u32]| of.iter().copied().filter(|it| !is_dead(it)).collect::<Vec<_>>();
        let left = living_of(&old);
        let is_new = |process: &u32| ended[*process as usize].is_new;
        let Some(first) = left.first() else { return ended };
        let go = is_new(first).unwrap_or_else(|| panic!("{first} has no group: {}", case()));
        if go_on(&left, &old) {
            assert!(left.iter().all(|process| is_new(process) == Some(go)), "they part: {}", case());
        }
        if self.failed != 0 {
            assert!(!left.iter().any(|process| is_new(process) == Some(true)), "not all: {}", case());
        } else if faults.is_empty() {
            assert!(go, "nobody has died: {}", case());
        }
        let of: Vec<u32> = if go { (0..self.size).collect() } else { old };
        self.check_last(&ended, &of, &living_of(&of), case);
        let back = (0..self.size).filter(|process| has(self.back, *process) && !is_dead(process));
        for process in back {
            let expected = go.then_some(true);
            assert!(is_new(&process) == expected || !go_on(&living_of(&of), &of), "{process}: {}", case());
        }
        ended
    }

    /// The living have the same group, or none if they are not enough.
    fn check_last(&self, ended: &[Ended], of: &[u32], living: &[u32], case: impl Fn() -> String) {
        let decided = living.iter().filter(|process| ended[**process as usize].last.is_ok()).count();
        for process in living {
            let Ended { last, at, .. } = &ended[*process as usize];
            match last {
                Ok(members) => assert_eq!(members, living, "process {process}: {}", case()),
                Err(Error::NoMajority { .. } | Error::HasGrown) => {
                    assert!(!go_on(living, of) && decided == 0, "process {process}: {}", case());
                }
                Err(error) => {
                    assert!(!go_on(living, of), "process {process}: {error}: {}", case());
                }
            }
            assert!(*at < TIMEOUT / 2, "nobody waits for a timeout: process {process}: {}", case());
        }
    }

    /// A death before the first message, and one after each.
    fn deaths(&self, process: u32, ended: &[Ended]) -> Vec<Fault> {
        let rank = Rank(process);
        let [joined, all] = ended[process as usize].messages;
        let later = (joined + 1..=all).map(|messages| Fault::KillAfter { rank, messages });
        later.chain([Fault::Kill { rank, at: JOINED / 2 }]).collect()
    }

    /// Kills each process at each of its messages. Returns the number of deaths.
    fn kill_everywhere(&self) -> usize {
        let ended = self.kill(&[]);
        let deaths: Vec<Fault> = (0..self.size).flat_map(|process| self.deaths(process, &ended)).collect();
        deaths.iter().for_each(|death| drop(self.kill(&[*death])));
        deaths.len()
    }

    /// Likewise, and then another one at each of its messages.
    fn kill_twice(&self) -> usize {
        let (calm, mut count) = (self.kill(&[]), 0);
        for (victim, first) in
            (0..self.size).flat_map(|it| self.deaths(it, &calm).into_iter().map(move |d| (it, d)))
        {
            let ended = self.kill(&[first]);
            for other in (0..self.size).filter(|other| *other != victim) {
                for second in self.deaths(other, &ended) {
                    self.kill(&[first, second]);
                    count += 1;
                }
            }
        }
        count
    }
}

#[test]
fn after_a_death_at_any_message_all_that_are_left_are_in_one_group() {
    for size in 2..=4 {
        for seed in 0..2 {
            let deaths: usize = Plan::all(size).map(|plan| Plan { seed, ..plan }.kill_everywhere()).sum();
            println!("{size} ranks, links {seed}: {deaths} deaths");
        }
    }
}

#[test]
fn nobody_goes_if_one_that_is_left_has_not_joined() {
    for size in 3..=4 {
        let deaths: usize = Plan::all_failing(size).map(|plan| plan.kill_everywhere()).sum();
        println!("{size} ranks: {deaths} deaths");
    }
}

#[test]
fn a_second_death_leaves_one_group_too() {
    let plans = Plan::all(3).chain([Plan::new(4, 1)]);
    let deaths: usize = plans.map(|plan| plan.kill_twice()).sum();
    println!("{deaths} second deaths");
}

/// If the network is cut while they decide, in both worlds, two groups never go on.
#[test]
fn of_a_cut_network_one_side_goes_on_at_most() {
    for plan in Plan::all(4) {
        let plan = Plan { looks_again: true, ..plan };
        let began = plan.simulate(&[])[0].began;
        for (side, moment) in (1..1_u32 << (plan.size - 1)).flat_map(|side| (0..24).map(move |at| (side, at)))
        {
            let at = began + Duration::from_micros(50 * moment);
            let pairs = (0..plan.size).flat_map(|high| (0..high).map(move |low| (low, high)));
            let cuts: Vec<Fault> = pairs
                .filter(|(low, high)| has(side, *low) != has(side, *high))
                .flat_map(|(low, high)| [(low, high), (low + plan.size, high + plan.size)])
                .map(|(a, b)| Fault::Cut { a: Rank(a), b: Rank(b), at })
                .collect();
            let ended = plan.simulate(&cuts);
            let mut going: Vec<_> =
                ended.iter().flat_map(|ended| ended.is_new.zip(ended.last.as_ref().ok())).collect();
            going.sort();
            going.dedup();
            assert!(going.len() <= 1, "{plan:?}, side {side:b} at {at:?}: {ended:#?}");
        }
    }
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_second_deaths() {
    for plan in Plan::all(4) {
        println!("{plan:?}: {} second deaths", plan.kill_twice());
    }
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_deaths_in_larger_worlds() {
    for size in 5..=6 {
        for (seed, plan) in (1..).zip(Plan::all(size).chain(Plan::all_failing(size))) {
            Plan { seed, ..plan }.kill_everywhere();
        }
    }
}
