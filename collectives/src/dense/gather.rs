//! Gather: the root gets all ranks' blocks.

use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::Chunk;

use super::reduce_scatter::whole_blocks;
use super::{Collective, Lengths, Place, by, check_length, check_root};
use crate::buffers::{Buffers, Layout, Memory, Sizes};
use crate::call::Call;
use crate::data::{DataType, Element};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, Blocks, SlotTurn};
use crate::plan::{Algorithm, Row, Work, always};

/// A gather to one rank: inputs are blocks, and the output of the root has all of them. In place the root's
/// block is in its output. Other ranks need no output, or have their block in it.
///
/// With lengths of their own, each rank knows its own, and the root knows all.
#[derive(Clone, Debug)]
pub struct Gather {
    element: u8,
    size: usize,
    root: u32,
    lengths: Lengths,
}

impl Gather {
    /// A gather of elements of type `T` to `root`.
    #[must_use]
    pub fn new<T: Element>(root: u32, lengths: Lengths) -> Self {
        Self::of(T::TYPE, root, lengths)
    }

    /// A gather of elements of a type to `root`.
    #[must_use]
    pub fn of(data: DataType, root: u32, lengths: Lengths) -> Self {
        Self { element: data.number(), size: data.bytes(), root, lengths }
    }

    /// The layout of the root's output.
    fn layout(&self, memory: Sizes, world_size: u32) -> Result<Layout> {
        let each = match memory.input {
            Some(input) => input,
            None => whole_blocks(memory.output, world_size, self.size),
        };
        self.lengths.layout((each, self.size), world_size)
    }

    /// The bytes of a block of this rank, if blocks are equal.
    fn each(&self, memory: Sizes, place: Place) -> usize {
        match (&self.lengths, memory.input) {
            (Lengths::Each(_), _) => 0,
            (Lengths::Equal, None) if place.rank == self.root => {
                whole_blocks(memory.output, place.world_size, self.size)
            }
            (Lengths::Equal, _) => memory.input(),
        }
    }
}

impl Collective for Gather {
    const OPERATION: Operation = Operation::GATHER;
    const ROWS: &'static [Row] = &rows();

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        check_root(self.root, place)?;
        if place.rank != self.root {
            return Ok(());
        }
        let layout = self.layout(memory, place.world_size)?;
        if let Some(input) = memory.input {
            let own = layout.block(place.rank as usize).len();
            check_length("the block of this rank", input, own, self.size)?;
        }
        check_length("the gathered vector", memory.output, layout.total(), self.size)
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
        let place = call.place();
        let bytes = self.each(memory.sizes(), place);
        if place.rank != self.root {
            match memory.input {
                _ if algorithm == Algorithm::Binomial => {
                    by::linear::gather_in_tree(call, memory.input(), &mut [], (self.root, bytes)).await?
                }
                Some(own) => drop(call.send(self.root, 0, own).await?),
                None => return call.send(self.root, 0, memory.output).await,
            }
            return Ok(memory.output);
        }
        let layout = self.layout(memory.sizes(), place.world_size)?;
        let mut output = memory.output;
        let own = layout.block(place.rank as usize);
        if let Some(input) = memory.input {
            // A copy: the root's own block.
            output[own.clone()].copy_from_slice(input);
        }
        if algorithm == Algorithm::Binomial {
            let mut block = call.scratch::<u8>(bytes)?;
            block.copy_from_slice(&output[own]);
            by::linear::gather_in_tree(call, &block, &mut output, (self.root, bytes)).await?;
            return Ok(output);
        }
        let mut blocks = layout.split(output);
        by::linear::gather(call, &mut blocks).await?;
        Ok(Chunk::join_all(blocks))
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
        if place.rank == self.root {
            let layout = self.layout(memory.sizes(), place.world_size)?;
            return host::gather(turn, memory.input, memory.output, layout.blocks(), self.root).await;
        }
        let each = Blocks::Equal(self.each(memory.sizes(), place));
        let blocks = if self.lengths.is_uneven() { Blocks::Ends(&[]) } else { each };
        host::gather(turn, Some(memory.input.unwrap_or(memory.output)), &mut [], blocks, self.root).await
    }
}

/// The algorithms of gathering and scattering.
pub(super) const fn rows() -> [Row; 2] {
    [
        Row {
            algorithm: Algorithm::Linear,
            fits: always,
            estimate: |work, ground| ground.burst(work.bytes as f64),
        },
        Row {
            algorithm: Algorithm::Binomial,
            fits: |work, _| !work.is_uneven,
            estimate: |work, ground| {
                let bytes = work.bytes as f64 * (ground.ranks() - 1.0);
                let waits = ground.message(0.0).times(ground.rounds().saturating_sub(1));
                waits.then(ground.message(bytes)).computing(2.0 * ground.copying(bytes))
            },
        },
    ]
}

/// The description of gathering or scattering blocks of `count` elements.
pub(super) fn describe(
    operation: Operation,
    (element, root): (u8, u32),
    lengths: &Lengths,
    count: usize,
) -> Description {
    let description = Description { root: Some(Rank(root)), ..Description::new(operation, element, count) };
    if lengths.is_uneven() { description.with_detail(UNEVEN) } else { description }
}

/// Lengths that only some ranks know are not compared, but that there are such is.
pub(super) const UNEVEN: u64 = 1;
