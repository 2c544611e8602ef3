//! Steps whose gradients become ready one after the other.

use std::future::Future;
use std::task::{Context, Waker};

use super::*;

/// Tensors of every kind, in several buckets each.
const TENSORS: [(&str, [usize; 2], Policy); 15] = [
    ("first", [30, 20], Policy::gtopk(0.05)),
    ("bias", [1, 7], Policy::dense()),
    ("second", [16, 16], Policy::low_rank(2)),
    ("third", [20, 30], Policy::topk(0.05)),
    ("fourth", [24, 12], Policy::low_rank(1)),
    ("empty", [0, 3], Policy::topk(0.5)),
    ("fifth", [10, 10], Policy::gtopk(0.2)),
    ("last", [1, 300], Policy::dense()),
    ("ok", [20, 30], Policy::oktopk(0.05)),
    ("ok too", [10, 10], Policy::oktopk(0.1)),
    ("random", [10, 40], Policy::random_k(0.1)),
    ("random too", [1, 9], Policy::random_block(0.5)),
    ("blocks", [30, 40], Policy::block(0.4)),
    ("by hosts", [10, 40], Policy::gtopk(0.1).hierarchical()),
    ("by hosts too", [20, 10], Policy::topk(0.1).hierarchical()),
];

fn built(group: &Group, bytes: usize) -> GradientExchange {
    let builder = GradientExchange::builder(group).bucket_bytes(bytes);
    TENSORS
        .into_iter()
        .fold(builder, |builder, (name, shape, policy)| builder.tensor(name, shape, policy))
        .build()
        .unwrap()
}

fn inputs(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let all = (0..).zip(TENSORS);
    all.map(|(tensor, (_, [rows, cols], _))| oracle::vector(rank + 10 * tensor + 1000 * step, rows * cols))
        .collect()
}

fn bits(gradients: &[Vec<f32>]) -> Vec<u32> {
    gradients.iter().flatten().map(|value| value.to_bits()).collect()
}

fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
    TENSORS.iter().map(|(name, ..)| exchange.residual(name).unwrap()).collect()
}

/// A step that hands in its tensors from the last one on, begun at another place on each rank.
fn step(exchange: &mut GradientExchange, gradients: &mut [Vec<f32>]) -> brevity::Result<()> {
    let shift = exchange.group().rank() as usize;
    let mut step = exchange.begin()?;
    for place in (0..gradients.len()).rev() {
        let tensor = (place + shift) % gradients.len();
        step.ready(tensor, &gradients[tensor])?;
    }
    let report = step.finish(gradients)?;
    let mut tensors: Vec<usize> = report.buckets.iter().flat_map(|bucket| bucket.tensors.clone()).collect();
    tensors.sort_unstable();
    assert_eq!(tensors, (0..gradients.len()).collect::<Vec<_>>(), "{report:?}");
    Ok(())
}

/// What no step changes is known in the middle of one as well.
#[test]
fn sizes_and_wires_are_known_in_a_step() {
    let known = |exchange: &GradientExchange| {
        let wires = TENSORS.iter().map(|(name, ..)| exchange.wire(name));
        (exchange.saved_bytes(), wires.collect::<Vec<_>>())
    };
    let ranks = on_local(2, move |group| {
        let mut exchange = built(group, 1 << 10);
        let before = known(&exchange);
        exchange.begin().unwrap().leave();
        let within = known(&exchange);
        exchange.resume().unwrap().finish(&mut inputs(group.rank(), 0)).unwrap();
        let mut saved = Vec::new();
        exchange.save(&mut saved).unwrap();
        (before, within, known(&exchange), saved.len())
    });
    for (before, within, after, saved) in &ranks {
        assert!(before.0 == *saved && before.1.iter().flatten().count() > 5, "{before:?}");
        assert!(within == before && after == before, "{within:?}, {after:?}");
    }
}

#[test]
fn a_step_has_the_bits_of_an_average() {
    for (world_size, between) in [1, 2, 3, 4].into_iter().flat_map(|size| BOTH.map(|between| (size, between)))
    {
        for bytes in [0, 1200, 1 << 20] {
            let ranks = between.run(world_size, move |group| {
                let (mut averaged, mut stepped) = (built(group, bytes), built(group, bytes));
                for number in 0..4 {
                    let (mut expected, mut found) =
                        (inputs(group.rank(), number), inputs(group.rank(), number));
                    averaged.average(&mut expected).unwrap();
                    step(&mut stepped, &mut found).unwrap();
                    assert_eq!(bits(&found), bits(&expected), "step {number}, {bytes} bytes");
                    assert_eq!(bits(&residuals(&stepped)), bits(&residuals(&averaged)), "step {number}");
                }
                let mut last = inputs(group.rank(), 9);
                step(&mut stepped, &mut last).unwrap();
                last
            });
            assert!(ranks.iter().all(|averages| *averages == ranks[0]), "ranks differ");
        }
    }
}

