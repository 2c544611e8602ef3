//! A rank of Brevity that measures the collectives that it is told.

use std::path::Path;

use brevity::{Group, launch};

use crate::collective::{Collective, Number};
use crate::order::{Order, What};
use crate::perf::{Case, Dense, Dtype, Measured, measure_workload, of_dtype};
use crate::seat::Line;
use crate::statistics::mean;
use crate::{Error, Result, processor};

/// Joins the job that the environment describes and executes the orders of the conductor at `socket`, with
/// elements of this type: as many as the bytes of an order have `f32`.
///
/// # Errors
/// If joining, a measurement or the line fails.
pub fn serve(socket: &Path, dtype: Dtype) -> Result<()> {
    launch::die_with_parent();
    let group = Group::from_env()?;
    // After the group has counted its processors.
    processor::pin_rank(group.rank(), group.world_size());
    Line::dial(socket, group.rank())?.serve(|order| obey(&group, dtype, order))
}

/// The mean of each batch, in microseconds.
fn obey(group: &Group, dtype: Dtype, order: &Order) -> Result<Vec<f64>> {
    let What::Collective(collective) = order.what else {
        return Err(Error::Arguments(format!("{} is no collective", order.what)));
    };
    let measured = of_dtype!(dtype, measure(group, collective, order))?;
    let mut times = &measured.times[..];
    let batch = |count: usize| {
        let (batch, rest) = times.split_at(count);
        times = rest;
        mean(batch)
    };
    Ok(order.batches().map(batch).collect())
}

fn measure<T: Number>(group: &Group, collective: Collective, order: &Order) -> Result<Measured> {
    let mut dense = Dense::<T>::new(group, collective, order.bytes / size_of::<f32>())?;
    let Order { bytes, iterations, warmup, .. } = *order;
    let case = Case { bytes, density: None, iterations, warmup };
    measure_workload(group, &mut dense, collective.name(), case, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_for_each_batch() {
        let group = Group::solo();
        let order = Order::new(What::Collective(Collective::AllReduce), 64, 250, 3);
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let samples = obey(&group, dtype, &order).unwrap();
            assert_eq!(samples.len(), 100);
            assert!(samples.iter().all(|&time| time > 0.0));
        }
        assert!(obey(&group, Dtype::F32, &Order::new(What::Latency, 8, 1, 0)).is_err());
    }
}
