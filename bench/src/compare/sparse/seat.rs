//! A rank of Brevity that does the steps that it is told.

use std::path::Path;

use brevity::{Group, launch};

use super::work::{Collective, Dense, Does, Gradients, Parts, Steps, Work};
use crate::order::{Answer, Order};
use crate::perf::{Dtype, of_dtype};
use crate::seat::Line;
use crate::{Result, processor};

/// Joins the job that the environment describes and executes the orders of the conductor at `socket`: steps
/// of these `gradients`, by what `how` names: rules of policies, a density, a wire or a type of elements.
///
/// # Errors
/// If joining, a step or the line fails.
pub fn serve(socket: &Path, does: Does, gradients: &str, how: &str) -> Result<()> {
    launch::die_with_parent();
    let gradients: Gradients = gradients.parse()?;
    let group = Group::from_env()?;
    // After the group has counted its processors.
    processor::pin_rank(group.rank(), group.world_size());
    // Before the gradients are made, which takes long.
    let line = Line::dial(socket, group.rank())?;
    let mut work = work(&group, does, gradients, how)?;
    line.answer(|order| obey(&group, &mut *work, order))
}

fn work(group: &Group, does: Does, gradients: Gradients, how: &str) -> Result<Box<dyn Work>> {
    Ok(match does {
        Does::Step | Does::Computing => Box::new(Steps::new(group, gradients, how, does == Does::Computing)?),
        Does::Parts => Box::new(Parts::new(group, gradients, how)?),
        Does::Gtopk => Box::new(Collective::new(group, gradients, how)?),
        Does::Dense => {
            let dtype: Dtype = how.parse()?;
            of_dtype!(dtype, dense(gradients))
        }
    })
}

fn dense<T: crate::collective::Number>(gradients: Gradients) -> Box<dyn Work> {
    Box::new(Dense::<T>::new(gradients))
}

/// The mean of each batch, in microseconds, and of the kernels over all of them.
fn obey(group: &Group, work: &mut dyn Work, order: &Order) -> Result<Answer> {
    for _ in 0..order.warmup {
        work.step(group)?;
    }
    let before = work.kernels();
    let mut batch = |count: usize| -> Result<f64> {
        let mut sum = 0.0;
        for _ in 0..count {
            sum += work.step(group)?;
        }
        Ok(sum / count as f64)
    };
    let samples = order.batches().map(&mut batch).collect::<Result<_>>()?;
    let kernels = work.kernels().zip(before).map(|(after, before)| after - before);
    let kernels_us = kernels.map(|took| took.as_secs_f64() * 1e6 / order.iterations as f64);
    Ok(Answer { kernels_us, ..Answer::new(samples) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::What;

    #[test]
    fn every_side_does_its_steps() {
        let order = Order::new(What::Average, 0, 3, 1);
        for (does, gradients, how) in [
            (Does::Step, "3x500", "*=gtopk:0.01"),
            (Does::Step, "matrix:20x30", "*=low-rank:2"),
            (Does::Computing, "3x500", "*=low-rank:2"),
            (Does::Parts, "3x500", "0.01"),
            (Does::Gtopk, "1x5000", "pairs"),
            (Does::Gtopk, "1x5000", "bf16"),
            (Does::Dense, "2x50", "f32"),
            (Does::Dense, "2x50", "bf16"),
        ] {
            let group = Group::solo();
            let gradients: Gradients = gradients.parse().unwrap();
            let mut work = work(&group, does, gradients, how).unwrap();
            let answer = obey(&group, &mut *work, &order).unwrap();
            assert_eq!(answer.samples_us.len(), 3, "{does:?}");
            assert!(answer.samples_us.iter().all(|&time| time > 0.0), "{does:?}: {answer:?}");
            let is_step = matches!(does, Does::Step | Does::Computing);
            assert_eq!(answer.kernels_us.is_some_and(|took| took > 0.0), is_step, "{does:?}: {answer:?}");
            assert!(answer.kernels_us.is_none_or(|took| answer.mean_us > Some(took)), "{does:?}: {answer:?}");
            assert_eq!(gradients.to_string().parse::<Gradients>().unwrap(), gradients);
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let group = Group::solo();
        let gradients = Gradients::Vectors(1, 10);
        for (does, how) in
            [(Does::Step, "zip"), (Does::Parts, "2"), (Does::Gtopk, "bf17"), (Does::Dense, "i3")]
        {
            assert!(work(&group, does, gradients, how).is_err(), "{does:?}");
        }
        assert!("matrix:3".parse::<Gradients>().is_err() && "vgg16".parse::<Gradients>().is_err());
    }
}
