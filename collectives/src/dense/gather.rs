//! Gather: the root gets all ranks' blocks.

use ucx_sys_wrap::buffer::Chunk;

use super::at_root::{self, AtRoot, Parts};
use super::{Collective, Lengths, Place, by};
use crate::buffers::{Buffers, Memory, Sizes};
use crate::call::Call;
use crate::data::{DataType, Element};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::plan::{Algorithm, Row, Work};

/// A gather to one rank: inputs are blocks, and the output of the root has all of them. In place the root's
/// block is in its output. Other ranks need no output, or have their block in it.
///
/// With lengths of their own, each rank knows its own, and the root knows all.
#[derive(Clone, Debug)]
pub struct Gather(AtRoot);

impl Gather {
    /// A gather of elements of type `T` to `root`.
    #[must_use]
    pub fn new<T: Element>(root: u32, lengths: Lengths) -> Self {
        Self::of(T::TYPE, root, lengths)
    }

    /// A gather of elements of a type to `root`.
    #[must_use]
    pub fn of(data: DataType, root: u32, lengths: Lengths) -> Self {
        Self(AtRoot::of(data, root, lengths))
    }

    fn parts(&self, memory: Sizes, place: Place) -> Parts {
        if place.rank == self.0.root {
            return Parts { block: memory.input, vector: Some(memory.output) };
        }
        Parts { block: Some(memory.input()), vector: None }
    }
}

impl Collective for Gather {
    const OPERATION: Operation = Operation::GATHER;
    const ROWS: &'static [Row] = at_root::ROWS;

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        self.0.check("the gathered vector", &self.parts(memory, place), place)
    }

    fn description(&self, memory: Sizes, place: Place) -> Description {
        self.0.description(Self::OPERATION, &self.parts(memory, place), place.world_size)
    }

    fn work(&self, memory: Sizes, place: Place) -> Work {
        self.0.work(&self.parts(memory, place), place.world_size)
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        let (place, root) = (call.place(), self.0.root);
        let parts = self.parts(memory.sizes(), place);
        let bytes = self.0.each(&parts, place.world_size);
        if algorithm == Algorithm::Hosts {
            let mut own = call.scratch_chunk(bytes)?;
            let start = if place.rank == root && memory.input.is_none() { root as usize * bytes } else { 0 };
            // A copy: what is sent lies in memory of the call.
            own.copy_from_slice(&memory.input()[start..][..bytes]);
            return by::hosts::gather(call, self.0.size, own, (root, memory.output)).await;
        }
        if place.rank != root {
            match memory.input {
                _ if algorithm == Algorithm::Binomial => {
                    by::linear::gather_in_tree(call, memory.input(), &mut [], (root, bytes)).await?
                }
                Some(own) => drop(call.send(root, 0, own).await?),
                None => return call.send(root, 0, memory.output).await,
            }
            return Ok(memory.output);
        }
        let layout = self.0.layout(&parts, place.world_size)?;
        let mut output = memory.output;
        let own = layout.block(place.rank as usize);
        if let Some(input) = memory.input {
            // A copy: the root's own block.
            output[own.clone()].copy_from_slice(input);
        }
        if algorithm == Algorithm::Binomial {
            let mut block = call.scratch::<u8>(bytes)?;
            block.copy_from_slice(&output[own]);
            by::linear::gather_in_tree(call, &block, &mut output, (root, bytes)).await?;
            return Ok(output);
        }
        let mut blocks = layout.split(output);
        by::linear::gather(call, &mut blocks).await?;
        Ok(Chunk::join_all(blocks))
    }

    fn element_bytes(&self) -> usize {
        self.0.size
    }

    async fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        memory: &'a mut Buffers<'env>,
        _: host::Rest,
    ) -> Result<()> {
        let (place, root) = (turn.place(), self.0.root);
        let parts = self.parts(memory.sizes(), place);
        if place.rank == root {
            let layout = self.0.layout(&parts, place.world_size)?;
            return host::gather(turn, memory.input, memory.output, layout.blocks(), root).await;
        }
        let blocks = self.0.known_blocks(&parts, place.world_size);
        host::gather(turn, Some(memory.input.unwrap_or(memory.output)), &mut [], blocks, root).await
    }
}
