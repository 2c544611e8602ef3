//! Measures the machine when ranks join a job.
//!
//! Rank 0 exchanges messages with a rank of its own host and with one of another host, each at most for 10
//! ms: empty ones, several at once, and longer ones, as far as time allows. Then it sends all ranks what it
//! has found. The messages are in the context of messages about other contexts: no call takes part.

use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::Comm;
use ucx_sys_wrap::{Envelope, Error as Transport, Mark, Rank, Signature, Tag};

use super::Group;
use crate::data::{DataType, ReduceOp, Reducer};
use crate::difference::CONTROL;
use crate::error::Result;
use crate::pattern::Binomial;
use crate::plan::{Link, Machine};

/// The outcome of something that sends and receives.
type Sent<T> = ucx_sys_wrap::Result<T>;

/// The time for each of the two links.
const BUDGET: Duration = Duration::from_millis(10);

/// Short messages: as often as this, and for at most a quarter of the time.
const SHORT_BYTES: usize = 8;
const SHORT_TIMES: u32 = 32;

/// Messages at once, and how often.
const AT_ONCE: u32 = 8;
const BURSTS: u32 = 3;

/// The lengths of long messages, and how often the longest is sent.
const LONG_BYTES: [usize; 4] = [1 << 10, 8 << 10, 64 << 10, 256 << 10];
const LONG_TIMES: u32 = 3;

/// The rounds of the messages.
const PING: u32 = 0;
const PONG: u32 = 1;
const RESULT: u32 = 2;

/// The first byte of a message: whether it is to come back.
const COMES_BACK: u8 = 1;
const STAYS: u8 = 0;

impl Group {
    /// Measures links and computing on rank 0 and a peer or two. All ranks of the job call it before the
    /// first call, and get the same.
    ///
    /// # Errors
    /// When a rank that takes part is lost, or the timeout passes.
    pub(crate) fn measure_machine(&self, timeout: Duration) -> Result<Machine> {
        let found = self.engine().run_in(&self.context.status, timeout, async |comm| {
            let machine = self.measure(comm).await?;
            self.tell_all(comm, machine).await
        });
        found.map_err(|error| self.context.ranks.error(error))
    }

    /// The ranks that rank 0 measures with: one of its host, and one of another.
    fn partners(&self) -> [Option<Rank>; 2] {
        let host = |rank: Rank| self.context.world.host(rank);
        let others = || Rank::all(self.world_size()).skip(1);
        let here = others().find(|rank| host(*rank) == host(Rank(0)));
        [here, others().find(|rank| host(*rank) != host(Rank(0)))]
    }

    /// What rank 0 has measured; `None` on others.
    async fn measure(&self, comm: &Comm<'_>) -> Sent<Option<Machine>> {
        let partners = self.partners();
        if self.rank() != 0 {
            if partners.contains(&Some(comm.port().rank())) {
                return_messages(comm).await?;
            }
            return Ok(None);
        }
        let mut links = [None; 2];
        for (link, partner) in links.iter_mut().zip(partners) {
            if let Some(partner) = partner {
                *link = Some(measure_link(comm, partner).await?);
            }
        }
        let (reduce, copy) = measure_processor();
        let machine = assemble(links, reduce, copy);
        tracing::debug!(%machine, "measured");
        Ok(Some(machine))
    }

    /// Sends the machine from rank 0 to all, in a tree.
    async fn tell_all(&self, comm: &Comm<'_>, machine: Option<Machine>) -> Sent<Machine> {
        let (own, place) = (comm.port().rank(), Binomial::new(self.rank(), 0, self.world_size()));
        let bytes = match (place.parent(), machine) {
            (Some((parent, _)), _) => {
                let room = vec![0u8; Machine::BYTES];
                comm.recv(Rank(parent), envelope(Rank(parent), RESULT), room).await?.0
            }
            (None, machine) => machine.unwrap_or_default().encode(),
        };
        let children = place.children().rev();
        let sends: Vec<_> =
            children.map(|(child, _)| comm.send(Rank(child), envelope(own, RESULT), bytes.clone())).collect();
        for send in sends {
            send.await?;
        }
        let from = place.parent().map_or(own, |(parent, _)| Rank(parent));
        let what = || Transport::Protocol { rank: from, what: "an invalid machine".into() };
        Machine::decode(&bytes).ok_or_else(what)
    }
}

fn envelope(source: Rank, round: u32) -> Envelope {
    // No group has the number of that context.
    let tag = Tag::new(source, CONTROL, CONTROL.into(), round);
    Envelope { tag, signature: Signature::default(), mark: Mark::NONE }
}

