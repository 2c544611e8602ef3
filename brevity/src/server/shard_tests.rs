//! Shards and seats, without a network.

use std::sync::Arc;
use std::time::Duration;

use brevity_collectives::Group;
use brevity_compress::generator::Generator;
use brevity_compress::{SparseVec, codec};

use super::method::{Method, Rule, Servers, Values};
use super::plan::Plan;
use super::seat::Seat;
use super::shard::{Client, Reply, Shard};
use super::trailer::{Kind, Trailer};
use super::{ParameterServer, ServerBuilder};

pub(super) const NOW: Duration = Duration::from_secs(1);

/// Shapes whose tensors share shards.
pub(super) const LENS: [usize; 3] = [50, 7, 90];

pub(super) fn builder(method: Method) -> ServerBuilder {
    LENS.into_iter()
        .enumerate()
        .fold(ParameterServer::builder(&Group::solo()), |builder, (number, len)| {
            builder.tensor(number.to_string(), [len])
        })
        .method(method)
}

/// A plan for so many workers, of which none is a process.
pub(super) fn plan(builder: ServerBuilder, workers: u32) -> Arc<Plan> {
    let mut plan = builder.plan().unwrap();
    plan.roles = super::layout::Roles::new(workers + 1, Servers::Dedicated(1)).unwrap();
    Arc::new(plan)
}

pub(super) fn zeros() -> Vec<Vec<f32>> {
    LENS.iter().map(|len| vec![0.0; *len]).collect()
}

/// Integer-valued gradients, so that all sums are exact.
pub(super) fn gradients(generator: &mut Generator) -> Vec<Vec<f32>> {
    LENS.iter().map(|len| (0..*len).map(|_| generator.below(41) as f32 - 20.0).collect()).collect()
}

pub(super) fn flat(tensors: &[Vec<f32>]) -> Vec<f32> {
    tensors.concat()
}

/// A shard, its workers, and what the workers have received.
pub(super) struct World {
    pub(super) plan: Arc<Plan>,
    pub(super) shard: Shard,
    pub(super) seats: Vec<Seat>,
    /// Each worker's parameters: `v[w]`.
    pub(super) parameters: Vec<Vec<Vec<f32>>>,
}

impl World {
    pub(super) fn new(builder: ServerBuilder, workers: u32) -> Self {
        let plan = plan(builder, workers);
        let shard = Shard::new(&plan, 0, vec![0.0; plan.layout.total]).unwrap();
        let seats = (0..workers).map(|_| Seat::new(&plan, 0).unwrap()).collect();
        let mut world = Self { plan, shard, seats, parameters: vec![zeros(); workers as usize] };
        for worker in 0..workers as usize {
            world.ask(worker, Kind::Fetch);
        }
        world
    }

    pub(super) fn handle(&mut self, worker: usize, message: &[u8]) -> Vec<Reply> {
        let mut out = Vec::new();
        self.shard.handle(worker, message, NOW, &mut out);
        out
    }

    pub(super) fn take(&mut self, Reply { worker, bytes }: &Reply) -> Result<Trailer, String> {
        let (payload, trailer) = Trailer::split(bytes)?;
        let seat = &mut self.seats[*worker];
        seat.take(&self.plan, (payload, &trailer), Some(&mut self.parameters[*worker]))?;
        seat.settle(&self.plan, &trailer);
        Ok(trailer)
    }

    fn ask(&mut self, worker: usize, kind: Kind) {
        let request = self.seats[worker].request(kind);
        for reply in self.handle(worker, &request) {
            self.take(&reply).unwrap();
        }
    }

    /// A push and its reply, not taken yet.
    pub(super) fn push(&mut self, worker: usize, gradients: &[Vec<f32>], rate: f32) -> Vec<Reply> {
        let message = self.seats[worker].push(&self.plan, (gradients, &[]), rate).unwrap();
        self.handle(worker, &message)
    }

    /// What the worker has not pushed.
    pub(super) fn residual(&self, worker: usize) -> Vec<f32> {
        self.seats[worker].lanes.iter().flat_map(|lane| lane.vectors()[0].to_vec()).collect()
    }

    /// What the shard owes the worker.
    pub(super) fn owed(&self, worker: usize) -> Vec<f32> {
        self.shard.clients[worker].owed.iter().flat_map(|owed| owed.values().to_vec()).collect()
    }
}

