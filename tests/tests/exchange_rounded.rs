//! Formats that round at random, and signs by columns, in every policy that has values.

use brevity::compress::quantise::{ColumnSign, Encoded, Format, Quantiser, Values};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{GradientExchange, Group, Policy, PutBack, Settings};
use brevity_tests::oracle;

const FORMATS: [Values; 5] =
    [Values::OneBitColumns(0), Values::Ternary, Values::Qsgd(2), Values::Qsgd(7), Values::Qsgd(127)];

const RANKS: u32 = 3;
const SHAPE: [usize; 2] = [35, 20];
const COUNT: usize = 700;

/// What may have these values. All deliver what they select; with the published rule gTop-k would lose some.
fn policies(values: Values) -> [Policy; 6] {
    [
        Policy::quantised(values),
        Policy::topk(0.1).values(values),
        Policy::topk(0.1).values(values).hierarchical(),
        Policy::gtopk(0.1).values(values),
        Policy::gtopk(0.1).values(values).put_back(PutBack::MergerKeeps),
        Policy::oktopk(0.1).values(values),
    ]
}

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn built(group: &Group, policy: Policy) -> GradientExchange {
    GradientExchange::builder(group).tensor("weight", SHAPE, policy).build().unwrap()
}

async fn step(exchange: GradientExchange, gradient: Vec<f32>) -> (GradientExchange, Vec<f32>) {
    let ((exchange, mut averages), outcome) = exchange.start(vec![gradient]).await;
    outcome.unwrap();
    (exchange, averages.remove(0))
}

/// A value of a gradient, by rank, step and place.
type Element = fn(u32, u32, usize) -> f32;

const GRADIENTS: [(&str, Element); 3] = [
    ("ones", |_, _, _| 1.0),
    ("a drift", |rank, step, place| {
        1.0 + place as f32 / 300.0 + oracle::value(5_000 + rank + 3 * step, place)
    }),
    ("some of them large", |rank, step, place| {
        if place as u32 % 97 == step % 97 { 100.0 } else { oracle::value(5_000 + rank + 3 * step, place) }
    }),
];

fn gradient(element: Element, rank: u32, step: u32) -> Vec<f32> {
    (0..COUNT).map(|place| element(rank, step, place)).collect()
}

fn largest(residual: &[f32]) -> f64 {
    residual.iter().fold(0.0, |most, value| most.max(value.abs().into()))
}

fn norm(residual: &[f32]) -> f64 {
    residual.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

/// A measure of a rank's residual after each of 1,000 steps.
async fn course(group: Group, policy: Policy, element: Element, measure: fn(&[f32]) -> f64) -> Vec<f64> {
    let (mut exchange, mut course) = (built(&group, policy), Vec::new());
    for number in 0..1000 {
        exchange = step(exchange, gradient(element, group.rank(), number)).await.0;
        course.push(measure(&exchange.residual("weight").unwrap()));
    }
    course
}

/// The second quarter sets the bound for the last. Their means, because residuals of gTop-k and Ok-Topk
/// swing: what is not in the result returns whole. Growth with the root of the steps would give 1.5, linear
/// growth 2.3.
#[test]
fn residuals_stay_bounded_over_1000_steps() {
    for (values, (what, element)) in FORMATS.into_iter().flat_map(|values| GRADIENTS.map(|of| (values, of))) {
        for policy in policies(values) {
            let ranks = on_sim(RANKS, move |group| course(group, policy, element, norm));
            for (rank, norms) in ranks.into_iter().enumerate() {
                let mean = |quarter: usize| norms[250 * quarter..][..250].iter().sum::<f64>() / 250.0;
                let about = format!("{policy}, {what}, rank {rank}: {}, then {}", mean(1), mean(3));
                assert!(mean(3) <= 1.25 * mean(1) + 1e-6, "{about}");
            }
        }
    }
}

/// With a share `q` of the largest value as largest error, and three ranks: a rank's own residual is at most
/// `q / (1 - q) G`, and an owner's rounding of a sum of these at most a share `q` of it.
#[test]
fn residuals_are_within_the_bound_of_the_documentation() {
    for (values, share) in [(Values::Ternary, 0.5), (Values::Qsgd(2), 0.5), (Values::Qsgd(7), 1.0 / 7.0)] {
        for (what, element) in GRADIENTS {
            let most = (0..RANKS)
                .flat_map(|rank| (0..1000).flat_map(move |step| gradient(element, rank, step)))
                .fold(0.0_f32, |most, value| most.max(value.abs()));
            let own = share / (1.0 - share) * most;
            let others = (RANKS - 1) as f32 * (most + own);
            let bound = own.max(share * (others + most) / (1.0 - share)) * 1.001;
            let policy = Policy::quantised(values);
            let found = on_sim(RANKS, move |group| course(group, policy, element, largest)).concat();
            let found = found.into_iter().fold(0.0, f64::max);
            assert!(found <= bound.into(), "{values}, {what}: {found}, {bound}");
        }
    }
}

/// What is delivered and what is kept is what was handed in, up to the rounding of sums; all ranks have the
/// same bits; and a second run repeats all of them.
#[test]
fn nothing_is_lost_and_all_ranks_and_runs_have_equal_bits() {
    for (world_size, policy) in [1, 2, 3, 5]
        .into_iter()
        .flat_map(|size| FORMATS.into_iter().flat_map(policies).map(move |policy| (size, policy)))
    {
        let outcome = || {
            on_sim(world_size, move |group| async move {
                let (mut exchange, mut delivered) = (built(&group, policy), Vec::new());
                for number in 0..8 {
                    let given = gradient(GRADIENTS[1].1, group.rank(), number);
                    let (back, average) = step(exchange, given).await;
                    exchange = back;
                    delivered.push(average);
                }
                (delivered, exchange.residual("weight").unwrap())
            })
        };
        let ranks = outcome();
        assert!(ranks.iter().all(|(delivered, _)| *delivered == ranks[0].0), "{policy}, P = {world_size}");
        assert!(ranks == outcome(), "{policy}, P = {world_size}: another run differs");
        let given: Vec<_> = (0..world_size)
            .flat_map(|rank| (0..8).map(move |number| gradient(GRADIENTS[1].1, rank, number)))
            .collect();
        let mut parts: Vec<_> = ranks.iter().map(|(_, residual)| residual.clone()).collect();
        let sums = |average: &Vec<f32>| average.iter().map(|value| world_size as f32 * value).collect();
        parts.extend(ranks[0].0.iter().map(sums));
        for (found, expected) in oracle::sum(&parts).iter().zip(oracle::sum(&given)) {
            let about = format!("{policy}, P = {world_size}: {found} for {expected}");
            assert!((found - expected).abs() <= 1e-3 * expected.abs().max(1.0), "{about}");
        }
    }
}

/// A rank that is alone: the average is what its message says, in the columns of the matrix.
#[test]
fn columns_of_a_policy_are_those_of_the_matrix() {
    let gradient = oracle::vector(4, COUNT);
    let (mut bytes, mut expected) = (Vec::new(), vec![0.0; COUNT]);
    ColumnSign::means(20).encode(&gradient, &mut bytes).unwrap();
    Encoded::new(Format::SignColumns, COUNT, &bytes).unwrap().decode_into(&mut expected).unwrap();
    for columns in [0, 20] {
        let mut exchange = built(&Group::solo(), Policy::quantised(Values::OneBitColumns(columns)));
        let mut averages = [gradient.clone()];
        exchange.average(&mut averages).unwrap();
        assert_eq!(averages[0], expected, "{columns}");
    }
}