/// What is not handed in before is at the end, and waiting may be left to a runtime.
#[test]
fn a_step_may_be_finished_without_blocking() {
    for between in BOTH {
        between.run(3, |group| {
            let (mut averaged, mut stepped) = (built(group, 1200), built(group, 1200));
            let (mut expected, mut found) = (inputs(group.rank(), 0), inputs(group.rank(), 0));
            averaged.average(&mut expected).unwrap();
            let mut step = stepped.begin().unwrap();
            step.ready(3, &found[3]).unwrap();
            let mut finishing = Box::pin(step.finish_async(&mut found));
            let mut context = Context::from_waker(Waker::noop());
            let result = loop {
                if let std::task::Poll::Ready(result) = finishing.as_mut().poll(&mut context) {
                    break result;
                }
                group.progress();
            };
            drop(finishing);
            result.unwrap();
            assert_eq!(bits(&found), bits(&expected));
        });
    }
}

/// Buckets that have arrived before a value was found that is not finite are left out as well.
#[test]
fn a_late_value_that_is_not_finite_leaves_out_all_buckets() {
    for between in BOTH {
        let errors = between.run(3, |group| {
            let mut exchange = built(group, 1200);
            let mut gradients = inputs(group.rank(), 0);
            let mut step = exchange.begin().unwrap();
            for tensor in (1..TENSORS.len()).rev() {
                step.ready(tensor, &gradients[tensor]).unwrap();
            }
            if group.rank() == 1 {
                gradients[0][5] = f32::INFINITY;
            }
            let error = step.finish(&mut gradients).unwrap_err();
            let left = residuals(&exchange).concat();
            assert!(left.iter().all(|value| value.abs() < 1e-4), "more than roundings stay: {left:?}");
            let mut next = inputs(group.rank(), 1);
            self::step(&mut exchange, &mut next).unwrap();
            error
        });
        for error in errors {
            assert!(matches!(&error, Error::NonFinite { rank: 1, tensor } if tensor == "first"), "{error}");
        }
    }
}

/// The others hear of it, and what was handed in is kept.
#[test]
fn a_step_that_is_dropped_closes_the_group_and_loses_nothing() {
    for between in BOTH {
        let ranks = between.run(3, |group| {
            let mut exchange = built(group, 1200);
            let mut gradients = inputs(group.rank(), 0);
            let error = if group.rank() == 2 {
                let mut step = exchange.begin().unwrap();
                for tensor in [7, 6, 2, 3] {
                    step.ready(tensor, &gradients[tensor]).unwrap();
                }
                drop(step);
                exchange.average(&mut gradients.clone()).unwrap_err()
            } else {
                step(&mut exchange, &mut gradients).unwrap_err()
            };
            (error, gradients, residuals(&exchange))
        });
        for (rank, (error, gradients, left)) in ranks.iter().enumerate() {
            let closed = matches!(error, Error::Collective(Collective::Aborted { rank }) if rank.0 == 2);
            assert!(closed, "{between:?}, rank {rank}: {error}");
            if rank < 2 {
                let off = gradients.iter().flatten().zip(left.iter().flatten());
                assert!(off.clone().all(|(a, b)| (a - b).abs() < 1e-5), "{between:?}, rank {rank}");
            } else {
                // The failed average has added the whole list once more.
                for (tensor, (gradient, left)) in gradients.iter().zip(left).enumerate() {
                    let times = if [7, 6, 2, 3].contains(&tensor) { 2.0 } else { 1.0 };
                    let off = gradient.iter().zip(left).find(|(a, b)| (*a * times - *b).abs() > 1e-4);
                    assert_eq!(off, None, "{between:?}, tensor {tensor}");
                }
            }
        }
    }
}

/// A step whose buckets have all arrived, dropped on one rank: others have delivered what this rank gave, so
/// it must not give it again.
#[test]
fn a_step_that_was_delivered_is_not_put_back() {
    for between in BOTH {
        let residuals = between.run(2, |group| {
            let builder = GradientExchange::builder(group).tensor("all", [8], Policy::topk(1.0));
            let mut exchange = builder.build().unwrap();
            let mut gradients = [vec![1.0f32; 8]];
            let mut step = exchange.begin().unwrap();
            step.ready(0, &gradients[0]).unwrap();
            // What rank 0 has sent for the step arrives before what it sends afterwards.
            let later = || (0..10).for_each(|_| drop(group.all_gather_varying(vec![0u8]).unwrap()));
            if group.rank() == 1 {
                later();
                drop(step);
            } else {
                step.finish(&mut gradients).unwrap();
                assert_eq!(gradients[0], [1.0; 8]);
                later();
            }
            exchange.residual("all").unwrap()
        });
        assert_eq!(residuals, [vec![0.0; 8], vec![0.0; 8]], "{between:?}");
    }
}

