//! Quantised tensors of an exchange, against a serial reference.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use brevity::collectives::Error as Collective;
use brevity::compress::quantise::{Encoded, Magnitude, Values};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Error, GradientExchange, Group, Policy, Settings};
use brevity_tests::dense::in_order;
use brevity_tests::{on_groups, on_local, oracle};

/// What the policy accepts for any tensor.
const FORMATS: [Values; 11] = [
    Values::F32,
    Values::F16,
    Values::Bf16,
    Values::EightBit,
    Values::OneBit(Magnitude::Mean),
    Values::TwoBit(Magnitude::Mean),
    Values::OneBitColumns(7),
    Values::Ternary,
    Values::Qsgd(2),
    Values::Qsgd(7),
    Values::Qsgd(127),
];

/// The elements of each tensor: several in one slice, one that slices cut, and an empty one.
const COUNTS: [usize; 5] = [7, 700, 0, 33, 1100];

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn exchange(group: &Group, values: impl Fn(usize) -> Values) -> GradientExchange {
    let mut builder = GradientExchange::builder(group);
    for (place, (name, count)) in NAMES.into_iter().zip(COUNTS).enumerate() {
        builder = builder.tensor(name, [count], Policy::quantised(values(place)));
    }
    builder.build().unwrap()
}

/// Each tensor has values of another size.
fn gradients(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let scales = [1e-3, 1.0 / 3.0, 1.0, 1e4, 0.7];
    let of = |place: usize| oracle::vector(rank + 10 * place as u32 + 100 * step, COUNTS[place]);
    let scaled = |place: usize| of(place).into_iter().map(|value| scales[place] * value).collect();
    (0..COUNTS.len()).map(scaled).collect()
}

fn bits(values: &[Vec<f32>]) -> Vec<u32> {
    values.iter().flatten().map(|value| value.to_bits()).collect()
}

fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
    NAMES.map(|name| exchange.residual(name).unwrap()).into()
}

/// What becomes of values on the wire.
fn rounded(values: Values, of: &[f32]) -> Vec<f32> {
    let (mut bytes, mut decoded) = (Vec::new(), vec![0.0; of.len()]);
    values.quantiser().encode(of, &mut bytes).unwrap();
    Encoded::new(values.format(), of.len(), &bytes).unwrap().decode_into(&mut decoded).unwrap();
    decoded
}

fn difference(of: &[f32], less: &[f32]) -> Vec<f32> {
    of.iter().zip(less).map(|(a, b)| a - b).collect()
}

/// The reference: the residuals of all ranks, packed.
struct Serial {
    values: Values,
    counts: Vec<usize>,
    residuals: Vec<Vec<f32>>,
}

impl Serial {
    fn new(world_size: usize, values: Values, counts: &[usize]) -> Self {
        let residuals = vec![vec![0.0; counts.iter().sum()]; world_size];
        Self { values, counts: counts.to_vec(), residuals }
    }

    /// Every piece of a tensor in a slice, with the rank that sums it.
    fn pieces(&self) -> Vec<(usize, Range<usize>)> {
        let (ranks, total) = (self.residuals.len(), self.residuals[0].len());
        let slice = total.div_ceil(ranks).next_multiple_of(512);
        let (mut pieces, mut end) = (Vec::new(), 0);
        for count in &self.counts {
            let mut start = end;
            end += count;
            while start < end {
                let piece = start..end.min((start / slice + 1) * slice);
                pieces.push((start / slice, piece.clone()));
                start = piece.end;
            }
        }
        pieces
    }

    /// The average, of gradients that are packed as well.
    fn step(&mut self, gradients: &[Vec<f32>]) -> Vec<f32> {
        let ranks = gradients.len();
        let mut average = vec![0.0; gradients[0].len()];
        for (residual, gradient) in self.residuals.iter_mut().zip(gradients) {
            residual.iter_mut().zip(gradient).for_each(|(r, g)| *r += g);
        }
        for (owner, piece) in self.pieces() {
            let mut parts = Vec::new();
            for (rank, residual) in self.residuals.iter_mut().enumerate() {
                let own = &mut residual[piece.clone()];
                if rank == owner {
                    parts.push(own.to_vec());
                } else {
                    let sent = rounded(self.values, own);
                    own.copy_from_slice(&difference(own, &sent));
                    parts.push(sent);
                }
            }
            let sum = in_order(parts);
            let sent = rounded(self.values, &sum);
            self.residuals[owner][piece.clone()].copy_from_slice(&difference(&sum, &sent));
            average[piece].iter_mut().zip(sent).for_each(|(a, s)| *a = s / ranks as f32);
        }
        average
    }
}