/// An entry that is silent for T steps carries `m u + rate (sum of its T gradients)`.
#[test]
fn momentum_of_silent_entries_is_that_of_a_larger_batch() {
    let (momentum, rate) = (0.5, 0.5);
    let mut world = World::new(builder(Method::dgs(0.02, momentum)), 1);
    let n = world.plan.layout.total;
    let mut generator = Generator::new(3);
    // What u was when the entry was last sent, and its gradients since.
    let (mut sent, mut sums) = (vec![0.0f32; n], vec![0.0f32; n]);
    for _ in 0..40 {
        let gradients = gradients(&mut generator);
        sums.iter_mut().zip(flat(&gradients)).for_each(|(sum, g)| *sum += rate * g);
        let u: Vec<f32> = sent.iter().zip(&sums).map(|(u, sum)| momentum * u + sum).collect();
        let before = world.shard.model.clone();
        let replies = world.push(0, &gradients, rate);
        world.take(&replies[0]).unwrap();
        let pushed: Vec<usize> = (0..n).filter(|i| world.shard.model[*i] != before[*i]).collect();
        assert!(!pushed.is_empty());
        for index in pushed {
            assert_eq!(before[index] - world.shard.model[index], u[index], "element {index}");
            (sent[index], sums[index]) = (u[index], 0.0);
        }
    }
}

#[test]
fn adagrad_divides_by_the_root_of_the_sum_of_squares() {
    for method in [Method::asgd(), Method::gradient_dropping(1.0)] {
        let mut world = World::new(builder(method).rule(Rule::AdaGrad { epsilon: 1e-8 }), 2);
        let n = world.plan.layout.total;
        let (mut model, mut squares, mut generator) = (vec![0.0f32; n], vec![0.0f32; n], Generator::new(5));
        for step in 0..20 {
            let gradients = gradients(&mut generator);
            for (index, g) in flat(&gradients).into_iter().enumerate().filter(|(_, g)| *g != 0.0) {
                squares[index] += g * g;
                model[index] += -0.25 * g / (squares[index].sqrt() + 1e-8);
            }
            let replies = world.push(step % 2, &gradients, 0.25);
            world.take(&replies[0]).unwrap();
            assert_eq!((&world.shard.model, &world.shard.squares), (&model, &squares));
        }
    }
}

/// With every method and format: what was handed in is in the model, or in the residual. With SAMomentum an
/// entry that is sent leaves its `m`-th part behind.
#[test]
fn nothing_is_lost() {
    for values in Values::ALL {
        for (method, weight) in [
            (Method::gradient_dropping(0.1), 1.0),
            (Method::dgc(0.1, 0.0), 1.0),
            (Method::dgs(0.1, 0.5), 0.5),
        ] {
            let mut world = World::new(builder(method).values(values).secondary_density(0.05), 2);
            let (mut handed_in, mut generator) = (vec![0.0f64; world.plan.layout.total], Generator::new(11));
            for step in 0..50 {
                let gradients = gradients(&mut generator);
                handed_in.iter_mut().zip(flat(&gradients)).for_each(|(sum, g)| *sum += f64::from(g));
                let replies = world.push(step % 2, &gradients, 1.0);
                world.take(&replies[0]).unwrap();
            }
            let residuals = [world.residual(0), world.residual(1)];
            for (index, sum) in handed_in.iter().enumerate() {
                let kept: f64 = residuals.iter().map(|residual| f64::from(residual[index])).sum();
                let found = weight * f64::from(-world.shard.model[index]) + kept;
                assert!((found - sum).abs() < 1e-3, "{values:?} {method:?} {index}: {found} of {sum}");
                for worker in 0..2 {
                    let version = flat(&world.parameters[worker])[index] + world.owed(worker)[index];
                    assert!((version - world.shard.model[index]).abs() < 1e-3, "{values:?} {method:?}");
                }
            }
        }
    }
}

#[test]
fn each_push_is_applied_once() {
    let mut world = World::new(builder(Method::gradient_dropping(0.1)), 2);
    let mut generator = Generator::new(13);
    let message = world.seats[0].push(&world.plan, (&gradients(&mut generator), &[]), 1.0).unwrap();
    assert_eq!(world.handle(0, &message).len(), 1);
    let model = world.shard.model.clone();
    // Again: answered, not applied, and counted.
    let again = world.handle(0, &message);
    assert_eq!(Trailer::split(&again[0].bytes).unwrap().1.kind, Kind::Answer);
    assert_eq!((&world.shard.model, world.shard.clock), (&model, 1));
    assert_eq!((world.shard.served.pushes, world.shard.served.refused), (1, 1));
}

/// A state was confirmed, and the shard begins from an older one.
#[test]
fn pushes_that_are_kept_no_longer_are_missed() {
    let mut world = World::new(builder(Method::gradient_dropping(1.0)).keep_pushes(), 1);
    let (plan, mut generator) = (Arc::clone(&world.plan), Generator::new(37));
    let mut last = Vec::new();
    for _ in 0..3 {
        last = gradients(&mut generator);
        let replies = world.push(0, &last, 1.0);
        world.take(&replies[0]).unwrap();
    }
    assert_eq!([0, 2, 3].map(|applied| world.seats[0].missing(applied)), [None, None, None]);
    world.shard.clients[0].saved = 2;
    world.ask(0, Kind::Pull);
    let missing = [0, 1, 2, 3].map(|applied| world.seats[0].missing(applied));
    assert_eq!(missing, [Some(1..=2), Some(2..=2), None, None]);
    world.seats[0].resume(&plan, 0).unwrap();
    assert_eq!((world.residual(0), world.seats[0].step), (flat(&last), 0), "the last one comes back");
}

