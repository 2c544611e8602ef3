//! Reduce: the root gets the elementwise reduction of all ranks' vectors.

use bytemuck::Pod;
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::Chunk;

use super::all_reduce::work;
use super::{Collective, Place, by, check_length, check_root};
use crate::buffers::{Buffers, Layout, Memory, Sizes};
use crate::call::Call;
use crate::data::{Reducer, Reduction};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::in_lanes;
use crate::plan::{Algorithm, Cut, Estimate, Ground, Row, Work, always, by_hosts, fastest, over_slots};

/// A reduction to one rank: the output of the root is as long as the inputs. Other ranks have none, or one of
/// that length, which is not written unless it is the input too.
#[derive(Clone, Debug)]
pub struct Reduce {
    reducer: Reducer,
    root: u32,
}

impl Reduce {
    /// A reduction of elements of type `T` to `root`.
    ///
    /// # Errors
    /// [`Error::Reduction`](crate::Error::Reduction).
    pub fn new<T: Pod>(reduction: impl Into<Reduction<T>>, root: u32) -> Result<Self> {
        Ok(Self::of(reduction.into().reducer()?, root))
    }

    /// A reduction of a reducer's elements to `root`.
    #[must_use]
    pub fn of(reducer: Reducer, root: u32) -> Self {
        Self { reducer, root }
    }
}

impl Collective for Reduce {
    const OPERATION: Operation = Operation::REDUCE;
    const ROWS: &'static [Row] = &[
        Row { algorithm: Algorithm::Binomial, fits: always, estimate: |work, ground| tree(work, ground, 2) },
        Row { algorithm: Algorithm::Knomial4, fits: always, estimate: |work, ground| tree(work, ground, 4) },
        Row { algorithm: Algorithm::Direct, fits: always, estimate: direct },
        Row { algorithm: Algorithm::Hosts, fits: by_hosts, estimate: hosts },
        over_slots(|work, ground| {
            let others = ground.ranks() - 1.0;
            ground.over_slots(2.0 * work.bytes as f64 * others / ground.ranks())
        }),
    ];

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        check_root(self.root, place)?;
        let (found, expected) = (memory.output, memory.input());
        if found == 0 && place.rank != self.root {
            return Ok(());
        }
        check_length("the reduced vector", found, expected, self.reducer.size())
    }

    fn description(&self, memory: Sizes, _: Place) -> Description {
        let count = memory.input() / self.reducer.size();
        Description { root: Some(Rank(self.root)), ..self.reducer.describe(Self::OPERATION, count) }
    }

    fn work(&self, memory: Sizes, _: Place) -> Work {
        work(&self.reducer, memory.input())
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        if algorithm == Algorithm::Hosts {
            return by::hosts::reduce(call, &self.reducer, memory, self.root).await;
        }
        let size = self.reducer.size();
        let slices = if algorithm == Algorithm::Direct { call.world_size() as usize } else { 1 };
        let segment = call.slice_bytes() / size * size * slices;
        if segment == 0 || memory.input().len() <= segment {
            return self.segment(call, algorithm, memory).await;
        }
        let run = |lane, memory| async move { self.segment(&lane, algorithm, memory).await };
        in_lanes(call, memory.segments(segment), run).await.map(Chunk::join_all)
    }

    fn element_bytes(&self) -> usize {
        self.reducer.size()
    }

    async fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        memory: &'a mut Buffers<'env>,
        _: host::Rest,
    ) -> Result<()> {
        host::reduce(turn, &self.reducer, memory.input, memory.output, self.root).await
    }
}

/// A tree of a radix.
fn tree(work: &Work, ground: &Ground, radix: u32) -> Estimate {
    Estimate::in_segments(work.bytes as f64, ground.slice_bytes as f64, |bytes| {
        let bytes = bytes * work.widening();
        let (mut all, mut members) = (Estimate::default(), 1 << ground.world_size.ilog2());
        let level = |children: u32| {
            let children = f64::from(children);
            ground.messages(children, children * bytes).computing(children * ground.combining(bytes))
        };
        if !ground.world_size.is_power_of_two() {
            all = all.then(level(1));
        }
        while members > 1 {
            all = all.then(level(radix.min(members) - 1));
            members /= radix.min(members);
        }
        Estimate { bytes, ..all }
    })
}

/// Every rank reduces a block, and the root gathers them.
fn direct(work: &Work, ground: &Ground) -> Estimate {
    Estimate::in_segments(work.bytes as f64, ground.ranks() * ground.slice_bytes as f64, |bytes| {
        let (others, cut) = (ground.ranks() - 1.0, Cut::new(bytes, ground.ranks()));
        let sums = ground.burst(cut.block).computing(ground.combining(others * cut.block));
        let gathered = (cut.blocks - 1.0).max(0.0) * cut.block;
        Estimate { bytes, ..sums.then(ground.messages(others, gathered)) }
    })
}

/// The sums of each host, and then over the hosts by the fastest algorithm there.
fn hosts(work: &Work, ground: &Ground) -> Estimate {
    let (inside, across) = (ground.inside(ground.topology.most), ground.across(1));
    let (piece, widening) = (ground.slice_bytes as f64, work.widening());
    Estimate::in_segments(work.bytes as f64, piece / widening, |bytes| {
        let bytes = (bytes * widening) as usize;
        let part = Work { bytes, wide_bytes: bytes, ..*work };
        tree(&part, &inside, 2).then(fastest(Reduce::ROWS, &part, &across).1)
    })
}

impl Reduce {
    /// A segment of a vector, by an algorithm without levels.
    pub(super) async fn segment<'env>(
        &self,
        call: &Call<'_, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        let root = self.root;
        match algorithm {
            Algorithm::Knomial4 => by::reduce_tree::reduce(call, &self.reducer, memory, (root, 4)).await,
            Algorithm::Knomial8 => by::reduce_tree::reduce(call, &self.reducer, memory, (root, 8)).await,
            Algorithm::Direct => self.direct(call, memory).await,
            _ => by::reduce_tree::reduce(call, &self.reducer, memory, (root, 2)).await,
        }
    }

    /// Every rank reduces a block, and the root gathers them.
    async fn direct<'env>(&self, call: &Call<'_, 'env>, memory: Memory<'env>) -> Result<Chunk<'env, u8>> {
        let (rank, reducer) = (call.rank() as usize, &self.reducer);
        let layout = Layout::of_lines(memory.input().len(), call.world_size(), reducer.size());
        let input = memory.input.map(|input| layout.read(input));
        if call.rank() == self.root || input.is_none() {
            let mut blocks = layout.split(memory.output);
            let output = (&mut blocks[..], rank);
            by::direct::reduce_scatter(call, reducer, input.as_deref(), output, 0).await?;
            if call.rank() == self.root {
                let mut receives = Vec::with_capacity(blocks.len());
                for (_, from) in by::direct::peers(rank, blocks.len()) {
                    receives.push((from, call.recv(from as u32, 1, blocks[from].take())));
                }
                for (from, receive) in receives {
                    blocks[from] = receive.await?;
                }
            } else {
                blocks[rank] = call.send(self.root, 1, blocks[rank].take()).await?;
            }
            return Ok(Chunk::join_all(blocks));
        }
        let mut own = call.scratch::<u8>(layout.block(rank).len())?;
        let input = input.as_deref().unwrap_or_default();
        by::direct::reduce_scatter_apart(call, reducer, input, &mut own, 0).await?;
        drop(call.send(self.root, 1, own).await?);
        Ok(memory.output)
    }
}