#[test]
fn averages_and_residuals_have_the_bits_of_the_serial_reference() {
    for (world_size, values) in (1..=5).flat_map(|size| FORMATS.map(|values| (size, values))) {
        let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
        let ranks = run(cluster, |transport| {
            let group = Group::new(transport, Settings::default());
            async move {
                let mut exchange = exchange(&group, |_| values);
                let mut out = Vec::new();
                for step in 0..4 {
                    let started = exchange.start(gradients(group.rank(), step));
                    let ((back, averages), outcome) = started.await;
                    outcome.unwrap();
                    exchange = back;
                    out.push((bits(&averages), bits(&residuals(&exchange))));
                }
                out
            }
        });
        let ranks = ranks.unwrap();
        let mut serial = Serial::new(world_size as usize, values, &COUNTS);
        for step in 0..4 {
            let given: Vec<_> = (0..world_size).map(|rank| gradients(rank, step).concat()).collect();
            let average = serial.step(&given);
            for (rank, found) in ranks.iter().enumerate() {
                let (found, left) = &found[step as usize];
                let about = format!("{values}, P = {world_size}, rank {rank}, step {step}");
                assert!(*found == bits(std::slice::from_ref(&average)), "{about}");
                assert!(*left == bits(std::slice::from_ref(&serial.residuals[rank])), "{about}: residual");
            }
        }
    }
}

/// All of one format share a call, whichever place in the list they have.
#[test]
fn tensors_of_several_formats_share_an_exchange() {
    let formats = [Values::EightBit, Values::Bf16];
    let ranks = on_local(3, move |group| {
        let mut exchange = exchange(group, |place| formats[place % 2]);
        let mut averages = gradients(group.rank(), 0);
        exchange.average(&mut averages).unwrap();
        averages
    });
    for (which, values) in formats.into_iter().enumerate() {
        let places: Vec<usize> = (which..COUNTS.len()).step_by(2).collect();
        let counts: Vec<usize> = places.iter().map(|&place| COUNTS[place]).collect();
        let packed =
            |all: &[Vec<f32>]| places.iter().flat_map(|&place| all[place].clone()).collect::<Vec<_>>();
        let given: Vec<_> = (0..3).map(|rank| packed(&gradients(rank, 0))).collect();
        let expected = Serial::new(3, values, &counts).step(&given);
        for averages in &ranks {
            assert!(packed(averages) == expected, "{values}");
        }
    }
}

/// Both are in one slice; with one scale, the small values would be lost among the large ones.
#[test]
fn a_scale_is_that_of_one_tensor() {
    for values in [Values::OneBit(Magnitude::Mean), Values::TwoBit(Magnitude::Mean), Values::EightBit] {
        let small = 1e-5_f32;
        let averages = on_local(2, move |group| {
            let policy = Policy::quantised(values);
            let builder = GradientExchange::builder(group).tensor("large", [40], policy);
            let mut exchange = builder.tensor("small", [30], policy).build().unwrap();
            let mut gradients = [vec![1000.0; 40], vec![small; 30]];
            exchange.average(&mut gradients).unwrap();
            gradients
        });
        for [large, little] in averages {
            assert!(large.iter().all(|value| *value == 1000.0), "{values}: {large:?}");
            assert!(little.iter().all(|value| *value == small), "{values}: {little:?}");
        }
    }
}

/// A value of a gradient, by rank, step and place.
type Element = fn(u32, u32, usize) -> f32;

/// Gradients of 1,000 steps: their name, and each value of one.
const GRADIENTS: [(&str, Element); 4] = [
    ("ones", |_, _, _| 1.0),
    ("changing", |rank, step, place| oracle::value(rank + 7 * step, place)),
    ("alternating", |rank, step, _| if (rank + step).is_multiple_of(2) { 1.0 } else { -1.0 }),
    ("some of them large", |rank, step, place| {
        if place as u32 % 97 == step % 97 { 1000.0 } else { oracle::value(rank + 7 * step, place) }
    }),
];

