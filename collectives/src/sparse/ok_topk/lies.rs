//! A rank that lies in an Ok-Topk all-reduce: at each stage it does as it should, or sends what arbitrary
//! bytes say.

use brevity_compress::select::{RUNGS, ladder_counts};
use brevity_compress::{SparseVec, SparseView, codec};

use super::balance::{Holdings, ROUND, balance};
use super::state::{Agreed, OkTopk, Regions};
use super::threshold::{Share, Shares, search_by, tell};
use super::{Sums, partition};
use crate::all_pairs::all_pairs;
use crate::call::Call;
use crate::error::Result;
use crate::pattern::doubling_rounds;
use crate::sparse::message::{Message, Room};
use crate::sparse::reduce_scatter::scatter;
use crate::sparse::{Coder, Wire, sparse_all_gather};

/// Decides where to lie, and how: nowhere once the bytes are used up.
pub(crate) struct Lies {
    bytes: std::vec::IntoIter<u8>,
    /// Whether the vectors of other ranks were passed on as they were not.
    pub(crate) has_passed_on: bool,
}

/// A message that may be none.
enum Junk {
    Pairs(Vec<u32>, Vec<f32>),
    Coded(Vec<u8>),
}

impl Junk {
    async fn send(self, call: &Call<'_, '_>, to: u32, round: u32) -> Result<()> {
        match self {
            Self::Pairs(indices, values) => call.send(to, round, (indices, values)).await.map(drop),
            Self::Coded(bytes) => call.send(to, round, bytes).await.map(drop),
        }
    }
}

