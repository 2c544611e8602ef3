//! Tensors of an exchange whose signs are voted on, against a serial reference.

use brevity::collectives::Error as Collective;
use brevity::transport::local;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Error, GradientExchange, Group, Policy, Settings};
use brevity_tests::{on_groups, on_local, oracle};

/// Each tensor: its elements, and the momentum.
const TENSORS: [(&str, usize, f32); 4] = [("a", 5, 0.9), ("b", 700, 0.5), ("c", 0, 0.5), ("d", 900, 0.0)];

fn exchange(group: &Group) -> GradientExchange {
    let builder = GradientExchange::builder(group);
    let add = |builder: brevity::ExchangeBuilder, (name, count, momentum)| {
        builder.tensor(name, [count], Policy::signum(momentum))
    };
    TENSORS.into_iter().fold(builder, add).build().unwrap()
}

/// With zeros on some ranks, and on all.
fn gradients(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let value = |index: usize, value: f32| {
        let is_zero = index.is_multiple_of(11) || (index + rank as usize).is_multiple_of(3);
        if is_zero { 0.0 } else { value / 3.0 }
    };
    let vector = |count, seed| oracle::vector(rank + seed + 100 * step, count);
    let zeroed = |all: Vec<f32>| all.into_iter().enumerate().map(|(i, v)| value(i, v)).collect();
    (0..).zip(TENSORS).map(|(place, (_, count, _))| zeroed(vector(count, 10 * place))).collect()
}

/// The reference: the momenta of all ranks.
struct Serial(Vec<Vec<Vec<f32>>>);

impl Serial {
    fn new(world_size: u32) -> Self {
        let zeros: Vec<_> = TENSORS.iter().map(|(_, count, _)| vec![0.0; *count]).collect();
        Self((0..world_size).map(|_| zeros.clone()).collect())
    }

    /// The majorities.
    fn step(&mut self, gradients: impl Fn(u32) -> Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        for (rank, momenta) in (0..).zip(&mut self.0) {
            let tensors = momenta.iter_mut().zip(gradients(rank)).zip(TENSORS);
            for ((momentum, gradient), (.., factor)) in tensors {
                let pairs = momentum.iter_mut().zip(gradient);
                pairs.for_each(|(m, g)| *m = factor * *m + (1.0 - factor) * g);
            }
        }
        self.majorities()
    }

    fn majorities(&self) -> Vec<Vec<f32>> {
        let vote = |value: f32| i32::from(value > 0.0) - i32::from(value < 0.0);
        let majority = |tensor: usize, index: usize| {
            self.0.iter().map(|rank| vote(rank[tensor][index])).sum::<i32>().signum() as f32
        };
        let tensors = TENSORS.iter().enumerate();
        tensors.map(|(tensor, (_, n, _))| (0..*n).map(|index| majority(tensor, index)).collect()).collect()
    }
}

#[test]
fn the_majority_of_the_momenta_wins() {
    for world_size in 1..=5 {
        let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
        let ranks = run(cluster, |transport| {
            let group = Group::new(transport, Settings::default());
            async move {
                let (mut exchange, mut out) = (exchange(&group), Vec::new());
                for step in 0..5 {
                    let started = exchange.start(gradients(group.rank(), step));
                    let ((back, votes), outcome) = started.await;
                    outcome.unwrap();
                    exchange = back;
                    out.push(votes);
                }
                out
            }
        });
        let mut serial = Serial::new(world_size);
        let expected: Vec<_> = (0..5).map(|step| serial.step(|rank| gradients(rank, step))).collect();
        assert!(ranks.unwrap().iter().all(|found| *found == expected), "P = {world_size}");
        assert!(expected.iter().flatten().flatten().any(|value| *value == 0.0), "nobody votes for these");
    }
}

#[test]
fn there_is_no_residual() {
    let mut exchange = exchange(&Group::solo());
    exchange.average(&mut gradients(0, 0)).unwrap();
    let mut out = vec![7.0; 700];
    exchange.residual_to("b", &mut out).unwrap();
    assert_eq!(out, vec![0.0; 700]);
    let error = exchange.set_density("b", 0.5).unwrap_err().to_string();
    assert!(error.contains("topk or gtopk"), "{error}");
}