/// With pieces of up to 512 elements.
#[test]
fn residuals_stay_bounded_over_1000_steps() {
    const STEPS: u32 = 1000;
    let counts = [96_usize, 300, 400];
    for ((what, value), values) in GRADIENTS.into_iter().flat_map(|of| FORMATS.map(|values| (of, values))) {
        for world_size in [1, 3] {
            let halves = on_local(world_size, move |group| {
                let mut builder = GradientExchange::builder(group);
                for (name, count) in NAMES.into_iter().zip(counts) {
                    builder = builder.tensor(name, [count], Policy::quantised(values));
                }
                let mut exchange = builder.build().unwrap();
                let mut halves = [0.0_f64; 2];
                for step in 0..STEPS {
                    let mut gradients = counts
                        .map(|count| (0..count).map(|i| value(group.rank(), step, i)).collect::<Vec<_>>());
                    exchange.average(&mut gradients).unwrap();
                    let all = NAMES[..3].iter().flat_map(|name| exchange.residual(name).unwrap());
                    let norm = all.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
                    let half = &mut halves[2 * step as usize / STEPS as usize];
                    *half = half.max(norm);
                }
                halves
            });
            for (rank, [before, after]) in halves.into_iter().enumerate() {
                let about =
                    format!("{values}, {what}, P = {world_size}, rank {rank}: {before}, then {after}");
                assert!(after <= 1.25 * before + 1e-6, "{about}");
            }
        }
    }
}

#[test]
fn formats_that_residuals_diverge_with_are_refused() {
    for values in [Values::OneBit(Magnitude::Min), Values::TwoBit(Magnitude::Min)] {
        let build = GradientExchange::builder(&Group::solo())
            .tensor("weight", [8, 8], Policy::quantised(values))
            .build();
        let error = build.err().unwrap();
        assert!(matches!(&error, Error::Diverges { values: found, .. } if *found == values), "{error}");
        let text = error.to_string();
        assert!(text.contains("\"weight\"") && text.contains(&values.to_string()), "{text}");
    }
}

/// Rank 1 owns the second slice. Nothing has changed afterwards, not by a bit.
#[test]
fn what_is_not_finite_is_named_and_left_out() {
    type Change = fn(u32, &mut [Vec<f32>]);
    let cases: [(&str, Change); 3] = [
        ("b", |rank, g| {
            if rank == 2 {
                g[1][699] = f32::NAN
            }
        }),
        ("d", |rank, g| {
            if rank == 1 {
                g[3][0] = f32::INFINITY
            }
        }),
        // The sum of all ranks, each of which is finite.
        ("e", |_, g| g[4][1099] = f32::MAX),
    ];
    for (named, change) in cases {
        for values in FORMATS.into_iter().filter(|values| *values != Values::F16) {
            let texts = on_local(3, move |group| {
                let mut exchange = exchange(group, |_| values);
                exchange.average(&mut gradients(group.rank(), 0)).unwrap();
                let before = residuals(&exchange);
                let mut bad = gradients(group.rank(), 1);
                change(group.rank(), &mut bad);
                let handed_in = bits(&bad);
                let error = exchange.average(&mut bad).unwrap_err();
                assert!(matches!(error, Error::NonFinite { .. }), "{error}");
                assert!(bits(&bad) == handed_in);
                // Restored up to one rounding of the sum with the gradient.
                let after = residuals(&exchange).concat();
                for ((after, before), gradient) in after.iter().zip(before.concat()).zip(bad.concat()) {
                    let most = if gradient.is_finite() { gradient.abs() + before.abs() } else { 0.0 };
                    assert!((after - before).abs() <= most * f32::EPSILON, "{values}, {before}: {after}");
                }
                exchange.average(&mut gradients(group.rank(), 2)).unwrap();
                error.to_string()
            });
            let is_told = |text: &String| *text == texts[0] && text.contains(&format!("tensor {named:?}"));
            assert!(texts.iter().all(is_told), "{values}, {named}: {texts:?}");
        }
    }
}

