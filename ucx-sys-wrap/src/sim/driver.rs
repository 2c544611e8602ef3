//! Runs one future per rank on the virtual clock.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Cluster;
use super::links::{duration, picoseconds};
use crate::{Rank, Transport};

/// Every rank is polled at least this often in virtual time, to notice that its deadline has passed.
const LONGEST_STEP: Duration = Duration::from_millis(10);

/// While nothing happens, the polling interval grows to this fraction of the time since the last event.
const STEP_SHARE: u64 = 8;

/// A run without events for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(1_000_000);

/// Ranks that wait for something that will never happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} never ended, and nothing has happened since {} s", names(waiting), since.as_secs_f64())]
pub struct Stuck {
    /// The ranks whose futures have not ended, in order.
    pub waiting: Vec<Rank>,
    /// The time of the last event.
    pub since: Duration,
}

/// Runs `start`'s future for every rank, and returns their results in rank order.
///
/// Runs are deterministic: all events of one time are handled before any future is polled. Futures of ranks
/// with events are polled in rank order, again while they post or end operations. Every rank is polled at
/// least every 10 ms of virtual time. During a silence the interval grows to 1/8 of it, so deadlines may be
/// noticed that much late. Wakers do nothing: a future may wait for its transport and its clock only. A
/// future that has ended is dropped with its transport.
///
/// ```
/// use std::time::Duration;
/// use ucx_sys_wrap::buffer::{Port, Task};
/// use ucx_sys_wrap::sim::{Cluster, Links, run};
/// use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag};
///
/// // Gigabit Ethernet: 0.4 ms a message, 8 ns a byte.
/// let times = run(Cluster::new(2, Links::new(0.4e-3, 8e-9)), |transport| {
///     let port = Port::new(transport);
///     let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
///     let envelope = move |source| {
///         let tag = Tag::new(source, 0, 0, 0);
///         Envelope { tag, signature: Signature::default(), mark: Mark::NONE }
///     };
///     let mut task = Task::new(&port, vec![0u8; 1_000_000], move |comm, place| {
///         Box::pin(async move {
///             comm.send(peer, envelope(own), vec![1u8; 1_000_000]).await.unwrap();
///             comm.recv(peer, envelope(peer), &mut place[..]).await.unwrap();
///             comm.now()
///         })
///     });
///     async move {
///         let (_, time) = std::future::poll_fn(|context| {
///             port.progress();
///             task.poll(context)
///         })
///         .await;
///         time
///     }
/// })?;
/// assert_eq!(times, [Duration::from_micros(8400); 2]);
/// # Ok::<(), ucx_sys_wrap::sim::Stuck>(())
/// ```
///
/// # Errors
/// [`Stuck`] when nothing has happened for 1,000,000 virtual seconds.
pub fn run<R, F>(cluster: Cluster, start: impl FnMut(Box<dyn Transport>) -> F) -> Result<Vec<R>, Stuck>
where
    F: Future<Output = R>,
{
    let mut ranks = Ranks::start(&cluster, start);
    cluster.network.lock().advance(0);
    ranks.poll_all();
    let (mut last_event, mut last_look) = (0u64, 0u64);
    while ranks.running > 0 {
        let step = picoseconds(LONGEST_STEP).max(last_look.saturating_sub(last_event) / STEP_SHARE);
        let mut network = cluster.network.lock();
        if network.advance(last_look.saturating_add(step)) {
            last_event = network.now;
            let ready = std::mem::take(&mut network.ready);
            drop(network);
            ready.into_iter().for_each(|rank| ranks.poll_one(rank));
        } else if !network.has_events() && network.now - last_event > picoseconds(PATIENCE) {
            return Err(Stuck { waiting: ranks.waiting(), since: duration(last_event) });
        } else {
            last_look = network.now;
            drop(network);
            ranks.poll_all();
        }
    }
    Ok(ranks.outputs.into_iter().flatten().collect())
}

struct Ranks<'cluster, R, F> {
    cluster: &'cluster Cluster,
    futures: Vec<Option<Pin<Box<F>>>>,
    outputs: Vec<Option<R>>,
    running: usize,
}

impl<'cluster, R, F: Future<Output = R>> Ranks<'cluster, R, F> {
    fn start(cluster: &'cluster Cluster, mut start: impl FnMut(Box<dyn Transport>) -> F) -> Self {
        let futures: Vec<_> = cluster
            .transports()
            .into_iter()
            .map(|transport| Some(Box::pin(start(Box::new(transport)))))
            .collect();
        let outputs = futures.iter().map(|_| None).collect();
        let running = futures.len();
        Self { cluster, futures, outputs, running }
    }

    fn waiting(&self) -> Vec<Rank> {
        Rank::all(self.futures.len() as u32).filter(|rank| self.futures[rank.index()].is_some()).collect()
    }

    fn poll_all(&mut self) {
        for rank in self.waiting() {
            self.poll_one(rank);
        }
    }

    /// Polls a rank until it makes no more progress. A stalled rank is not polled.
    fn poll_one(&mut self, rank: Rank) {
        let Some(future) = &mut self.futures[rank.index()] else { return };
        let mut context = Context::from_waker(Waker::noop());
        while self.cluster.begin_turn(rank) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                self.outputs[rank.index()] = Some(output);
                self.futures[rank.index()] = None;
                self.running -= 1;
                return;
            }
            if !self.cluster.has_acted(rank) {
                return;
            }
        }
    }
}

fn names(ranks: &[Rank]) -> String {
    ranks.iter().map(|rank| format!("rank {rank}")).collect::<Vec<_>>().join(", ")
}
