//! A rank of Brevity that executes the conductor's orders, and sleeps in between.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use brevity::collectives::engine::Engine;
use brevity::transport::Rank;
use brevity::{Group, ReduceOp, launch};

use crate::collective::{self, Collective};
use crate::order::{Answer, Order, Over, What};
use crate::p2p::Waiting;
use crate::{Error, Result, p2p, processor};

/// How messages are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// With the engine's way of waiting.
    Engine,
    /// With the transport alone.
    Polls,
    /// As programs send them: one call of the group for each.
    Messages,
}

/// A measured process's line to the conductor.
pub struct Line {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Line {
    /// Connects to the conductor and sends this rank's number.
    ///
    /// # Errors
    /// If the conductor does not listen there.
    pub fn dial(socket: &Path, rank: u32) -> Result<Self> {
        let failed = || Error::system(format!("can't call the conductor at {}", socket.display()));
        let mut writer = UnixStream::connect(socket).map_err(failed())?;
        writeln!(writer, "hello {rank}").map_err(failed())?;
        let reader = BufReader::new(writer.try_clone().map_err(failed())?);
        Ok(Self { reader, writer })
    }

    /// Executes orders by `obey` until the conductor hangs up.
    ///
    /// # Errors
    /// The first error of `obey`, which is also sent to the conductor, and errors of the line.
    pub fn serve(self, mut obey: impl FnMut(&Order) -> Result<Vec<f64>>) -> Result<()> {
        self.answer(|order| obey(order).map(Answer::new))
    }

    /// The same where an answer has more than times.
    ///
    /// # Errors
    /// As for [`serve`](Self::serve).
    pub fn answer(mut self, mut obey: impl FnMut(&Order) -> Result<Answer>) -> Result<()> {
        let failed = || Error::system("can't talk to the conductor");
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).map_err(failed())? == 0 {
                return Ok(());
            }
            let mut answer = serde_json::to_string(&obey(&line.parse()?)?)
                .map_err(|error| Error::contestant("the conductor's line", error.to_string()))?;
            answer.push('\n');
            self.writer.write_all(answer.as_bytes()).map_err(failed())?;
        }
    }
}

/// Joins the job that the environment describes and executes the orders of the conductor at `socket`. `over`
/// determines how much a stream's receiver posts. With `unwritten`, the sent memory was never written.
///
/// # Errors
/// If joining, a measurement or the line fails.
pub fn serve(socket: &Path, like: Like, over: Over, unwritten: bool) -> Result<()> {
    launch::die_with_parent();
    let group = Group::from_env()?;
    // After the group has counted its processors.
    processor::pin_rank(group.rank(), group.world_size());
    Line::dial(socket, group.rank())?.serve(|order| obey(&group, like, &Order { over, unwritten, ..*order }))
}

fn obey(group: &Group, like: Like, order: &Order) -> Result<Vec<f64>> {
    let engine: &Engine = group.engine();
    let waiting = if like == Like::Polls { Waiting::Polls(engine) } else { Waiting::AsEngine(engine) };
    let peer = Rank(group.rank() ^ 1);
    let paired = peer.0 < group.world_size();
    if order.what != What::Hang {
        group.barrier()?;
    }
    match order.what {
        What::Hang => collective::hang(group, order),
        What::Collective(Collective::AllReduce) => collective::all_reduce(group, order, ReduceOp::Sum),
        What::Collective(Collective::Broadcast) => collective::broadcast(group, order),
        _ if !paired => Ok(Vec::new()),
        What::Latency if like == Like::Messages => p2p::messages(group, peer, order),
        _ => {
            // The first run checks the bytes.
            p2p::run(
                waiting,
                peer,
                &Order { iterations: 1, warmup: 0, salt: 1, unwritten: false, ..*order },
            )?;
            p2p::run(waiting, peer, order)
        }
    }
}
