//! Barrier: no rank leaves before all ranks have entered.
//!
//! Dissemination: in round `j` a rank sends an empty message to rank `rank + 2^j` and receives one from
//! `rank - 2^j`, in `ceil(log2 P)` rounds. Hensgen, Finkel and Manber, "Two algorithms for barrier
//! synchronization", 1988.

use std::ops::ControlFlow;

use ucx_sys_wrap::buffer::Chunk;

use super::{Collective, Place, by};
use crate::buffers::{Buffers, Memory, Sizes};
use crate::call::Call;
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, Rest, SlotTurn};
use crate::pattern::doubling_rounds;
use crate::plan::{Algorithm, Estimate, Ground, Row, Work, always, over_slots};

/// A barrier, which has neither input nor output.
#[derive(Clone, Copy, Debug)]
pub struct Barrier;

/// Waits for all ranks, by messages.
///
/// # Errors
/// Errors of the transport.
pub async fn barrier(call: &Call<'_, '_>) -> Result<()> {
    call.check_open()?;
    let (rank, world_size) = (call.rank(), call.world_size());
    for round in 0..doubling_rounds(world_size) {
        let distance = 1 << round;
        let telling = call.send((rank + distance) % world_size, round, ());
        call.recv((rank + world_size - distance) % world_size, round, ()).await?;
        telling.await?;
    }
    Ok(())
}

impl Collective for Barrier {
    const OPERATION: Operation = Operation::BARRIER;
    const ROWS: &'static [Row] = &[
        Row {
            algorithm: Algorithm::Dissemination,
            fits: always,
            estimate: |_, ground| ground.message(0.0).times(ground.rounds()),
        },
        Row { algorithm: Algorithm::Hosts, fits: |_, ground| ground.topology.has_levels(), estimate: hosts },
        over_slots(|_, ground| ground.over_slots(0.0)),
    ];

    fn check(&self, _: Sizes, _: Place) -> Result<()> {
        Ok(())
    }

    fn description(&self, _: Sizes, _: Place) -> Description {
        Description::new(Self::OPERATION, 0, 0)
    }

    fn work(&self, _: Sizes, _: Place) -> Work {
        Work { is_exact: true, ..Work::default() }
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        match algorithm {
            Algorithm::Hosts => by::hosts::barrier(call).await?,
            _ => barrier(call).await?,
        }
        Ok(memory.output)
    }

    fn element_bytes(&self) -> usize {
        1
    }

    #[inline]
    fn at_once(&self, turn: &mut SlotTurn<'_>, _: &mut Buffers<'_>) -> ControlFlow<Result<()>, Rest> {
        host::barrier_at_once(turn)
    }

    async fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        _: &'a mut Buffers<'env>,
        rest: Rest,
    ) -> Result<()> {
        host::barrier_rest(turn, rest).await
    }
}

/// To one rank of each host, among these, and back.
fn hosts(_: &Work, ground: &Ground) -> Estimate {
    let (inside, across) = (ground.inside(ground.topology.most), ground.across(1));
    let others = f64::from(ground.topology.most - 1);
    let between = across.message(0.0).times(across.rounds());
    inside.messages(others, 0.0).then(between).then(inside.messages(others, 0.0))
}