/// Returns what rank 0 sends, until that is an empty message.
async fn return_messages(comm: &Comm<'_>) -> Sent<()> {
    let own = comm.port().rank();
    let longest = LONG_BYTES[LONG_BYTES.len() - 1];
    let mut room = vec![0u8; longest];
    loop {
        let (come, arrival) = comm.recv(Rank(0), envelope(Rank(0), PING), room).await?;
        let bytes = arrival.lengths.first().copied().unwrap_or(0);
        if bytes == 0 {
            return Ok(());
        }
        if come.first() == Some(&COMES_BACK) {
            comm.send(Rank(0), envelope(own, PONG), come[..bytes].to_vec()).await?;
        }
        room = come;
    }
}

/// Measures the link to a rank that [returns messages](return_messages).
async fn measure_link(comm: &Comm<'_>, peer: Rank) -> Sent<Link> {
    let begun = Instant::now();
    // The first message may find a peer that is not there yet.
    let mut back = vec![0u8; LONG_BYTES[LONG_BYTES.len() - 1]];
    let mut message = vec![COMES_BACK; SHORT_BYTES];
    let mut shortest = f64::INFINITY;
    let mut times = 0;
    let mut first_ended = begun;
    while times <= SHORT_TIMES && (times < 2 || first_ended.elapsed() < BUDGET / 4) {
        let seconds;
        (seconds, message, back) = round_trip(comm, peer, message, back).await?;
        if times == 0 {
            first_ended = Instant::now();
        } else {
            shortest = shortest.min(seconds);
        }
        times += 1;
    }
    let alpha = shortest / 2.0;
    let is_over = |more: f64| first_ended.elapsed().as_secs_f64() + more > BUDGET.as_secs_f64();
    let mut overhead = alpha;
    for _ in 0..BURSTS {
        if is_over(0.0) {
            break;
        }
        let start = Instant::now();
        let own = comm.port().rank();
        let posted: Vec<_> =
            (1..AT_ONCE).map(|_| comm.send(peer, envelope(own, PING), vec![STAYS; SHORT_BYTES])).collect();
        (_, message, back) = round_trip(comm, peer, message, back).await?;
        let more = (start.elapsed().as_secs_f64() - shortest).max(0.0);
        overhead = overhead.min(more / f64::from(AT_ONCE - 1));
        for send in posted {
            send.await?;
        }
    }
    let mut beta = Machine::default().between.beta;
    for bytes in LONG_BYTES {
        let expected = 2.0 * (alpha + beta * bytes as f64);
        if bytes > LONG_BYTES[0] && is_over(expected) {
            break;
        }
        let mut fastest = f64::INFINITY;
        for time in 0..LONG_TIMES {
            if time > 0 && (bytes < LONG_BYTES[LONG_BYTES.len() - 1] || is_over(fastest)) {
                break;
            }
            let seconds;
            (seconds, _, back) = round_trip(comm, peer, vec![COMES_BACK; bytes], back).await?;
            fastest = fastest.min(seconds);
        }
        beta = ((fastest / 2.0 - alpha) / bytes as f64).max(LEAST_BETA);
    }
    comm.send(peer, envelope(comm.port().rank(), PING), Vec::<u8>::new()).await?;
    Ok(Link { alpha, overhead, beta })
}

/// No link is faster: 1 TB/s.
const LEAST_BETA: f64 = 1e-12;

/// Sends a message and waits until it has come back. Returns the seconds, and the buffers.
async fn round_trip(
    comm: &Comm<'_>,
    peer: Rank,
    message: Vec<u8>,
    back: Vec<u8>,
) -> Sent<(f64, Vec<u8>, Vec<u8>)> {
    let start = Instant::now();
    let receiving = comm.recv(peer, envelope(peer, PONG), back);
    let sending = comm.send(peer, envelope(comm.port().rank(), PING), message);
    let (back, _) = receiving.await?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((seconds, sending.await?.0, back))
}

/// Seconds to combine and to copy a byte of vectors that are in the processor's cache.
fn measure_processor() -> (f64, f64) {
    const BYTES: usize = 256 << 10;
    let usual = Machine::default();
    let (mut sum, addend) = (vec![0f32; BYTES / 4], vec![1f32; BYTES / 4]);
    let bytes = bytemuck::cast_slice_mut(&mut sum);
    let addend = bytemuck::cast_slice(&addend);
    let fastest = |work: &mut dyn FnMut()| {
        let times = (0..4).map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        });
        (times.fold(f64::INFINITY, f64::min) / BYTES as f64).max(LEAST_BETA)
    };
    let Ok(reducer) = Reducer::of(DataType::F32, ReduceOp::Sum) else { return (usual.reduce, usual.copy) };
    let reduce = fastest(&mut || drop(reducer.in_mode(|| reducer.combine(bytes, addend))));
    let copy = fastest(&mut || bytes.copy_from_slice(addend));
    (reduce, copy)
}

