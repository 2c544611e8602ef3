//! The agreement of a closed group's members on who goes on: a decision of one value by ballots (Lamport,
//! "The part-time parliament", TOCS 1998), as rules for messages and time.
//!
//! A *candidate* asks all for a promise, proposes the value of the highest ballot that any of them has
//! accepted, or else those who have answered, and decides it when a quorum has accepted it. The first
//! candidate is the lowest rank that is not gone; another one comes after it is gone, or silent for long.
//!
//! A quorum is more than half of the old members, or half of them with rank 0 among them, so that any two
//! have a member in common: whatever is lost or late, no two values are ever decided. What a member has
//! promised and accepted outlives a call that gives up.
//!
//! The members of a group that grows decide in the same way to leave for another world ([`super::decision`]).

use std::collections::BTreeMap;
use std::time::Duration;

use super::message::{Ballot, GivenUp, Message, Offer, Value};

/// Whose agreement is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quorum {
    /// More than half of the members, or half of them with rank 0.
    Majority,
    /// All that have answered.
    Any,
}

/// What a member has promised to others, and must not forget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promises {
    promised: Ballot,
    accepted: Option<(Ballot, Value)>,
}

impl Promises {
    /// Both, where two calls were made at once: the later ballots count.
    pub(super) fn merge(self, other: Self) -> Self {
        let ballot = |accepted: &Option<(Ballot, Value)>| accepted.as_ref().map(|(ballot, _)| *ballot);
        let is_later = ballot(&self.accepted) >= ballot(&other.accepted);
        Self {
            promised: self.promised.max(other.promised),
            accepted: if is_later { self.accepted } else { other.accepted },
        }
    }
}

/// What a call ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Decided(Value),
    GivenUp(GivenUp),
}

/// One member's part of an agreement.
pub(crate) struct Agreement {
    own: u32,
    gone: Vec<bool>,
    /// Members that this rank has waited for as candidates: they are not waited for again.
    silent: Vec<bool>,
    quorum: Quorum,
    /// How long to wait for members that are silent.
    patience: Duration,
    offers: Vec<Offer>,
    /// Whether the offer of one member is enough; otherwise all that have answered must have it.
    takes_any: bool,
    promises: Promises,
    candidacy: Option<Candidacy>,
    /// When this call has begun, or a candidate was heard last.
    heard_at: Duration,
    /// Until when this rank leaves it to others to be candidates.
    rests_until: Duration,
    /// The member that was told last that this rank waits for it as a candidate.
    told: Option<u32>,
    outcome: Option<Outcome>,
    out: Vec<(u32, Message)>,
}

/// An attempt of this rank to decide.
struct Candidacy {
    ballot: Ballot,
    until: Duration,
    phase: Phase,
}

/// What a member has accepted before, and the context numbers that are free there.
type Promised = (Option<(Ballot, Value)>, Vec<Offer>);

enum Phase {
    /// What the members have promised so far.
    Preparing(BTreeMap<u32, Promised>),
    /// The members that were asked to accept a value, and whether they have.
    Accepting(Value, BTreeMap<u32, bool>),
}

impl Agreement {
    pub(super) fn new(
        (own, size): (u32, u32),
        (quorum, patience): (Quorum, Duration),
        offers: Vec<Offer>,
        promises: Promises,
        now: Duration,
    ) -> Self {
        Self {
            own,
            gone: vec![false; size as usize],
            silent: vec![false; size as usize],
            quorum,
            patience,
            offers,
            takes_any: false,
            promises,
            candidacy: None,
            heard_at: now,
            rests_until: Duration::ZERO,
            told: None,
            outcome: None,
            out: Vec::new(),
        }
    }

    /// An agreement on what any of the members that have answered offers. All members make it so.
    pub(super) fn taking_any(self) -> Self {
        Self { takes_any: true, ..self }
    }

    /// Whether this rank has accepted a value, which may have been decided.
    pub(super) fn has_accepted(&self) -> bool {
        self.promises.accepted.is_some()
    }

    /// What the call ends with, once that is known.
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    pub(super) fn promises(&self) -> &Promises {
        &self.promises
    }

    /// The next message to send.
    pub(super) fn next_message(&mut self) -> Option<(u32, Message)> {
        self.out.pop()
    }

    /// A member is gone: it sends nothing any more.
    pub(super) fn lose(&mut self, member: u32) {
        let Some(gone) = self.gone.get_mut(member as usize) else { return };
        *gone = true;
        if self.promises.promised.candidate() == member {
            self.rests_until = Duration::ZERO;
        }
    }

    pub(super) fn is_gone(&self, member: u32) -> bool {
        self.gone.get(member as usize).is_none_or(|gone| *gone)
    }