#[test]
fn what_no_worker_sends_is_refused_and_changes_nothing() {
    for method in [Method::gradient_dropping(0.1), Method::asgd()] {
        let mut world = World::new(builder(method), 2);
        let mut generator = Generator::new(17);
        let plan = Arc::clone(&world.plan);
        let good = world.seats[0].push(&plan, (&gradients(&mut generator), &[]), 1.0).unwrap();
        let before = world.shard.model.clone();
        let with = |change: &dyn Fn(&mut Trailer)| {
            let (payload, mut trailer) = Trailer::split(&good).unwrap();
            let mut message = payload.to_vec();
            change(&mut trailer);
            trailer.end(&mut message);
            message
        };
        let mut bad: Vec<(Vec<u8>, &str)> = vec![
            (with(&|trailer| trailer.step = 2), "push 2 of a worker whose last one was 0"),
            (with(&|trailer| trailer.step = u64::MAX), "push 18446744073709551615"),
            (with(&|trailer| trailer.rate = f32::NAN), "the rate NaN"),
            (with(&|trailer| trailer.shard = 1), "shard 1"),
            (with(&|trailer| trailer.kind = Kind::Answer), "a reply"),
            (good[good.len() - 20..].to_vec(), "20 bytes"),
            (Vec::new(), "0 bytes"),
            (good[good.len() - 48..].to_vec(), ""),
            (vec![0; 100], "no worker"),
        ];
        // Every flip of a bit of the payload gives a push, or an error that changes nothing; never a panic.
        for bit in 0..8 * (good.len() - 48) {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut other = World::new(builder(method), 1);
            let replies = other.handle(0, &flipped);
            assert_eq!(replies.len(), 1);
            let (clock, applied) = (other.shard.clock, other.shard.clients[0].applied);
            if clock == 0 {
                let trailer = Trailer::split(&replies[0].bytes).unwrap().1;
                assert_eq!((trailer.kind, applied), (Kind::Refused, 0), "bit {bit}");
                assert_eq!(other.shard.model, before, "bit {bit}");
            }
            assert_eq!(clock, applied);
        }
        if !method.is_dense() {
            let mut long = SparseVec::new(plan.layout.total + 1);
            long.push(plan.layout.total as u32, 1.0);
            let mut message = Vec::new();
            codec::Encoder::new()
                .encode(long.view(), codec::Choice::Fast, &mut codec::Plain, &mut message)
                .unwrap();
            Trailer { rate: 1.0, ..Trailer::new(Kind::Push, 0, 1) }.end(&mut message);
            bad.push((message, "elements"));
        }
        for (message, reason) in bad {
            let replies = world.handle(0, &message);
            let (text, trailer) = Trailer::split(&replies[0].bytes).unwrap();
            let text = String::from_utf8_lossy(text);
            assert!(trailer.kind == Kind::Refused && text.contains(reason), "{text}, expected {reason}");
            assert_eq!((&world.shard.model, world.shard.clock), (&before, 0));
        }
        // The worker goes on.
        assert_eq!(Trailer::split(&world.handle(0, &good)[0].bytes).unwrap().1.clock, 1);
    }
}

#[test]
fn a_refused_push_goes_back_to_the_residuals() {
    let mut world = World::new(builder(Method::gradient_dropping(0.1)), 1);
    let gradients = gradients(&mut Generator::new(19));
    let plan = Arc::clone(&world.plan);
    let mut message = world.seats[0].push(&plan, (&gradients, &[]), 1.0).unwrap();
    let end = message.len() - 48;
    message[end + 3] = Kind::Answer as u8;
    let reply = &world.handle(0, &message)[0];
    assert!(world.take(reply).is_err());
    world.seats[0].resume(&plan, 0).unwrap();
    assert_eq!(world.residual(0), flat(&gradients));
    assert_eq!(world.seats[0].step, 0);
}

