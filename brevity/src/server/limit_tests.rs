//! Shards and seats at the limits of numbers and messages.

use std::sync::Arc;

use brevity_collectives::Group;
use brevity_compress::{Error as Compress, codec};

use super::ParameterServer;
use super::method::{Method, Rule, Threshold, Values};
use super::seat::{Aside, Seat};
use super::shard::{Reply, Shard};
use super::shard_tests::{LENS, NOW, World, builder, plan, zeros};
use super::trailer::{Kind, Trailer};

/// Entries that would make the model overflow are dropped, and named; the others are applied, and later
/// pushes.
#[test]
fn what_would_overflow_does_not_come_again() {
    for method in [Method::gradient_dropping(1.0), Method::asgd()] {
        let mut world = World::new(builder(method), 2);
        let plan = Arc::clone(&world.plan);
        let mut gradients = zeros();
        let ones = LENS.map(|len| vec![1.0; len]);
        gradients[0][..4].copy_from_slice(&[1.0, 3e37, -3e37, 2.0]);
        let reply = &world.push(0, &gradients, 10.0)[0];
        let text = world.take(reply).unwrap_err();
        assert!(text.contains("without 2 entries") && text.contains("element 1 is 0e0"), "{text}");
        assert!(text.ends_with("clip gradients"), "{text}");
        let step = Trailer::split(&reply.bytes).unwrap().1.step;
        world.seats[0].resume(&plan, step).unwrap();
        assert_eq!(world.shard.model[..5], [-10.0, 0.0, 0.0, -20.0, 0.0]);
        for _ in 0..2 {
            let replies = world.push(0, &ones, 1.0);
            world.take(&replies[0]).unwrap();
        }
        assert_eq!(world.shard.model[..5], [-12.0, -2.0, -2.0, -22.0, -2.0]);
    }
}

/// The bound on staleness holds for pushes of which entries are left out, and for a worker that does not
/// wait.
#[test]
fn no_push_gets_around_the_bound_on_staleness() {
    for method in [Method::gradient_dropping(1.0), Method::asgd()] {
        let mut world = World::new(builder(method).staleness(0), 2);
        let (plan, mut gradients) = (Arc::clone(&world.plan), zeros());
        gradients[0][0] = 3e38;
        assert_eq!(world.push(0, &gradients, 10.0).len(), 0, "it is a step ahead");
        assert_eq!(world.shard.served.refused, 1);
        let model = world.shard.model.clone();
        let early = &world.push(0, &zeros(), 1.0)[0];
        let text = world.take(early).unwrap_err();
        assert!(text.contains("before the reply to the last one"), "{text}");
        let pull = world.seats[0].request(Kind::Pull);
        let early = &world.handle(0, &pull)[0];
        assert!(world.take(early).is_err());
        assert_eq!((world.shard.clock, &world.shard.model), (1, &model));
        world.seats[0].resume(&plan, 1).unwrap();
        // Both are answered, and what was left out is told then.
        let replies = world.push(1, &zeros(), 1.0);
        assert_eq!(replies.iter().map(|reply| reply.worker).collect::<Vec<_>>(), [0, 1]);
        let text = world.take(&replies[0]).unwrap_err();
        assert!(text.contains("without 1 entries"), "{text}");
        assert_eq!(Trailer::split(&replies[0].bytes).unwrap().1.step, 1);
        world.take(&replies[1]).unwrap();
        // And to one that is about to leave.
        assert_eq!(world.push(0, &gradients, 10.0).len(), 0);
        let finish = world.seats[0].request(Kind::Finish);
        let replies = world.handle(0, &finish);
        assert!(world.take(&replies[0]).unwrap_err().contains("without 1 entries"));
    }
}

/// Its own pushes are no lag, also if one was answered by a refusal; nor are those of others without a push.
#[test]
fn the_lag_counts_the_pushes_of_others_alone() {
    for method in [Method::gradient_dropping(1.0), Method::asgd()] {
        let mut world = World::new(builder(method), 2);
        let push = |world: &mut World, worker, first| {
            let mut gradients = zeros();
            gradients[0][0] = first;
            let replies = world.push(worker, &gradients, 10.0);
            Trailer::split(&replies[0].bytes).unwrap().1
        };
        let refused = push(&mut world, 0, 3e38);
        assert_eq!((refused.kind, refused.lag), (Kind::Refused, 0));
        assert_eq!(push(&mut world, 0, 1.0).lag, 0);
        assert_eq!(push(&mut world, 1, 3e38).lag, 2);
        assert_eq!(push(&mut world, 0, 1.0).lag, 1);
        assert_eq!(push(&mut world, 1, 1.0).lag, 3, "it has had no answer in between");
        assert_eq!(push(&mut world, 0, 1.0).lag, 1);
        let pull = world.seats[0].request(Kind::Pull);
        let replies = world.handle(0, &pull);
        assert_eq!(Trailer::split(&replies[0].bytes).unwrap().1.lag, 0);
    }
}

/// The change of AdaGrad is at most the rate, whatever the gradient; its sum of squares stops at the largest
/// number.
#[test]
fn adagrad_takes_any_gradient() {
    let mut world =
        World::new(builder(Method::gradient_dropping(1.0)).rule(Rule::AdaGrad { epsilon: 1e-8 }), 1);
    let mut gradients = zeros();
    gradients[0][..3].copy_from_slice(&[1e20, -f32::MAX, 1.0]);
    let replies = world.push(0, &gradients, 0.5);
    world.take(&replies[0]).unwrap();
    assert_eq!(world.shard.model[..4], [-0.5, 0.5, -0.5, 0.0]);
    assert_eq!(world.shard.squares[..4], [f32::MAX, f32::MAX, 1.0, 0.0]);
    gradients[0][..3].copy_from_slice(&[1.0, 1.0, 0.0]);
    let replies = world.push(0, &gradients, 0.5);
    world.take(&replies[0]).unwrap();
    assert!((world.shard.model[0] + 0.5).abs() < 1e-6 && (world.shard.model[1] - 0.5).abs() < 1e-6);
}

