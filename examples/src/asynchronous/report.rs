//! How the figures of ranks come to the one that reports, with dedicated servers: by messages, since a
//! collective would fail for the death of any rank.

use super::Job;
use super::rank::{Worker, of_group, set_all};
use crate::Error;
use crate::course::count_share;
use crate::trainer::Run;
use brevity::ParameterServer;
use brevity::collectives::{Error as Collective, Peers};
use std::time::Duration;

/// The tags of a worker's figures, and of where a shard begins and its elements.
const FIGURES: u32 = 1;
const FIRST: u32 = 2;
const ELEMENTS: u32 = 3;

/// Sends a worker's figures.
pub(super) async fn send(peers: &Peers, job: &Job<'_>, figures: Vec<f64>) -> Result<(), Error> {
    peers.start_send(figures, job.reporter(), FIGURES).await.1.map_err(of_group)
}

/// What a server does when all workers have left or are gone: the one that reports collects the figures of
/// those that are left, and evaluates the model.
pub(super) async fn of_survivors(
    peers: &Peers,
    worker: &Worker<'_>,
    server: &ParameterServer,
) -> Result<Option<Run>, Error> {
    let job = worker.job;
    let (first, elements) = server.model().unwrap_or_default();
    if job.reporter() != peers.rank() {
        peers.start_send(vec![first as f64], job.reporter(), FIRST).await.1.map_err(of_group)?;
        peers.start_send(elements, job.reporter(), ELEMENTS).await.1.map_err(of_group)?;
        return Ok(None);
    }
    let mut sums = worker.no_figures();
    let (mut seconds, mut left, mut failure) = (0.0f64, Vec::new(), None);
    for rank in 0..job.workers() {
        let room = vec![0.0f64; sums.len() + 1];
        match peers.start_recv(room, rank as u32, FIGURES, Duration::MAX).await {
            (figures, Ok(_)) => {
                sums.iter_mut().zip(&figures).for_each(|(sum, figure)| *sum += figure);
                seconds = seconds.max(figures[sums.len()]);
                left.push(rank);
            }
            (_, Err(error @ Collective::PeerLost { .. })) => failure = Some(error),
            (_, Err(error)) => return Err(of_group(error)),
        }
    }
    if let Some(error) = failure.filter(|_| left.is_empty()) {
        return Err(of_group(error));
    }
    let model =
        collect(peers, job, worker.model.gradient_buffers().iter().map(Vec::len).sum(), (first, elements));
    set_all(worker.model, &model.await?)?;
    let test = &job.dataset.test;
    let correct = count_share(worker.model, test, (0, 1))?;
    Ok(Some(worker.run(&sums, seconds, correct as f64 / test.len().max(1) as f64, &left)))
}

/// The elements of all shards.
async fn collect(
    peers: &Peers,
    job: &Job<'_>,
    total: usize,
    (first, elements): (usize, Vec<f32>),
) -> Result<Vec<f32>, Error> {
    let mut model = vec![0.0f32; total];
    model[first..first + elements.len()].copy_from_slice(&elements);
    for server in job.workers()..job.reporter() as usize {
        let (first, came) = peers.start_recv(vec![0.0f64], server as u32, FIRST, Duration::MAX).await;
        came.map_err(of_group)?;
        let room = vec![0.0f32; total];
        let (elements, came) = peers.start_recv(room, server as u32, ELEMENTS, Duration::MAX).await;
        let (first, count) = (first[0] as usize, came.map_err(of_group)?.bytes / size_of::<f32>());
        model[first..first + count].copy_from_slice(&elements[..count]);
    }
    Ok(model)
}
