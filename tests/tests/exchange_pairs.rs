//! Exchanges with every pair of a policy, a format of values, a threshold, a scope, a schedule, a momentum, a
//! type of gradients and a number of ranks that there is: equal bits on all ranks, and nothing is lost.

use std::collections::BTreeSet;

use brevity::compress::dense::Element;
use brevity::compress::generator::Generator;
use brevity::compress::momentum::{Clip, squared_norm};
use brevity::compress::quantise::Values;
use brevity::compress::schedule::Schedule;
use brevity::compress::{Density, feedback};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{GradientElement, GradientExchange, Group, Policy, Settings};
use half::{bf16, f16};

const TENSORS: [(&str, &[usize]); 2] = [("matrix", &[12, 10]), ("vector", &[40])];
const STEPS: u32 = 6;
const MOMENTUM: f32 = 0.5;
/// Gradients of four ranks have norms of about 30 and 17.
const CLIP: f64 = 40.0;

const METHODS: [&str; 13] = [
    "topk:0.1",
    "topk:0.1,hierarchical=yes",
    "gtopk:0.1",
    "gtopk:0.1,put-back=merger-keeps",
    "gtopk:0.1,hierarchical=yes",
    "oktopk:0.1",
    "random-k:0.1",
    "random-block:0.1",
    "block:0.5",
    "quantised",
    "low-rank:2",
    "sign-norm",
    "auto:0.1",
];
const THRESHOLDS: [&str; 4] = ["", ",threshold=sampled", ",threshold=adaptive", ",threshold=9"];
const SCOPES: [&str; 3] = ["", ",scope=bucket", ",scope=model"];
const SCHEDULES: [&str; 3] = ["", ",dense-steps=2", "schedule"];
const MOMENTA: [&str; 5] =
    ["", ",momentum=0.5", ",momentum=0.5,nesterov=yes", ",momentum=0.5,clip=40", ",samomentum=0.5"];
const TYPES: [&str; 4] = ["f32", "f64", "f16", "bf16"];
const RANKS: [u32; 3] = [2, 3, 4];

/// How values may be written: `None` leaves it to the estimates.
fn formats() -> Vec<Option<String>> {
    let named = Values::ALL.into_iter().chain([Values::OneBitColumns(0)]).map(|values| values.to_string());
    [None, Some("pairs".into())].into_iter().chain(named.map(Some)).collect()
}

/// One value of each factor, by number.
type Row = [usize; 8];

/// How many values each factor has.
fn sizes() -> Row {
    let formats = formats().len();
    let (schedules, momenta) = (SCHEDULES.len(), MOMENTA.len());
    [METHODS.len(), formats, THRESHOLDS.len(), SCOPES.len(), schedules, momenta, TYPES.len(), RANKS.len()]
}

/// The policy of a row; `None` if there is none.
fn policy(row: Row) -> Option<Policy> {
    let format = formats().swap_remove(row[1]);
    let method = METHODS[row[0]];
    let mut text = match format {
        Some(values) if method == "quantised" => format!("quantised:{values}"),
        Some(values) => format!("{method},values={values}"),
        None => method.to_owned(),
    };
    for (factor, words) in [(2, &THRESHOLDS[..]), (3, &SCOPES), (4, &SCHEDULES), (5, &MOMENTA)] {
        let word = words[row[factor]];
        text += if word == "schedule" { "" } else { word };
    }
    let policy: Policy = text.parse().ok()?;
    TENSORS.iter().all(|(name, shape)| policy.check(name, shape).is_ok()).then_some(policy)
}

/// The pairs of values of a row: two factors and their values.
fn pairs(row: Row) -> impl Iterator<Item = [(usize, usize); 2]> {
    let of = move |first: usize| (first + 1..row.len()).map(move |second| [first, second]);
    (0..row.len()).flat_map(of).map(move |both| both.map(|factor| (factor, row[factor])))
}