#[test]
fn a_failed_step_stays_in_the_residuals() {
    for values in FORMATS {
        let survivors = Arc::new(Mutex::new(vec![Some(Group::solo())]));
        on_groups(local_groups(2), move |group| {
            let mut exchange = exchange(group, |_| values);
            exchange.average(&mut gradients(group.rank(), 0)).unwrap();
            if group.rank() == 1 {
                return;
            }
            let before = residuals(&exchange);
            let mut failed = gradients(0, 1);
            let error = exchange.average(&mut failed).unwrap_err();
            assert!(matches!(error, Error::Collective(Collective::PeerLost { .. })), "{error}");
            assert_eq!(failed, gradients(0, 1));
            let sums = before.iter().zip(gradients(0, 1));
            let expected: Vec<_> = sums.map(|(r, g)| oracle::sum(&[r.clone(), g])).collect();
            assert!(residuals(&exchange) == expected, "{values}");
            exchange.rejoin(&survivors.lock().unwrap()[0].take().unwrap());
            let mut nothing: Vec<_> = COUNTS.map(|count| vec![0.0; count]).into();
            exchange.average(&mut nothing).unwrap();
            let sums = nothing.iter().zip(residuals(&exchange)).map(|(a, r)| oracle::sum(&[a.clone(), r]));
            for (sums, expected) in sums.zip(expected) {
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1e-3);
                let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let all = sums.iter().zip(&expected);
                assert!(
                    all.clone().all(|(a, b)| close((a, b)) || (a - b).abs() <= 1e-6 * largest),
                    "{values}"
                );
            }
        });
    }
}

fn local_groups(world_size: u32) -> Vec<Group> {
    let transports = brevity::transport::local::world(world_size).into_iter();
    transports.map(|transport| Group::new(Box::new(transport), Settings::default())).collect()
}

#[test]
fn another_format_is_a_mismatch_that_names_both() {
    let texts = on_local(3, |group| {
        let values = if group.rank() == 1 { Values::F16 } else { Values::EightBit };
        let mut exchange = exchange(group, |place| if place == 3 { values } else { Values::Bf16 });
        exchange.average(&mut gradients(group.rank(), 0)).unwrap_err().to_string()
    });
    let names = |text: &String| {
        ["\"d\"", "quantised, f16 values", "quantised, eight-bit values"]
            .iter()
            .all(|part| text.contains(part))
    };
    assert!(texts.iter().any(names), "{texts:?}");
}

#[test]
fn the_format_may_be_another_after_a_restart() {
    let group = Group::solo();
    let mut first = exchange(&group, |place| FORMATS[1 + place % 4]);
    first.average(&mut gradients(0, 0)).unwrap();
    let mut saved = Vec::new();
    first.save(&mut saved).unwrap();
    assert_eq!(saved.len(), first.saved_bytes());
    for values in FORMATS {
        let mut second = exchange(&group, |_| values);
        second.load(&mut &saved[..]).unwrap();
        assert!(residuals(&second) == residuals(&first), "{values}");
    }
}

/// Each state of three ranks is loaded or taken over once by two.
#[test]
fn states_are_loaded_by_another_number_of_ranks() {
    let states = on_local(3, |group| {
        let mut exchange = exchange(group, |_| Values::OneBit(Magnitude::Mean));
        exchange.average(&mut gradients(group.rank(), 0)).unwrap();
        let mut saved = Vec::new();
        exchange.save(&mut saved).unwrap();
        (saved, residuals(&exchange))
    });
    let from = states.clone();
    let loaded = on_local(2, move |group| {
        let mut exchange = exchange(group, |_| Values::OneBit(Magnitude::Mean));
        exchange.load_of(2 * group.rank(), &mut &from[2 * group.rank() as usize].0[..]).unwrap();
        if group.rank() == 0 {
            exchange.take_over(1, &mut &from[1].0[..]).unwrap();
        }
        let left = residuals(&exchange);
        exchange.average(&mut gradients(group.rank(), 1)).unwrap();
        left
    });
    let both = states[0].1.iter().zip(&states[1].1);
    let both: Vec<_> = both.map(|(one, other)| oracle::sum(&[one.clone(), other.clone()])).collect();
    assert!(loaded[0] == both && loaded[1] == states[2].1);
}

#[test]
fn a_density_is_refused() {
    let mut exchange = exchange(&Group::solo(), |_| Values::Bf16);
    let error = exchange.set_density("b", 0.5).unwrap_err().to_string();
    assert!(error.contains("\"b\"") && error.contains("topk or gtopk"), "{error}");
}
