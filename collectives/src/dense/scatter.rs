//! Scatter: every rank gets its block of the root.

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

/// A scatter of one rank: the input of the root has all blocks, and outputs are blocks. In place the output
/// of the root is the vector of all, where its block stays. Other ranks need no input.
///
/// With lengths of their own, each rank knows its own, and the root knows all.
#[derive(Clone, Debug)]
pub struct Scatter(AtRoot);

impl Scatter {
    /// A scatter of elements of type `T` of `root`.
    #[must_use]
    pub fn new<T: Element>(root: u32, lengths: Lengths) -> Self {
        Self::of(T::TYPE, root, lengths)
    }

    /// A scatter of elements of a type of `root`.
    #[must_use]
    pub fn of(data: DataType, root: u32, lengths: Lengths) -> Self {
        Self(AtRoot::of(data, root, lengths))
    }

    fn parts(&self, memory: Sizes, place: Place) -> Parts {
        match memory.input {
            _ if place.rank != self.0.root => Parts { block: Some(memory.output), vector: None },
            None => Parts { block: None, vector: Some(memory.output) },
            vector => Parts { block: Some(memory.output), vector },
        }
    }
}

impl Collective for Scatter {
    const OPERATION: Operation = Operation::SCATTER;
    const ROWS: &'static [Row] = at_root::ROWS;

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        self.0.check("the scattered vector", &self.parts(memory, place), place)
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
            let vector = |all| by::hosts::Scattered { root, bytes, all };
            let (size, output) = (self.0.size, memory.output);
            return match memory.input {
                None if place.rank == root => {
                    by::hosts::scatter(call, size, vector(&output), call.scratch_chunk(0)?).await?;
                    Ok(output)
                }
                input => by::hosts::scatter(call, size, vector(input.unwrap_or_default()), output).await,
            };
        }
        let is_in_tree = algorithm == Algorithm::Binomial;
        if place.rank != root {
            let mut output = memory.output;
            if is_in_tree {
                by::linear::scatter_in_tree(call, &[], &mut output, (root, bytes)).await?;
                return Ok(output);
            }
            return call.recv(root, 0, output).await;
        }
        let layout = self.0.layout(&parts, place.world_size)?;
        let mut output = memory.output;
        match memory.input {
            Some(input) if is_in_tree => {
                by::linear::scatter_in_tree(call, input, &mut output, (root, bytes)).await?;
                Ok(output)
            }
            Some(input) => {
                by::linear::scatter(call, &layout.read(input)).await?;
                // A copy: the root's own block.
                output.copy_from_slice(&input[layout.block(root as usize)]);
                Ok(output)
            }
            None if is_in_tree => {
                let mut own = call.scratch::<u8>(bytes)?;
                by::linear::scatter_in_tree(call, &output, &mut own, (root, bytes)).await?;
                Ok(output)
            }
            None => {
                let mut blocks = layout.split(output);
                by::linear::scatter_own(call, &mut blocks).await?;
                Ok(Chunk::join_all(blocks))
            }
        }
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
        if place.rank != root {
            let blocks = self.0.known_blocks(&parts, place.world_size);
            return host::scatter(turn, memory.input.unwrap_or_default(), memory.output, blocks, root).await;
        }
        let layout = self.0.layout(&parts, place.world_size)?;
        match memory.input {
            Some(input) => host::scatter(turn, input, memory.output, layout.blocks(), root).await,
            None => host::scatter(turn, memory.output, &mut [], layout.blocks(), root).await,
        }
    }
}