/// Rows with all pairs that some policy has: each row is the best of some that have the next pair that is
/// missing. A pair that no method takes with the first values of all other factors is none.
fn rows() -> Vec<Row> {
    let (sizes, mut generator) = (sizes(), Generator::new(1));
    let mut missing = BTreeSet::new();
    for (first, second) in
        (0..sizes.len()).flat_map(|first| (first + 1..sizes.len()).map(move |s| (first, s)))
    {
        let values = (0..sizes[first]).flat_map(|a| (0..sizes[second]).map(move |b| (a, b)));
        missing.extend(values.map(|(a, b)| [(first, a), (second, b)]));
    }
    let mut rows = Vec::new();
    while let Some(pair) = missing.first().copied() {
        let with_pair = |mut row: Row| {
            pair.iter().for_each(|&(factor, value)| row[factor] = value);
            row
        };
        let plain = (0..METHODS.len() * 4).map(|of| {
            let mut row = Row::default();
            // Some methods have no such type or no such format.
            (row[0], row[1]) = (of / 4, [0, 2, 4, 5][of % 4]);
            with_pair(row)
        });
        let drawn = (0..60).map(|_| with_pair(sizes.map(|size| generator.below(size as u64) as usize)));
        let tried = plain.collect::<Vec<_>>().into_iter().chain(drawn.collect::<Vec<_>>());
        let covers = |row: &Row| pairs(*row).filter(|pair| missing.contains(pair)).count();
        let best = tried.filter(|row| policy(*row).is_some()).max_by_key(covers);
        if let Some(row) = best {
            pairs(row).for_each(|pair| _ = missing.remove(&pair));
            rows.push(row);
        }
        missing.remove(&pair);
    }
    rows
}

/// Positive and small, so that sums of all steps and ranks are exact in every type.
fn element(rank: u32, step: u32, place: usize) -> f32 {
    1.0 + (brevity_tests::oracle::value(rank + 10 * step, place) + 100.0) % 4.0
}

fn gradients(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let counts = TENSORS.iter().map(|(_, shape)| shape.iter().product::<usize>());
    (0..).zip(counts).map(|(of, n)| (0..n).map(|i| element(rank + 5 * of, step, i)).collect()).collect()
}

/// The averages of all steps, and what is left.
type Outcome = (Vec<Vec<Vec<f32>>>, Vec<Vec<f32>>);

