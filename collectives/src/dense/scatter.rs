//! Scatter: every rank gets its block of the root.

use ucx_sys_wrap::buffer::Chunk;

use super::gather::{describe, rows};
use super::reduce_scatter::whole_blocks;
use super::{Collective, Lengths, Place, by, check_length, check_root};
use crate::buffers::{Buffers, Layout, Memory, Sizes};
use crate::call::Call;
use crate::data::{DataType, Element};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, Blocks, SlotTurn};
use crate::plan::{Algorithm, Row, Work};

/// A scatter of one rank: the input of the root has all blocks, and outputs are blocks. In place the output
/// of the root is the vector of all, where its block stays. Other ranks need no input.
///
/// With lengths of their own, each rank knows its own, and the root knows all.
#[derive(Clone, Debug)]
pub struct Scatter {
    element: u8,
    size: usize,
    root: u32,
    lengths: Lengths,
}

impl Scatter {
    /// A scatter of elements of type `T` of `root`.
    #[must_use]
    pub fn new<T: Element>(root: u32, lengths: Lengths) -> Self {
        Self::of(T::TYPE, root, lengths)
    }

    /// A scatter of elements of a type of `root`.
    #[must_use]
    pub fn of(data: DataType, root: u32, lengths: Lengths) -> Self {
        Self { element: data.number(), size: data.bytes(), root, lengths }
    }

    /// Whether the root has only the vector of all.
    fn is_in_place(&self, memory: Sizes, place: Place) -> bool {
        place.rank == self.root && memory.input.is_none()
    }

    /// The layout of the root's vector.
    fn layout(&self, memory: Sizes, place: Place) -> Result<Layout> {
        self.lengths.layout((self.each(memory, place), self.size), place.world_size)
    }

    /// The bytes of a block, if blocks are equal.
    fn each(&self, memory: Sizes, place: Place) -> usize {
        match &self.lengths {
            Lengths::Each(_) => 0,
            Lengths::Equal if self.is_in_place(memory, place) => {
                whole_blocks(memory.output, place.world_size, self.size)
            }
            Lengths::Equal => memory.output,
        }
    }
}

impl Collective for Scatter {
    const OPERATION: Operation = Operation::SCATTER;
    const ROWS: &'static [Row] = &rows();

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        check_root(self.root, place)?;
        if place.rank != self.root {
            return Ok(());
        }
        let layout = self.layout(memory, place)?;
        let Some(input) = memory.input else {
            return check_length("the scattered vector", memory.output, layout.total(), self.size);
        };
        let own = layout.block(place.rank as usize).len();
        check_length("the block of this rank", memory.output, own, self.size)?;
        check_length("the scattered vector", input, layout.total(), self.size)
    }

    fn description(&self, memory: Sizes, place: Place) -> Description {
        describe(
            Self::OPERATION,
            (self.element, self.root),
            &self.lengths,
            self.each(memory, place) / self.size,
        )
    }

    fn work(&self, memory: Sizes, place: Place) -> Work {
        let bytes = self.each(memory, place);
        Work { bytes, wide_bytes: bytes, is_exact: true, is_uneven: self.lengths.is_uneven() }
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        let (place, root) = (call.place(), self.root);
        let bytes = self.each(memory.sizes(), place);
        let is_in_tree = algorithm == Algorithm::Binomial;
        if place.rank != root {
            let mut output = memory.output;
            if is_in_tree {
                by::linear::scatter_in_tree(call, &[], &mut output, (root, bytes)).await?;
                return Ok(output);
            }
            return call.recv(root, 0, output).await;
        }
        let layout = self.layout(memory.sizes(), place)?;
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
        self.size
    }

    async fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        memory: &'a mut Buffers<'env>,
        _: host::Rest,
    ) -> Result<()> {
        let place = turn.place();
        let layout = match place.rank == self.root {
            true => Some(self.layout(memory.sizes(), place)?),
            false => None,
        };
        let blocks = match &layout {
            Some(layout) => layout.blocks(),
            None if self.lengths.is_uneven() => Blocks::Ends(&[]),
            None => Blocks::Equal(self.each(memory.sizes(), place)),
        };
        match memory.input {
            None if layout.is_some() => host::scatter(turn, memory.output, &mut [], blocks, self.root).await,
            input => {
                let input = input.unwrap_or_default();
                host::scatter(turn, input, memory.output, blocks, self.root).await
            }
        }
    }
}