    /// Takes a message of a member.
    pub(super) fn receive(&mut self, from: u32, message: Message, now: Duration) {
        match self.silent.get_mut(from as usize) {
            Some(silent) => *silent = false,
            None => return,
        }
        match message {
            Message::Prepare(ballot) if self.heeds(from, ballot, now) => {
                let (accepted, offers) = (self.promises.accepted.clone(), self.offers.clone());
                self.send(from, Message::Promise { ballot, accepted, offers }, now);
            }
            Message::Accept(ballot, value) if self.heeds(from, ballot, now) => {
                self.promises.accepted = Some((ballot, value));
                self.send(from, Message::Accepted(ballot), now);
            }
            Message::GivenUp(ballot, why) if self.outcome.is_none() && self.heeds(from, ballot, now) => {
                self.outcome = Some(Outcome::GivenUp(why));
            }
            Message::Prepare(_) | Message::Accept(..) | Message::GivenUp(..) => {}
            Message::Promise { ballot, accepted, offers } => {
                if let Some(Phase::Preparing(promises)) = self.phase_of(ballot) {
                    promises.insert(from, (accepted, offers));
                }
            }
            Message::Accepted(ballot) => {
                if let Some(Phase::Accepting(_, asked)) = self.phase_of(ballot)
                    && let Some(has_accepted) = asked.get_mut(&from)
                {
                    *has_accepted = true;
                }
            }
            Message::Behind(ballot) => {
                if self.candidacy.as_ref().is_some_and(|own| own.ballot < ballot) {
                    self.promises.promised = self.promises.promised.max(ballot);
                    self.candidacy = None;
                    self.rests_until = now.saturating_add(self.patience);
                }
            }
            Message::Decided(value) => {
                if self.candidacy.take().is_some() {
                    // Members wait for this candidate, and not for who has told it.
                    self.send_to_others(&Message::Decided(value.clone()), now);
                }
                self.outcome = Some(Outcome::Decided(value));
            }
            Message::Here => {
                if let Some(Outcome::Decided(value)) = self.outcome.clone() {
                    self.send(from, Message::Decided(value), now);
                }
            }
        }
    }

    /// Does what is due.
    pub(super) fn look(&mut self, now: Duration) {
        let first = (0..self.own).find(|member| !self.is_gone(*member));
        if self.outcome.is_none()
            && let Some(first) = first
            && self.told.replace(first) != Some(first)
        {
            self.send(first, Message::Here, now);
        }
        // Its own messages come at once, so that one look may end several phases.
        while self.outcome.is_none() && self.go_on(now) {}
    }

    /// Whether anything has changed.
    fn go_on(&mut self, now: Duration) -> bool {
        let Some(Candidacy { ballot, until, phase }) = &self.candidacy else {
            return self.may_begin(now) && self.begin(now);
        };
        let (ballot, is_late) = (*ballot, now >= *until);
        match phase {
            Phase::Preparing(promises) => {
                let is_awaited = |member: &u32| !self.is_gone(*member) && !self.silent[*member as usize];
                let is_complete =
                    (0..self.size()).filter(is_awaited).all(|member| promises.contains_key(&member));
                (is_complete || is_late) && self.propose(ballot, now)
            }
            Phase::Accepting(value, asked) => {
                let accepted = asked.iter().filter(|(_, has_accepted)| **has_accepted);
                let hopeful =
                    asked.iter().filter(|(member, has_accepted)| **has_accepted || !self.is_gone(**member));
                if self.is_enough(accepted.map(|(member, _)| *member), asked) {
                    let value = value.clone();
                    self.decide(value, now);
                    false
                } else if !self.is_enough(hopeful.map(|(member, _)| *member), asked) {
                    let heard: Vec<u32> = asked.keys().copied().collect();
                    self.give_up(ballot, &heard, GivenUp::NoMajority(heard.len() as u32), now)
                } else {
                    is_late && self.begin(now)
                }
            }
        }
    }

    /// Whether it is this rank's turn to be a candidate: that of the lowest one that is not gone, and of the
    /// next one whenever there was silence.
    fn may_begin(&self, now: Duration) -> bool {
        let below = (0..self.own).filter(|member| !self.is_gone(*member)).count() as u32;
        // A candidate waits once for members that are silent, so others wait longer for it. Of several that
        // are silent, each costs little more: ballots settle between candidates.
        let turn = match below {
            0 => Duration::ZERO,
            below => {
                let wait = self.patience.saturating_mul(3) / 2;
                self.heard_at.saturating_add(wait).saturating_add(self.patience / 16 * (below - 1))
            }
        };
        now >= turn.max(self.rests_until)
    }

    fn begin(&mut self, now: Duration) -> bool {
        let ballot = self.promises.promised.next_of(self.own);
        let until = now.saturating_add(self.patience);
        if let Some(silent) = self.told.and_then(|told| self.silent.get_mut(told as usize)) {
            *silent = true;
        }
        self.candidacy = Some(Candidacy { ballot, until, phase: Phase::Preparing(BTreeMap::new()) });
        self.send_to_all(&Message::Prepare(ballot), now);
        true
    }