#[test]
fn a_fast_worker_waits_for_a_slow_one() {
    let mut world = World::new(builder(Method::gradient_dropping(0.1)).staleness(2), 2);
    let mut generator = Generator::new(23);
    let mut push = |world: &mut World, worker| world.push(worker, &gradients(&mut generator), 1.0).len();
    assert_eq!([0, 0].map(|worker| push(&mut world, worker)), [1, 1]);
    assert_eq!(push(&mut world, 0), 0, "it is three steps ahead");
    assert_eq!(push(&mut world, 1), 2, "both are answered");
    assert_eq!(push(&mut world, 0), 0);
    let mut out = Vec::new();
    world.shard.gone(1, NOW, &mut out);
    assert_eq!(out.len(), 1, "nobody waits for one that is gone");
    // One that is about to leave gets the answer that it waits for: its push is applied. The shard does not
    // end before it has it.
    let mut world = World::new(builder(Method::gradient_dropping(0.1)).staleness(0), 2);
    assert_eq!(push(&mut world, 0), 0);
    let finish = world.seats[0].request(Kind::Finish);
    let replies = world.handle(0, &finish);
    assert_eq!((replies.len(), world.take(&replies[0]).unwrap().step), (1, 1));
    world.ask(1, Kind::Leave);
    assert!(!world.shard.is_deserted());
    world.ask(0, Kind::Leave);
    assert!(world.shard.is_deserted());
    // One that is silent for longer than the patience is not waited for either.
    let mut world = World::new(builder(Method::gradient_dropping(0.1)).staleness(0), 2);
    assert_eq!(world.plan.patience, Group::solo().timeout() / 4);
    assert_eq!(push(&mut world, 0), 0);
    let mut out = Vec::new();
    world.shard.release(NOW + world.plan.patience, &mut out);
    assert!(out.is_empty());
    let later = NOW + 2 * world.plan.patience;
    world.shard.release(later, &mut out);
    assert_eq!(out.len(), 1);
    // And it is waited for again.
    assert_eq!(world.shard.heard(), later);
}

/// The others do not wait for the steps that they made before it came; nor after a restart for those that
/// were saved.
#[test]
fn nobody_waits_for_steps_from_before_a_worker_came() {
    let new = || World::new(builder(Method::gradient_dropping(0.1)).staleness(2), 2);
    let mut generator = Generator::new(31);
    let mut push = |world: &mut World, worker| {
        let replies = world.push(worker, &gradients(&mut generator), 1.0);
        for reply in &replies {
            world.take(reply).unwrap();
        }
        replies.len()
    };
    let mut world = new();
    world.ask(1, Kind::Leave);
    for _ in 0..10 {
        assert_eq!(push(&mut world, 0), 1);
    }
    world.ask(1, Kind::Fetch);
    let ahead = [0, 0, 0].map(|worker| push(&mut world, worker));
    assert_eq!((ahead, push(&mut world, 1)), ([1, 1, 0], 2), "they are level when it comes");

    // Also if nothing was heard of the others for long.
    let mut world = new();
    world.ask(1, Kind::Leave);
    for _ in 0..10 {
        assert_eq!(push(&mut world, 0), 1);
    }
    let (fetch, patience) = (world.seats[1].request(Kind::Fetch), world.plan.patience);
    let mut out = Vec::new();
    world.shard.handle(1, &fetch, NOW + 2 * patience, &mut out);
    assert_eq!(world.shard.clients[1].steps(), 10);
    let ahead = [0, 0, 0].map(|worker| push(&mut world, worker));
    assert_eq!((ahead, push(&mut world, 1)), ([1, 1, 0], 2));

    let mut world = new();
    world.shard.clients = [10, 0].map(|applied| Client { applied, ..Client::default() }).into();
    world.seats[0].step = 10;
    [0, 1].into_iter().for_each(|worker| world.ask(worker, Kind::Fetch));
    assert_eq!([0, 0, 0].map(|worker| push(&mut world, worker)), [1, 1, 0]);
}

#[test]
fn one_that_comes_late_gets_the_model() {
    let mut world = World::new(builder(Method::dgs(0.1, 0.5)), 2);
    let mut generator = Generator::new(29);
    for _ in 0..10 {
        let replies = world.push(0, &gradients(&mut generator), 0.5);
        world.take(&replies[0]).unwrap();
    }
    world.ask(1, Kind::Fetch);
    assert_eq!(flat(&world.parameters[1]), world.shard.model);
    assert!(world.owed(1).iter().all(|value| *value == 0.0));
    // And one that leaves is owed nothing any more.
    world.ask(1, Kind::Leave);
    assert!(world.owed(1).is_empty() && !world.shard.is_deserted());
    world.ask(0, Kind::Leave);
    assert!(world.shard.is_deserted());
}

#[test]
fn a_plan_is_told_in_words() {
    let lines: Vec<String> = plan(builder(Method::asgd()), 3).lines().collect();
    assert!(lines[3].contains("3 workers, 1 servers"), "{lines:?}");
    assert_eq!(lines[2], "tensor \"2\" of shape [90]");
    // Of equal length, but another.
    let square =
        |shape: &[usize]| plan(ParameterServer::builder(&Group::solo()).tensor("w", shape), 1).describe();
    assert!(square(&[2, 2]) != square(&[4]) && square(&[4]) == square(&[4]));
}
