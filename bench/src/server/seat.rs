//! A rank that executes the conductor's orders about servers.

use std::path::Path;
use std::time::Duration;

use brevity::compress::Density;
use brevity::server::Servers;
use brevity::{Group, launch};

use super::model::Model;
use super::replay::Replay;
use super::steps::Steps;
use crate::order::{Order, What};
use crate::seat::Line;
use crate::{Error, Result};

/// What a rank of a job of pushes answers: numbers in an [`Answer`](crate::order::Answer).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pushed {
    /// Pushes in the measured time; of the server 0.
    pub pushes: f64,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// Bytes of those pushes.
    pub push_bytes: f64,
    /// Bytes of their answers.
    pub answer_bytes: f64,
    /// All pushes that were sent, and of the server those that were applied.
    pub all: f64,
}

impl Pushed {
    fn numbers(self) -> Vec<f64> {
        vec![self.pushes, self.seconds, self.push_bytes, self.answer_bytes, self.all]
    }

    /// Reads an answer; `None` for one of another length.
    #[must_use]
    pub fn read(numbers: &[f64]) -> Option<Self> {
        let &[pushes, seconds, push_bytes, answer_bytes, all] = numbers else { return None };
        Some(Self { pushes, seconds, push_bytes, answer_bytes, all })
    }
}

/// Joins the job that the environment describes and executes the orders of the conductor at `socket`.
///
/// # Errors
/// If joining, a measurement or the line fails.
pub fn serve(socket: &Path, density: f64) -> Result<()> {
    launch::die_with_parent();
    let density = Density::new(density).map_err(|error| Error::Arguments(error.to_string()))?;
    let group = Group::from_env()?;
    let mut steps: Option<Steps> = None;
    Line::dial(socket, group.rank())?.serve(|order| {
        let model = Model { elements: order.bytes / size_of::<f32>(), density };
        if order.what == What::Push {
            return push(&group, model, order).map(Pushed::numbers);
        }
        let steps = match &mut steps {
            Some(steps) => steps,
            none => none.insert(Steps::new(&group, model, order.what)?),
        };
        steps.measure(order).map(|us| vec![us])
    })?;
    steps.map_or(Ok(()), Steps::end)
}

/// Pushes to the last rank for as many milliseconds as the order has iterations, or is that rank.
fn push(group: &Group, model: Model, order: &Order) -> Result<Pushed> {
    let mut parameters = model.zeros();
    let mut server = model.server(group).servers(Servers::Dedicated(1)).build(&parameters)?;
    if !server.is_worker() {
        drop(parameters);
        // All have fetched; the first answer was checked.
        group.barrier()?;
        group.barrier()?;
        let served = server.serve()?.unwrap_or_default();
        return Ok(Pushed { all: served.pushes as f64, ..Pushed::default() });
    }
    server.fetch(&mut parameters)?;
    drop(parameters);
    let mut replay = Replay::new(model, server.peers(), group.world_size() - 1)?;
    group.barrier()?;
    if group.rank() == 0 {
        replay.check()?;
    }
    group.barrier()?;
    replay.run(Duration::from_millis(order.warmup as u64))?;
    let sent = replay.run(Duration::from_millis(order.iterations as u64))?;
    let all = replay.step() as f64;
    server.leave()?;
    Ok(Pushed {
        pushes: sent.pushes as f64,
        seconds: sent.lasting.as_secs_f64(),
        push_bytes: sent.push_bytes as f64,
        answer_bytes: sent.answer_bytes as f64,
        all,
    })
}
