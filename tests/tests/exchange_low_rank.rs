//! Low-rank tensors of an exchange, and the vectors that travel with them.

mod compared;
mod dense_steps;
mod huge;
mod momentum;
mod vectors;

use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Error, ExchangeBuilder, GradientExchange, Group, Policy, Settings};
use brevity_tests::oracle;

/// The sizes of groups that collectives are tested with.
const SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];

/// A list of tensors: names, shapes and policies.
type Model = Vec<(&'static str, Vec<usize>, Policy)>;

fn build(group: &Group, model: &Model, settings: fn(ExchangeBuilder) -> ExchangeBuilder) -> GradientExchange {
    let add = |builder: ExchangeBuilder, (name, shape, policy): &(&str, Vec<usize>, Policy)| {
        builder.tensor(*name, shape, *policy)
    };
    settings(model.iter().fold(GradientExchange::builder(group), add)).build().unwrap()
}

/// A gradient of each tensor, of which sums and divisions are rounded.
fn gradients(model: &Model, rank: u32, step: u32) -> Vec<Vec<f32>> {
    let of = |(tensor, (_, shape, _)): (u32, &(&str, Vec<usize>, Policy))| {
        let values = oracle::vector(rank + 50 * tensor + 1000 * step, shape.iter().product());
        values.into_iter().map(|value| value / 3.0).collect()
    };
    (0..).zip(model).map(of).collect()
}

/// What each rank returns of some steps on a simulated network: the averages, and the messages it has sent.
fn averages(world_size: u32, model: &Model, steps: u32) -> Vec<(Vec<Vec<Vec<f32>>>, u64)> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    let ranks = run(cluster, |transport| {
        let group = Group::new(transport, Settings::default());
        async move {
            let (mut exchange, mut out) = (build(&group, model, |builder| builder), Vec::new());
            for step in 0..steps {
                let started = exchange.start(gradients(model, group.rank(), step));
                let ((back, averages), outcome) = started.await;
                outcome.unwrap();
                exchange = back;
                out.push(averages);
            }
            (out, group.statistics().messages_sent)
        }
    });
    ranks.unwrap()
}

fn bits(values: &[Vec<f32>]) -> Vec<u32> {
    values.iter().flatten().map(|value| value.to_bits()).collect()
}

fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
    exchange.tensors().map(|(name, _)| exchange.residual(name).unwrap()).collect()
}

fn saved(exchange: &GradientExchange) -> Vec<u8> {
    let mut bytes = Vec::new();
    exchange.save(&mut bytes).unwrap();
    assert_eq!(bytes.len(), exchange.saved_bytes());
    bytes
}

/// Whether every value of a tensor is close to what is expected, measured by the largest.
fn is_close(found: &[f32], expected: &[f32], tolerance: f32) -> bool {
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance * largest.max(1e-3))
}
