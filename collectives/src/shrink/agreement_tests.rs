//! Agreements over a network that delivers in any order, loses members at any message, and lets time pass.

use super::*;

const PATIENCE: Duration = Duration::from_secs(1);

/// A network between the members of one agreement, driven by a generator.
struct Net {
    /// `None` for one that is dead.
    members: Vec<Option<Agreement>>,
    /// Messages on their way: sender, receiver, and what is said.
    flying: Vec<(u32, u32, Message)>,
    /// All that members have ended with.
    ended: Vec<Option<Outcome>>,
    now: Duration,
    state: u64,
    quorum: Quorum,
    /// A pair has a link unless it was cut.
    cut: Vec<(u32, u32)>,
}

impl Net {
    fn new(size: u32, quorum: Quorum, seed: u64) -> Self {
        let offers = |member: u32| vec![(40 + member as u16, 1), (7, 3 + member), (8, 1)];
        let member = |own| {
            Agreement::new((own, size), (quorum, PATIENCE), offers(own), Promises::default(), Duration::ZERO)
        };
        Self {
            members: (0..size).map(|own| Some(member(own))).collect(),
            flying: Vec::new(),
            ended: vec![None; size as usize],
            now: Duration::ZERO,
            state: seed,
            quorum,
            cut: Vec::new(),
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.state >> 33) as usize % below.max(1)
    }

    /// Lets a member do what is due, and puts its messages on their way.
    fn look(&mut self, own: u32) {
        let Some(member) = &mut self.members[own as usize] else { return };
        member.look(self.now);
        while let Some((to, message)) = member.next_message() {
            if !self.cut.contains(&(own.min(to), own.max(to))) {
                self.flying.push((own, to, message));
            }
        }
        if let Some(outcome) = member.outcome() {
            self.ended[own as usize].get_or_insert_with(|| outcome.clone());
        }
    }

    /// Kills a member: some of what it has sent last is lost, and the others learn of it at once.
    fn kill(&mut self, victim: u32) {
        self.members[victim as usize] = None;
        let kept: Vec<bool> = (0..self.flying.len()).map(|_| self.random(2) == 0).collect();
        let mut kept = kept.into_iter();
        self.flying.retain(|(from, ..)| *from != victim || kept.next().unwrap_or(true));
        self.members.iter_mut().flatten().for_each(|member| member.lose(victim));
    }

    fn deliver(&mut self, place: usize) {
        let (from, to, message) = self.flying.swap_remove(place);
        if let Some(member) = &mut self.members[to as usize] {
            member.receive(from, message, self.now);
        }
        self.look(to);
    }

    /// Runs to the end; `kills` die at random moments, and time passes at random if `hasty`.
    fn run(&mut self, mut kills: usize, is_hasty: bool) {
        let size = self.members.len() as u32;
        for step in 0..20_000 {
            (0..size).for_each(|own| self.look(own));
            let living = self.members.iter().flatten();
            if living.clone().all(|member| member.outcome().is_some()) {
                return self.check();
            }
            if kills > 0 && self.random(12) == 0 {
                kills -= 1;
                let living: Vec<u32> =
                    (0..size).filter(|own| self.members[*own as usize].is_some()).collect();
                let victim = living[self.random(living.len())];
                self.kill(victim);
            } else if self.flying.is_empty() || (is_hasty && step < 300 && self.random(6) == 0) {
                self.now += PATIENCE / 4;
            } else {
                let place = self.random(self.flying.len());
                self.deliver(place);
            }
        }
        panic!("no end: {:?}", self.ended);
    }