/// By every codec, also one that does not suit the few entries, and with values of every format, also with
/// more columns than entries.
#[test]
fn messages_fit_their_place() {
    let codecs = codec::IndexCodec::ALL.map(codec::Choice::Only);
    for codec in [codec::Choice::Fast, codec::Choice::Smallest].into_iter().chain(codecs) {
        check_lengths(codec, Values::F32);
    }
    for values in Values::ALL.into_iter().chain([1000, 200_000].map(Values::OneBitColumns)) {
        check_lengths(codec::Choice::Fast, values);
        check_lengths(codec::Choice::Only(codec::IndexCodec::Raw), values);
    }
}

fn check_lengths(codec: codec::Choice, values: Values) {
    for density in [1e-4, 1.0] {
        let builder = ParameterServer::builder(&Group::solo()).tensor("long", [100_000]);
        let builder = builder.method(Method::gradient_dropping(density)).codec(codec).values(values);
        let plan = plan(builder, 1);
        let mut shard = Shard::new(&plan, 0, vec![0.0; 100_000]).unwrap();
        let mut seat = Seat::new(&plan, 0).unwrap();
        let gradient: Vec<f32> = (1..=100_000u32).map(|index| (index * 7919 % 100_003) as f32).collect();
        let (mut out, fetch) = (Vec::new(), seat.request(Kind::Fetch));
        shard.handle(0, &fetch, NOW, &mut out);
        let push = seat.push(&plan, (&[gradient], &[]), 1.0).unwrap();
        let (found, room) = (push.len(), plan.longest_request(0));
        assert!(found <= room, "{codec:?}, {values}: a push of {found} bytes in {room}");
        shard.handle(0, &push, NOW, &mut out);
        assert_eq!(Trailer::split(&out[1].bytes).unwrap().1.kind, Kind::Answer);
        let (found, room) = (out[1].bytes.len(), plan.longest_answer(0));
        assert!(found <= room, "{codec:?}, {values}: an answer of {found} bytes in {room}");
    }
}

/// What no server sends is refused, and a worker's numbers do not overflow.
#[test]
fn replies_to_steps_that_no_worker_has_are_refused() {
    let mut world = World::new(builder(Method::gradient_dropping(0.1)), 1);
    let mut bytes = Vec::new();
    Trailer::new(Kind::Answer, 0, u64::MAX).end(&mut bytes);
    let reason = world.take(&Reply { worker: 0, bytes }).unwrap_err();
    assert!(reason.contains("step 18446744073709551615"), "{reason}");
}

/// What was put back after a loss stays, bit for bit, if a later push fails.
#[test]
fn a_dense_push_that_overflows_takes_nothing() {
    for (threshold, place) in [(Threshold::PerTensor, 0), (Threshold::PerShard, LENS[0])] {
        let plan = plan(builder(Method::asgd()).threshold(threshold), 1);
        let mut seat = Seat::new(&plan, 0).unwrap();
        let mut kept = vec![0.1f32; plan.layout.total];
        kept[LENS[0]] = f32::MAX;
        seat.put_back(&plan, &Aside::Dense(kept.clone())).unwrap();
        let residual = |seat: &Seat| -> Vec<f32> {
            seat.lanes.iter().flat_map(|lane| lane.vectors()[0].to_vec()).collect()
        };
        assert_eq!(residual(&seat), kept);
        let mut gradients = LENS.map(|len| vec![1e10f32; len]);
        gradients[1][0] = f32::MAX;
        let pushed = seat.push(&plan, (&gradients, &[]), 1.0);
        let is_named = matches!(pushed, Err((1, Compress::NonFinite { index, .. })) if index == place);
        assert!(is_named, "{pushed:?}");
        assert_eq!((residual(&seat), seat.step, seat.aside.len()), (kept, 0, 0));
        gradients[1][0] = 0.0;
        seat.push(&plan, (&gradients, &[]), 1.0).unwrap();
        assert!(residual(&seat).is_empty(), "it is pushed with the next one");
    }
}

/// Also if it is compared with entries of other tensors.
#[test]
fn a_sum_that_overflows_is_named_by_its_tensor() {
    let methods =
        [Method::gradient_dropping(1e-4), Method::dgs(1e-4, 0.9), Method::dgc(1e-4, 0.0).clip(1e39)];
    for method in methods {
        for threshold in [Threshold::PerTensor, Threshold::PerShard] {
            let plan = plan(builder(method).threshold(threshold), 1);
            let mut seat = Seat::new(&plan, 0).unwrap();
            let mut gradients = zeros();
            // The first one is pushed, the other stays.
            (gradients[2][7], gradients[2][9]) = (f32::MAX, 3e38);
            seat.push(&plan, (&gradients, &[]), 1.0).unwrap();
            gradients[2][7] = 0.0;
            let pushed = seat.push(&plan, (&gradients, &[]), 1.0);
            assert!(matches!(pushed, Err((2, Compress::NonFinite { .. }))), "{method:?} {pushed:?}");
        }
    }
}