    /// Asks those who have answered to accept a value.
    fn propose(&mut self, ballot: Ballot, now: Duration) -> bool {
        let Some(Phase::Preparing(promises)) = self.phase_of(ballot).map(std::mem::take) else {
            return false;
        };
        let heard: Vec<u32> = promises.keys().copied().filter(|member| !self.is_gone(*member)).collect();
        let asked: BTreeMap<u32, bool> = heard.iter().map(|member| (*member, false)).collect();
        if !self.is_enough(heard.iter().copied(), &asked) {
            return self.give_up(ballot, &heard, GivenUp::NoMajority(heard.len() as u32), now);
        }
        // What one that is gone has told counts as well.
        let accepted = promises.values().filter_map(|(accepted, _)| accepted.as_ref());
        let value = match accepted.max_by_key(|(ballot, _)| *ballot) {
            Some((_, value)) => value.clone(),
            None => {
                let of = |member: &u32| promises.get(member).map(|(_, offers)| &offers[..]);
                let offers: Vec<&[Offer]> = heard.iter().filter_map(of).collect();
                // What one that is gone has known is true.
                let any = || promises.values().find_map(|(_, offers)| offers.first().copied());
                let offer = if self.takes_any { any() } else { common(&offers) };
                match offer {
                    Some((number, epoch)) => Value { number, epoch, members: heard.clone() },
                    None => return self.give_up(ballot, &heard, GivenUp::NoNumber, now),
                }
            }
        };
        let until = now.saturating_add(self.patience);
        let message = Message::Accept(ballot, value.clone());
        let members: Vec<u32> = asked.keys().copied().collect();
        self.candidacy = Some(Candidacy { ballot, until, phase: Phase::Accepting(value, asked) });
        members.into_iter().for_each(|member| self.send(member, message.clone(), now));
        true
    }

    /// Whether these members are a quorum, of those that were `asked`.
    fn is_enough(&self, members: impl Iterator<Item = u32>, asked: &BTreeMap<u32, bool>) -> bool {
        let (mut count, mut has_first) = (0, false);
        members.for_each(|member| (count, has_first) = (count + 1, has_first || member == 0));
        match self.quorum {
            Quorum::Majority => 2 * count + usize::from(has_first) > self.gone.len(),
            // Those that are gone are not waited for.
            Quorum::Any => {
                count > 0 && asked.keys().filter(|member| !self.is_gone(**member)).count() <= count
            }
        }
    }

    fn decide(&mut self, value: Value, now: Duration) {
        // Also to those that have not answered, so that they know when they wake.
        self.send_to_others(&Message::Decided(value.clone()), now);
        self.candidacy = None;
        self.outcome = Some(Outcome::Decided(value));
    }

    /// Tells those that have answered: one that comes later may still belong to a majority.
    fn give_up(&mut self, ballot: Ballot, heard: &[u32], why: GivenUp, now: Duration) -> bool {
        heard.iter().for_each(|member| self.send(*member, Message::GivenUp(ballot, why), now));
        self.candidacy = None;
        self.outcome = Some(Outcome::GivenUp(why));
        true
    }

    /// Promises a candidate to heed no lower ballot, unless a higher one was promised.
    fn heeds(&mut self, candidate: u32, ballot: Ballot, now: Duration) -> bool {
        if let Some(Outcome::Decided(value)) = &self.outcome {
            let decided = Message::Decided(value.clone());
            self.send(candidate, decided, now);
            return false;
        }
        if ballot < self.promises.promised || ballot.candidate() != candidate {
            self.send(candidate, Message::Behind(self.promises.promised), now);
            return false;
        }
        self.promises.promised = ballot;
        self.heard_at = now;
        if self.candidacy.as_ref().is_some_and(|own| own.ballot < ballot) {
            self.candidacy = None;
        }
        if candidate != self.own {
            self.rests_until = now.saturating_add(self.patience.saturating_mul(3) / 2);
        }
        true
    }

    fn phase_of(&mut self, ballot: Ballot) -> Option<&mut Phase> {
        self.candidacy.as_mut().filter(|own| own.ballot == ballot).map(|own| &mut own.phase)
    }

    fn size(&self) -> u32 {
        self.gone.len() as u32
    }

    fn send_to_all(&mut self, message: &Message, now: Duration) {
        self.send_to_others(message, now);
        self.send(self.own, message.clone(), now);
    }

    fn send_to_others(&mut self, message: &Message, now: Duration) {
        let others = (0..self.size()).filter(|member| *member != self.own && !self.is_gone(*member));
        others.collect::<Vec<_>>().into_iter().for_each(|member| self.send(member, message.clone(), now));
    }

    /// A message to this rank comes at once.
    fn send(&mut self, to: u32, message: Message, now: Duration) {
        if to == self.own {
            self.receive(to, message, now);
        } else {
            self.out.push((to, message));
        }
    }
}

impl Default for Phase {
    fn default() -> Self {
        Self::Preparing(BTreeMap::new())
    }
}

/// A number that is in all offers, with the epoch that all accept.
fn common(offers: &[&[Offer]]) -> Option<Offer> {
    let (first, others) = offers.split_first()?;
    first.iter().find_map(|(number, epoch)| {
        others.iter().try_fold((*number, *epoch), |(number, epoch), offers| {
            let same = offers.iter().find(|(other, _)| *other == number)?;
            Some((number, epoch.max(same.1)))
        })
    })
}

#[cfg(test)]
#[path = "agreement_tests.rs"]
mod tests;
