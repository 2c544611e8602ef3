//! A rank of Brevity that measures the collectives that it is told.

use std::path::Path;

use brevity::{Group, launch};

use crate::order::{Order, What};
use crate::perf::{Case, Dense, measure_workload};
use crate::seat::Line;
use crate::statistics::mean;
use crate::{Error, Result, processor};

/// Joins the job that the environment describes and executes the orders of the conductor at `socket`.
///
/// # Errors
/// If joining, a measurement or the line fails.
pub fn serve(socket: &Path) -> Result<()> {
    launch::die_with_parent();
    let group = Group::from_env()?;
    // After the group has counted its processors.
    processor::pin_rank(group.rank(), group.world_size());
    Line::dial(socket, group.rank())?.serve(|order| obey(&group, order))
}

/// The mean of each batch, in microseconds.
fn obey(group: &Group, order: &Order) -> Result<Vec<f64>> {
    let What::Collective(collective) = order.what else {
        return Err(Error::Arguments(format!("{} is no collective", order.what)));
    };
    let mut dense = Dense::<f32>::new(group, collective, order.bytes / size_of::<f32>())?;
    let Order { bytes, iterations, warmup, .. } = *order;
    let case = Case { bytes, density: None, iterations, warmup };
    let measured = measure_workload(group, &mut dense, collective.name(), case, false)?;
    let mut times = &measured.times[..];
    let batch = |count: usize| {
        let (batch, rest) = times.split_at(count);
        times = rest;
        mean(batch)
    };
    Ok(order.batches().map(batch).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;

    #[test]
    fn a_sample_for_each_batch() {
        let group = Group::solo();
        let order = Order::new(What::Collective(Collective::AllReduce), 64, 250, 3);
        let samples = obey(&group, &order).unwrap();
        assert_eq!(samples.len(), 100);
        assert!(samples.iter().all(|&time| time > 0.0));
        assert!(obey(&group, &Order::new(What::Latency, 8, 1, 0)).is_err());
    }
}