impl Lies {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { bytes: Vec::from(bytes).into_iter(), has_passed_on: false }
    }

    fn byte(&mut self) -> u8 {
        self.bytes.next().unwrap_or(0)
    }

    /// Whether to lie here.
    fn now(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn number(&mut self) -> u64 {
        match self.byte() % 5 {
            0 => u64::from(self.byte() % 40),
            1 => u64::MAX - u64::from(self.byte()),
            2 => 1 << (self.byte() % 64),
            3 => 0,
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Numbers for indices, rising or not.
    fn indices(&mut self) -> Vec<u32> {
        let (count, kind) = (usize::from(self.byte() % 32), self.byte());
        let mut indices: Vec<u32> = (0..count)
            .map(|_| if kind & 2 == 0 { u32::from(self.byte()) } else { self.number() as u32 })
            .collect();
        if kind & 1 == 0 {
            indices.sort_unstable();
            indices.dedup();
        }
        indices
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        let kind = self.byte();
        let count = if kind & 4 == 4 { count + 1 } else { count };
        let value = |lies: &mut Self| match kind & 3 {
            3 => f32::from_bits(lies.number() as u32),
            _ => f32::from(lies.byte()) - 99.0,
        };
        (0..count).map(|_| value(self)).collect()
    }

    fn junk(&mut self, wire: Wire) -> Junk {
        match wire {
            Wire::Pairs => {
                let indices = self.indices();
                let values = self.values(indices.len());
                Junk::Pairs(indices, values)
            }
            Wire::Coded(_) => {
                let count = usize::from(self.byte());
                Junk::Coded((0..count).map(|_| self.byte()).collect())
            }
        }
    }

    /// A sparse vector that is not this rank's.
    fn vector(&mut self, dim: usize) -> SparseVec {
        let mut indices = self.indices();
        indices.retain(|index| (*index as usize) < dim);
        indices.sort_unstable();
        indices.dedup();
        let values = (0..indices.len()).map(|_| f32::from(self.byte()) - 99.0).collect();
        SparseVec::from_parts(dim, indices, values).unwrap_or_else(|_| SparseVec::new(dim))
    }
}

/// This rank's part in an Ok-Topk all-reduce, with lies. The state stays as it is.
pub(crate) async fn lie(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    state: &OkTopk,
    coder: &mut Coder,
    lies: &mut Lies,
) -> Result<()> {
    let (rank, dim, wire) = (call.rank(), local.dim(), coder.wire());
    let mut agreed = state.agreed.clone();
    if state.partition_is_due() {
        agreed.regions = match lies.now() {
            true => {
                let cuts = (1..call.world_size()).map(|_| lies.number()).collect();
                partition::agree_on(call, dim, cuts).await?
            }
            false => partition::agree(call, local).await?,
        };
    }
    let sum = if lies.now() {
        let room = Room { dim, limit: state.limit().min(agreed.regions.of(rank).len()), wire };
        exchange(call, 0, lies, wire, |_| true, |_| Some(room)).await?;
        lies.vector(dim)
    } else {
        let region = |rank| agreed.regions.of(rank);
        scatter(call, local, state.limit(), region, coder, 0.into()).await?.sum
    };
    let shares = shares(call, state, &mut agreed, sum.values(), lies).await?;
    let quotas = shares.quotas(state.k());
    let quota = quotas[rank as usize];
    let mut chosen = quota.choose(&sum, agreed.threshold);
    if chosen.len() != quota.entries() {
        chosen = filled(dim, &agreed.regions, rank, quota.entries());
    }
    let holdings = Holdings::new(quotas.iter().map(|quota| quota.entries()));
    let mut sums =
        Sums { coder: Coder::new(wire.of_sums()), rounded: SparseVec::new(dim), tensors: 0.into() };
    let wire = wire.of_sums();
    let held = match &holdings.moves {
        Some(moves) if lies.now() => {
            let has = |owner: u32, holder: u32| moves.between(owner, holder).len();
            let room = |from| Some(Room { dim, limit: has(from, rank), wire }).filter(|room| room.limit > 0);
            exchange(call, ROUND, lies, wire, |to| has(rank, to) > 0, room).await?;
            chosen
        }
        Some(moves) => balance(call, &chosen, moves, &agreed.regions, &mut sums).await?,
        None => chosen,
    };
    if lies.now() {
        lies.has_passed_on = true;
        return pass_on(call, holdings.most(), wire, lies).await;
    }
    if lies.now() {
        let other = lies.vector(dim);
        return sparse_all_gather(call, other.view(), holdings.most(), &mut sums.coder).await.map(drop);
    }
    sums.gather(call, held, &holdings, &agreed.regions, |_| Ok(())).await.map(drop)
}

/// Like [`shares`](super::shares).
async fn shares(
    call: &Call<'_, '_>,
    state: &OkTopk,
    agreed: &mut Agreed,
    sums: &[f32],
    lies: &mut Lies,
) -> Result<Shares> {
    let share = |threshold, lies: &mut Lies| match lies.now() {
        true => Share { above: lies.number(), ties: lies.number(), all: lies.number() },
        false => Share::of(sums, threshold),
    };
    if !state.global_threshold_is_due() {
        let shares = tell(call, share(agreed.threshold, lies), &agreed.regions).await?;
        if shares.fit(state.k()) {
            return Ok(shares);
        }
    }
    let counts = |rungs: &[u32; RUNGS]| match lies.now() {
        true => std::array::from_fn(|_| lies.number()),
        false => ladder_counts(sums, rungs).map(u64::from),
    };
    agreed.threshold = search_by(call, counts, state.k(), agreed.threshold).await?;
    tell(call, share(agreed.threshold, lies), &agreed.regions).await
}

/// So many entries of a region.
fn filled(dim: usize, regions: &Regions, rank: u32, count: usize) -> SparseVec {
    let indices: Vec<u32> = regions.of(rank).take(count).map(|index| index as u32).collect();
    let values = vec![1.0; indices.len()];
    SparseVec::from_parts(dim, indices, values).unwrap_or_else(|_| SparseVec::new(dim))
}

/// Sends junk to the ranks that await a message, and takes in theirs.
async fn exchange(
    call: &Call<'_, '_>,
    round: u32,
    lies: &mut Lies,
    wire: Wire,
    awaits: impl Fn(u32) -> bool,
    room: impl Fn(u32) -> Option<Room>,
) -> Result<()> {
    let send = |to: u32| {
        let junk = awaits(to).then(|| lies.junk(wire));
        async move {
            match junk {
                Some(junk) => junk.send(call, to, round).await,
                None => Ok(()),
            }
        }
    };
    let receive = |from: u32| {
        let room = room(from);
        async move {
            match room {
                Some(room) => {
                    let place = Message::Pairs(SparseVec::new(room.dim));
                    place.receive(call, from, round, room).await.map(drop)
                }
                None => Ok(()),
            }
        }
    };
    all_pairs(call, send, receive, |_, ()| Ok(())).await
}

/// Sends junk in every round of the all-gather, of others' vectors too.
async fn pass_on(call: &Call<'_, '_>, most: usize, wire: Wire, lies: &mut Lies) -> Result<()> {
    let (rank, ranks) = (call.rank(), call.world_size());
    for round in 0..doubling_rounds(ranks) {
        let distance = 1 << round;
        let (to, from) = ((rank + ranks - distance) % ranks, (rank + distance) % ranks);
        let blocks = distance.min(ranks - distance) as usize;
        let counts: Vec<u64> = (0..blocks).map(|_| lies.number() % 9).collect();
        match (wire, lies.junk(wire)) {
            (Wire::Coded(values), Junk::Coded(bytes)) => {
                let sending = call.send(to, round, (counts, bytes));
                let room = blocks * codec::most_bytes(1 << 20, most, values);
                let place = (vec![0_u64; blocks], vec![0_u8; room]);
                call.recv_up_to(from, round, place).await?;
                sending.await?;
            }
            (_, Junk::Pairs(indices, values)) => {
                let counts: Vec<u32> = counts.into_iter().map(|count| count as u32).collect();
                let sending = call.send(to, round, (counts, (indices, values)));
                let entries = blocks * most;
                let place = (vec![0_u32; blocks], (vec![0_u32; entries], vec![0.0_f32; entries]));
                call.recv_up_to(from, round, place).await?;
                sending.await?;
            }
            (Wire::Pairs, Junk::Coded(_)) => unreachable!("junk is as the wire"),
        }
    }
    Ok(())
}