/// The machine of a link inside rank 0's host, and one to another host, if there are such.
fn assemble([inside, between]: [Option<Link>; 2], reduce: f64, copy: f64) -> Machine {
    let usual = Machine::default();
    let inside = inside.unwrap_or_else(|| {
        // Rank 0 is alone on its host: others have links there that are no slower than those between hosts.
        let between = between.unwrap_or(usual.between);
        Link {
            alpha: usual.inside.alpha.min(between.alpha),
            overhead: usual.inside.overhead.min(between.overhead),
            beta: usual.inside.beta.min(between.beta),
        }
    });
    // Messages between ranks of a host go through the same memory as slots, with more work for each: slots
    // stay the faster way, whatever a busy host has measured.
    let slots = Link {
        alpha: usual.slots.alpha.min(inside.alpha / 64.0),
        overhead: 0.0,
        beta: usual.slots.beta.min(inside.beta / 4.0),
    };
    Machine { inside, between: between.unwrap_or(inside), slots, reduce, copy, has_own_ports: false }
}

#[cfg(test)]
mod tests {
    use ucx_sys_wrap::bootstrap::Opened;

    use super::*;
    use crate::dense::AllReduce;
    use crate::error::Error;
    use crate::group::Settings;
    use crate::plan::{Algorithm, Ground, Topology, Work, estimates};

    /// What each rank gets, and how long that took.
    fn probed(hosts: &[u32]) -> Vec<(Machine, Duration)> {
        let ranks = ucx_sys_wrap::local::world(hosts.len() as u32).into_iter().map(|transport| {
            let opened = Opened::in_process(Box::new(transport), None).with_hosts(hosts);
            std::thread::spawn(move || {
                let group = Group::try_opened(opened, None, Settings::default()).unwrap();
                let start = Instant::now();
                let machine = group.measure_machine(Duration::from_secs(60)).unwrap();
                let took = start.elapsed();
                group.planned(Some(machine)).barrier().unwrap();
                (machine, took)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn all_ranks_get_what_rank_0_has_measured_in_time() {
        for hosts in [&[0, 0][..], &[0, 1], &[0, 0, 1, 2, 1], &[0, 1, 1]] {
            // A busy host can stop a thread for longer than all of it takes.
            let fastest = (0..20).map(|_| {
                let ranks = probed(hosts);
                assert!(ranks.iter().all(|(machine, _)| *machine == ranks[0].0), "{ranks:?}");
                let machine = ranks[0].0;
                assert!(machine.is_valid() && machine.inside.overhead <= machine.inside.alpha, "{machine}");
                ranks.iter().map(|(_, took)| *took).max().unwrap()
            });
            let fastest = fastest.min().unwrap();
            assert!(fastest < Duration::from_millis(30), "{fastest:?} for {hosts:?}");
        }
    }

    #[test]
    fn a_rank_that_is_gone_ends_the_measurement() {
        let mut ranks = ucx_sys_wrap::local::world(2).into_iter();
        let own = ranks.next().unwrap();
        drop(ranks);
        let opened = Opened::in_process(Box::new(own), None);
        let group = Group::try_opened(opened, None, Settings::default()).unwrap();
        let error = group.measure_machine(Duration::from_secs(60)).unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: Rank(1) }), "{error}");
    }

    #[test]
    fn slots_stay_the_faster_way() {
        for (alpha, beta) in [(1e-7, 1e-12), (5e-3, 1e-12), (1e-7, 1e-6), (20e-6, 0.5e-9)] {
            let link = Link { alpha, overhead: 0.0, beta };
            let machine = assemble([Some(link), None], 1e-10, 1e-10);
            for (ranks, bytes) in (2..64).flat_map(|ranks| [(ranks, 0), (ranks, 1 << 30)]) {
                let ground = Ground { has_slots: true, ..Ground::new(machine, ranks) };
                let ground = Ground { topology: Topology::one_host(ranks), ..ground };
                let work = Work { bytes, wide_bytes: bytes, ..Work::default() };
                let fastest = estimates::<AllReduce>(&work, &ground)[0].0;
                assert_eq!(fastest, Algorithm::Slots, "{ranks}, {machine}");
            }
            assert_eq!(machine.between, link);
        }
    }

    #[test]
    fn a_link_that_could_not_be_measured_is_no_slower_than_one_to_other_hosts() {
        let fast = Link { alpha: 1e-6, overhead: 1e-7, beta: 1e-11 };
        assert_eq!(assemble([None, Some(fast)], 0.0, 0.0).inside, fast);
        let slow = Link { alpha: 1e-2, overhead: 1e-4, beta: 1e-6 };
        assert_eq!(assemble([None, Some(slow)], 0.0, 0.0).inside, Machine::default().inside);
    }
}