    /// Whatever was decided, by the living or the dead, is one value; none without a majority.
    fn check(&self) {
        let decided: Vec<&Value> = self
            .ended
            .iter()
            .flatten()
            .filter_map(|outcome| match outcome {
                Outcome::Decided(value) => Some(value),
                Outcome::GivenUp(_) => None,
            })
            .collect();
        assert!(decided.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", self.ended);
        if let (Some(value), Quorum::Majority) = (decided.first(), self.quorum) {
            assert!(2 * value.members.len() + usize::from(value.members[0] == 0) > self.members.len());
        }
    }
}

#[test]
fn those_who_answer_go_on() {
    for size in 1..=9 {
        let mut net = Net::new(size, Quorum::Majority, 1);
        net.run(0, false);
        let expected =
            Value { number: if size == 1 { 40 } else { 7 }, epoch: 2 + size, members: (0..size).collect() };
        let expected = if size == 1 { Value { epoch: 1, ..expected } } else { expected };
        assert!(net.ended.iter().all(|ended| *ended == Some(Outcome::Decided(expected.clone()))));
        assert_eq!(net.now, Duration::ZERO, "nobody waits");
    }
}

#[test]
fn never_two_values_whoever_dies_and_however_late_messages_are() {
    for seed in 0..6_000 {
        let size = 2 + (seed % 5) as u32;
        let kills = (seed / 5 % 3) as usize;
        Net::new(size, Quorum::Majority, seed).run(kills.min(size as usize - 1), seed % 2 == 0);
    }
}

/// Members that decide to go, some of which know that they may; fewer than half of them die.
#[test]
fn all_members_go_or_nobody_does() {
    for seed in 0..6_000 {
        let size = 1 + (seed % 6) as u32;
        let mut net = Net::new(size, Quorum::Majority, seed);
        let knowing = net.random(1 << size) as u32;
        for own in 0..size {
            let offers = if knowing >> own & 1 == 1 { vec![(9, 0)] } else { Vec::new() };
            let rule = (Quorum::Majority, PATIENCE);
            let member = Agreement::new((own, size), rule, offers, Promises::default(), Duration::ZERO);
            net.members[own as usize] = Some(member.taking_any());
        }
        let kills = net.random(size.div_ceil(2) as usize);
        net.run(kills, false);
        let living = net.members.iter().flatten();
        let ends: Vec<bool> =
            living.map(|member| matches!(member.outcome(), Some(Outcome::Decided(_)))).collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{seed}: {knowing:b}, {:?}", net.ended);
        let all = (1 << size) - 1;
        assert!(ends[0] || knowing != all, "{seed}: all know it, and stay: {:?}", net.ended);
        assert!(!ends[0] || knowing != 0, "{seed}: nobody knows it, and they go: {:?}", net.ended);
    }
}

#[test]
fn a_minority_gives_up_and_half_needs_rank_0() {
    for (dead, goes_on) in [(vec![1, 2], true), (vec![0, 1], false), (vec![0, 1, 2], false), (vec![0], true)]
    {
        let mut net = Net::new(4, Quorum::Majority, 5);
        dead.iter().for_each(|victim| net.kill(*victim));
        net.run(0, false);
        for own in (0..4).filter(|own| !dead.contains(&(*own as u32))) {
            let is_decided = matches!(net.ended[own], Some(Outcome::Decided(_)));
            assert_eq!(is_decided, goes_on, "{dead:?}: {:?}", net.ended);
        }
    }
    let mut net = Net::new(4, Quorum::Any, 5);
    (0..3).for_each(|victim| net.kill(victim));
    net.run(0, false);
    assert!(matches!(&net.ended[3], Some(Outcome::Decided(value)) if value.members == [3]));
}

#[test]
fn two_halves_of_a_cut_network_never_both_go_on() {
    for seed in 0..500 {
        let size = 2 + (seed % 6) as u32;
        let mut net = Net::new(size, Quorum::Majority, seed);
        let sides: Vec<bool> = (0..size).map(|_| net.random(2) == 0).collect();
        for low in 0..size {
            let others = low + 1..size;
            net.cut.extend(
                others.filter(|high| sides[low as usize] != sides[*high as usize]).map(|high| (low, high)),
            );
        }
        net.run(0, seed % 2 == 0);
        let going = |side: bool| {
            let mut ended = net.ended.iter().zip(&sides).filter(|(_, own)| **own == side);
            ended.any(|(ended, _)| matches!(ended, Some(Outcome::Decided(_))))
        };
        assert!(!(going(false) && going(true)), "{sides:?}: {:?}", net.ended);
    }
}

#[test]
fn a_silent_member_is_out_after_the_patience_and_learns_of_it() {
    for silent in 0..4_u32 {
        let mut net = Net::new(4, Quorum::Majority, 9);
        let sleeper = net.members[silent as usize].take();
        let mut left = 0;
        while !(0..4).all(|own| own == silent as usize || net.ended[own].is_some()) {
            (0..4).for_each(|own| net.look(own));
            match net.flying.iter().position(|(_, to, _)| *to != silent) {
                Some(place) => net.deliver(place),
                None => net.now += PATIENCE / 4,
            }
            left += 1;
            assert!(left < 1_000);
        }
        assert!(net.now >= PATIENCE && net.now <= 4 * PATIENCE, "{:?}", net.now);
        net.members[silent as usize] = sleeper;
        while !net.flying.is_empty() {
            net.deliver(0);
        }
        let Some(Outcome::Decided(value)) = &net.ended[silent as usize] else { panic!("{:?}", net.ended) };
        assert_eq!(value.members, (0..4).filter(|own| *own != silent).collect::<Vec<_>>());
    }
}

/// The first candidate has died while it told its decision, and the next one asks those who know it.
#[test]
fn a_candidate_that_learns_of_a_decision_tells_those_that_wait_for_it() {
    let rule = (Quorum::Majority, PATIENCE);
    let new = |own| Agreement::new((own, 4), rule, vec![(7, 1)], Promises::default(), Duration::ZERO);
    let (mut next, mut waiting) = (new(1), new(2));
    [&mut next, &mut waiting].into_iter().for_each(|member| {
        member.lose(0);
        member.look(Duration::ZERO);
    });
    while let Some((to, message)) = next.next_message() {
        if to == 2 {
            waiting.receive(1, message, Duration::ZERO);
        }
    }
    let value = Value { number: 7, epoch: 1, members: vec![0, 1, 2, 3] };
    next.receive(3, Message::Decided(value.clone()), Duration::ZERO);
    while let Some((to, message)) = next.next_message() {
        if to == 2 {
            waiting.receive(1, message, Duration::ZERO);
        }
    }
    assert_eq!(waiting.outcome(), Some(&Outcome::Decided(value)));
}

#[test]
fn what_was_accepted_in_a_call_that_gave_up_binds_the_next_one() {
    let mut first = Agreement::new(
        (0, 3),
        (Quorum::Majority, PATIENCE),
        vec![(7, 1)],
        Promises::default(),
        Duration::ZERO,
    );
    let value = Value { number: 9, epoch: 1, members: vec![0, 1] };
    let ballot = Ballot::default().next_of(1);
    first.receive(1, Message::Accept(ballot, value.clone()), Duration::ZERO);
    let promises = first.promises().clone();
    let mut again =
        Agreement::new((0, 3), (Quorum::Majority, PATIENCE), vec![(7, 1)], promises, Duration::ZERO);
    again.lose(1);
    again.look(Duration::ZERO);
    let Some((2, Message::Prepare(ballot))) = again.next_message() else { panic!("no candidate") };
    again.receive(2, Message::Promise { ballot, accepted: None, offers: vec![(7, 1)] }, Duration::ZERO);
    again.look(Duration::ZERO);
    assert_eq!(again.next_message(), Some((2, Message::Accept(ballot, value))));
}