fn outcomes<E>(row: Row, policy: Policy, of: fn(f32) -> E, back: fn(E) -> f32) -> Vec<Outcome>
where
    E: GradientElement + Element + Send + 'static,
{
    let cluster = Cluster::new(RANKS[row[7]], Links::new(1e-5, 1e-9));
    let body = |group: Group| async move {
        let mut builder = GradientExchange::builder(&group).bucket_bytes(400);
        if SCHEDULES[row[4]] == "schedule" {
            let densities = [Density::new(0.5).unwrap(), Density::new(0.2).unwrap()];
            builder = builder.schedule(Schedule::listed(&densities, Density::new(0.05).unwrap()), 2);
        }
        let add = |builder: brevity::ExchangeBuilder, (name, shape): (&str, &[usize])| {
            builder.tensor(name, shape, policy)
        };
        let mut exchange = TENSORS.into_iter().fold(builder, add).build().unwrap();
        let mut averages = Vec::new();
        for step in 0..STEPS {
            let given = gradients(group.rank(), step);
            let given: Vec<Vec<E>> = given.into_iter().map(|g| g.into_iter().map(of).collect()).collect();
            let ((after, found), outcome) = exchange.start(given).await;
            outcome.unwrap();
            exchange = after;
            averages.push(found.into_iter().map(|g| g.into_iter().map(back).collect()).collect());
        }
        (averages, TENSORS.map(|(name, _)| exchange.residual(name).unwrap()).to_vec())
    };
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn of_type(row: Row, policy: Policy) -> Vec<Outcome> {
    match TYPES[row[6]] {
        "f64" => outcomes::<f64>(row, policy, f64::from, |value| value as f32),
        "f16" => outcomes::<f16>(row, policy, f16::from_f32, f16::to_f32),
        "bf16" => outcomes::<bf16>(row, policy, bf16::from_f32, bf16::to_f32),
        _ => outcomes::<f32>(row, policy, |value| value, |value| value),
    }
}

/// What is delivered and kept of each element must be between these: all that was given; with momentum
/// correction at most what momentum SGD would make of it, and at least the gradients.
fn bounds(row: Row, tensor: usize) -> Vec<[f64; 2]> {
    let (ranks, is_clipped) = (RANKS[row[7]], MOMENTA[row[5]].contains("clip"));
    let mut sums = Vec::new();
    for (rank, step) in (0..ranks).flat_map(|rank| (0..STEPS).map(move |step| (rank, step))) {
        let gradient = gradients(rank, step).swap_remove(tensor);
        let clip = Clip::new(CLIP, ranks as usize).unwrap();
        let squares = squared_norm(feedback::Gradient::from(&gradient[..])).unwrap();
        let factor = if is_clipped { f64::from(clip.factor(squares)) } else { 1.0 };
        sums.resize(gradient.len(), 0.0);
        sums.iter_mut().zip(&gradient).for_each(|(sum, &g)| *sum += factor * f64::from(g));
    }
    let most = if MOMENTA[row[5]].contains(",momentum") { 1.0 / f64::from(1.0 - MOMENTUM) } else { 1.0 };
    sums.into_iter().map(|sum| [sum, most * sum]).collect()
}

/// Whether every number is exact: averages by 2 and 4 ranks are.
fn is_exact(row: Row) -> bool {
    let format = formats().swap_remove(row[1]);
    let values = format.is_none_or(|format| ["pairs", "f32"].contains(&&format[..]));
    let method = !["low-rank:2", "sign-norm"].contains(&METHODS[row[0]]);
    values && method && MOMENTA[row[5]].is_empty() && RANKS[row[7]] != 3
}

fn check(row: Row, policy: Policy) {
    let about = format!("{policy}, {}, {}, P = {}", SCHEDULES[row[4]], TYPES[row[6]], RANKS[row[7]]);
    let ranks = of_type(row, policy);
    for (rank, (averages, _)) in ranks.iter().enumerate() {
        assert!(*averages == ranks[0].0, "{about}: rank {rank} has other averages");
    }
    // Sparsification-aware momentum keeps a share of what it sends.
    let sent = if MOMENTA[row[5]].contains("samomentum") { f64::from(1.0 - MOMENTUM) } else { 1.0 };
    // Of an average, relative.
    let rounding = match TYPES[row[6]] {
        "f16" => 1.0 / 2048.0,
        "bf16" => 1.0 / 256.0,
        _ => 0.0,
    };
    for tensor in 0..TENSORS.len() {
        for (place, [least, most]) in bounds(row, tensor).into_iter().enumerate() {
            let delivered: f64 = ranks[0].0.iter().map(|step| f64::from(step[tensor][place])).sum();
            let delivered = sent * ranks.len() as f64 * delivered;
            let kept: f64 = ranks.iter().map(|(_, left)| f64::from(left[tensor][place])).sum();
            let found = delivered + kept;
            let slack = if is_exact(row) { 0.0 } else { rounding * delivered.abs() + 2e-4 * most };
            let name = TENSORS[tensor].0;
            assert!(
                least - slack <= found && found <= most + slack,
                "{about}: {name}[{place}] {found} of {least} to {most}"
            );
        }
    }
}

#[test]
fn all_pairs_deliver_or_keep_what_they_are_given() {
    let rows = rows();
    let covered: BTreeSet<_> = rows.iter().copied().flat_map(pairs).collect();
    // Selected entries have every format, every momentum and every schedule, in every type.
    for method in ["topk:0.1", "gtopk:0.1", "oktopk:0.1"] {
        let method = METHODS.iter().position(|name| *name == method).unwrap();
        let of = |factor: usize| (0..sizes()[factor]).map(move |value| [(0, method), (factor, value)]);
        assert!((1..8).flat_map(of).all(|pair| covered.contains(&pair)), "{}", METHODS[method]);
    }
    let types = |value: usize| (0..sizes()[6]).map(move |of| [(1, value), (6, of)]);
    assert!((0..sizes()[1]).flat_map(types).all(|pair| covered.contains(&pair)));
    assert!(rows.iter().any(|row| is_exact(*row)));
    for row in rows {
        check(row, policy(row).unwrap());
    }
}