#[test]
fn what_makes_no_sense_in_a_step_is_refused() {
    let group = Group::solo();
    let mut exchange = built(&group, 1200);
    let mut gradients = inputs(0, 0);
    let mut step = exchange.begin().unwrap();
    step.ready(3, &gradients[3]).unwrap();
    let twice = step.ready(3, &gradients[3]).unwrap_err();
    assert_eq!(twice.to_string(), "a tensor that is ready twice in a step: hand in each gradient once");
    for (tensor, length) in [(TENSORS.len(), 1), (usize::MAX, 0), (7, 299), (1, 8)] {
        let refused = step.ready(tensor, &vec![1.0; length]).unwrap_err();
        assert!(matches!(refused, Error::Shape { .. }), "{tensor}: {refused}");
    }
    step.finish(&mut gradients).unwrap();
    let short = &mut gradients[..3];
    let refused = exchange.begin().unwrap().finish(short).unwrap_err();
    assert!(matches!(refused, Error::Shape { .. }), "{refused}");
    assert!(matches!(group.barrier(), Err(Collective::Aborted { .. })), "others would wait");
}

/// A step that was left goes on where it was; nothing else does meanwhile.
#[test]
fn a_step_may_be_left_and_resumed() {
    let group = Group::solo();
    let mut exchange = built(&group, 1200);
    let mut gradients = inputs(0, 0);
    let mut step = exchange.begin().unwrap();
    step.ready(3, &gradients[3]).unwrap();
    step.leave();
    assert_eq!(exchange.residual("third"), None);
    let refused = [
        exchange.save(&mut Vec::new()),
        exchange.load(&mut &[][..]),
        exchange.set_density("third", 0.5),
        exchange.average(&mut gradients.clone()),
        exchange.begin().map(drop),
    ];
    assert!(refused.iter().all(|result| matches!(result, Err(Error::Order { .. }))), "{refused:?}");
    let ((mut exchange, _), result) = exchange.start(gradients.clone()).wait();
    assert!(matches!(result, Err(Error::Order { .. })), "{result:?}");
    exchange.resume().unwrap().finish(&mut gradients).unwrap();
    assert!(exchange.resume().is_none());
    let mut step = exchange.begin().unwrap();
    step.ready(3, &inputs(0, 1)[3]).unwrap();
    step.leave();
    exchange.rejoin(&Group::solo());
    assert!(exchange.residual("third").unwrap().iter().any(|&value| value != 0.0));
}

/// A step and an average are not the same call.
#[test]
fn other_steps_are_a_mismatch() {
    for between in BOTH {
        let errors = between.run(2, |group| {
            let mut exchange = built(group, 1200);
            let mut gradients = inputs(group.rank(), 0);
            if group.rank() == 0 {
                exchange.average(&mut gradients).unwrap_err()
            } else {
                step(&mut exchange, &mut gradients).unwrap_err()
            }
        });
        for error in errors {
            let told =
                matches!(error, Error::Collective(Collective::Mismatch { .. } | Collective::Differs { .. }));
            assert!(told, "{between:?}: {error}");
        }
    }
}

/// A rank without tensors does not go on alone.
#[test]
fn an_exchange_without_tensors_differs_from_others() {
    for (between, steps) in BOTH.into_iter().flat_map(|between| [false, true].map(|steps| (between, steps))) {
        let results = between.run(3, move |group| {
            let tensors = u32::from(group.rank() != 0);
            let add = |builder: ExchangeBuilder, tensor: u32| {
                builder.tensor(tensor.to_string(), [9], Policy::topk(0.5))
            };
            let mut exchange = (0..tensors).fold(GradientExchange::builder(group), add).build().unwrap();
            let mut gradients: Vec<_> = (0..tensors).map(|_| vec![1.0; 9]).collect();
            if steps { step(&mut exchange, &mut gradients) } else { exchange.average(&mut gradients) }
        });
        for result in results {
            let told = matches!(
                result,
                Err(Error::Collective(Collective::Mismatch { .. } | Collective::Differs { .. }))
            );
            assert!(told, "{between:?}, steps {steps}: {result:?}");
        }
        let alike = between.run(3, move |group| {
            let mut exchange = GradientExchange::builder(group).build().unwrap();
            if steps { step(&mut exchange, &mut []) } else { exchange.average::<f32, Vec<f32>>(&mut []) }
        });
        assert!(alike.iter().all(Result::is_ok), "{alike:?}");
    }
}