/// The next step is what it would have been without the bad one.
#[test]
fn a_value_that_is_not_finite_leaves_the_momentum_as_it_was() {
    for (tensor, bad) in [(1, f32::NAN), (3, f32::NEG_INFINITY)] {
        let ranks = on_local(3, move |group| {
            let mut exchange = exchange(group);
            exchange.average(&mut gradients(group.rank(), 0)).unwrap();
            let mut poisoned = gradients(group.rank(), 1);
            if group.rank() == 2 {
                poisoned[tensor][4] = bad;
            }
            let handed_in = poisoned.clone();
            let error = exchange.average(&mut poisoned).unwrap_err();
            let same = poisoned.iter().flatten().zip(handed_in.iter().flatten());
            assert!(same.clone().all(|(a, b)| a.to_bits() == b.to_bits()), "applied");
            let mut next = gradients(group.rank(), 2);
            exchange.average(&mut next).unwrap();
            (error, next)
        });
        let mut serial = Serial::new(3);
        serial.step(|rank| gradients(rank, 0));
        let expected = serial.step(|rank| gradients(rank, 2));
        for (error, next) in ranks {
            let Error::NonFinite { rank: 2, tensor: name } = &error else { panic!("{error}") };
            assert_eq!(name, TENSORS[tensor].0);
            assert!(next == expected);
        }
    }
}

/// A gradient is finite where its momentum is the largest number.
#[test]
fn large_gradients_do_not_overflow_a_momentum() {
    let mut exchange = exchange(&Group::solo());
    for _ in 0..5 {
        let mut largest: Vec<_> = TENSORS.iter().map(|(_, count, _)| vec![f32::MIN; *count]).collect();
        exchange.average(&mut largest).unwrap();
        assert!(largest.iter().flatten().all(|vote| *vote == -1.0));
    }
}

#[test]
fn a_failed_step_leaves_the_momentum_as_it_was() {
    let transports = local::world(2).into_iter();
    let groups = transports.map(|rank| Group::new(Box::new(rank), Settings::default())).collect();
    on_groups(groups, |group| {
        let mut exchange = exchange(group);
        exchange.average(&mut gradients(group.rank(), 0)).unwrap();
        if group.rank() == 1 {
            return;
        }
        let mut failed = gradients(0, 1);
        let error = exchange.average(&mut failed).unwrap_err();
        assert!(matches!(error, Error::Collective(Collective::PeerLost { .. })), "{error}");
        assert_eq!(failed, gradients(0, 1));
        exchange.rejoin(&Group::solo());
        let mut next = gradients(0, 2);
        exchange.average(&mut next).unwrap();
        let mut serial = Serial::new(1);
        serial.step(|rank| gradients(rank, 0));
        assert!(next == serial.step(|rank| gradients(rank, 2)));
    });
}

/// Rank 1's state of three ranks goes on alone.
#[test]
fn the_momentum_is_saved_and_loaded_by_another_number_of_ranks() {
    let states = on_local(3, |group| {
        let mut exchange = exchange(group);
        exchange.average(&mut gradients(group.rank(), 0)).unwrap();
        exchange.average(&mut gradients(group.rank(), 1)).unwrap();
        let mut saved = Vec::new();
        exchange.save(&mut saved).unwrap();
        assert_eq!(saved.len(), exchange.saved_bytes());
        saved
    });
    let mut alone = exchange(&Group::solo());
    alone.average(&mut gradients(9, 9)).unwrap();
    alone.load_of(1, &mut &states[1][..]).unwrap();
    let mut found: Vec<_> = TENSORS.iter().map(|(_, count, _)| vec![0.0; *count]).collect();
    let nothing = found.clone();
    alone.average(&mut found).unwrap();
    let mut serial = Serial::new(1);
    for step in 0..2 {
        serial.step(|_| gradients(1, step));
    }
    assert!(found == serial.step(|_| nothing.clone()));
}

#[test]
fn another_momentum_is_a_mismatch_that_names_both() {
    let texts = on_local(3, |group| {
        let momentum = if group.rank() == 1 { 0.75 } else { 0.5 };
        let builder = GradientExchange::builder(group).tensor("weight", [64], Policy::signum(momentum));
        builder.build().unwrap().average(&mut [vec![1.0; 64]]).unwrap_err().to_string()
    });
    let names = |text: &String| {
        ["\"weight\"", "momentum 0.75", "momentum 0.5"].iter().all(|part| text.contains(part))
    };
    assert!(texts.iter().any(names), "{texts:?}");
}

#[test]
fn momenta_out_of_range_are_refused() {
    for momentum in [-0.5, 1.0, f32::NAN] {
        let builder = GradientExchange::builder(&Group::solo());
        let error = builder.tensor("weight", [4], Policy::signum(momentum)).build().err().unwrap();
        let text = error.to_string();
        assert!(text.starts_with("tensor \"weight\": momentum is ") && text.contains("below 1"), "{text}");
    }
}
