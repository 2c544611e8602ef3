//! Reduce-scatter by hosts.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Chunk, PoolBuffer};

use super::{ended, inside, places, slots};
use crate::call::Call;
use crate::data::Reducer;
use crate::dense::by::direct;
use crate::dense::reduce_scatter::Segment;
use crate::error::Result;
use crate::host::{self, Operands, Rows, SlotTurn};
use crate::lanes::{Lanes, in_lanes};

/// Reduces this rank's block of all ranks' vectors, in these segments. Every host has as many ranks.
pub(in crate::dense) async fn reduce_scatter<'a, 'env>(
    call: &Call<'a, 'env>,
    reducer: &Reducer,
    segments: Vec<Segment<'env>>,
) -> Result<Vec<Vec<Chunk<'env, u8>>>> {
    let way = &Way::new(call, reducer);
    if let Some((mut place, terms)) = slots(call, reducer.size()) {
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        return over_slots(call, &mut turn, way, segments).await;
    }
    let run = |lane: Call<'a, 'env>, segment: Segment<'env>| async move {
        let (mut vector, row) = way.prepare(&lane, segment)?;
        let row = way.by_messages(&lane, &mut vector, row).await?;
        way.between(&lane, vector, row).await
    };
    in_lanes(call, segments, run).await
}

/// While some segments are on their way between hosts, the next one is summed inside.
async fn over_slots<'env>(
    call: &Call<'_, 'env>,
    turn: &mut SlotTurn<'_>,
    way: &Way<'_>,
    segments: Vec<Segment<'env>>,
) -> Result<Vec<Vec<Chunk<'env, u8>>>> {
    let mut lanes = Lanes::new();
    let mut done = Vec::with_capacity(segments.len());
    for segment in segments {
        if lanes.are_full() {
            done.push(lanes.end().await?);
        }
        let (vector, mut row) = way.prepare(call, segment)?;
        let blocks = vector.read();
        let operands = Operands {
            blocks: &blocks,
            longest: vector.longest,
            is_in_place: vector.is_in_place(),
            results: &mut row,
        };
        lanes.beside(host::reduce_rows(turn, &way.partial, operands, &way.rows)).await?;
        turn.slots().wake();
        drop(blocks);
        lanes.start(call, |lane| async move { way.between(&lane, vector, row).await });
    }
    while !lanes.is_empty() {
        done.push(lanes.end().await?);
    }
    turn.finish();
    Ok(done)
}

/// A segment of a rank's vector.
struct Vector<'env> {
    /// The blocks of all ranks, if they are only read.
    input: Option<Vec<&'env [u8]>>,
    /// The blocks of all ranks in place, but for this rank's row.
    blocks: Vec<Chunk<'env, u8>>,
    /// The length of the longest.
    longest: usize,
    /// What is returned, if that is not the blocks in place.
    output: Option<Vec<Chunk<'env, u8>>>,
}

impl<'env> Vector<'env> {
    fn is_in_place(&self) -> bool {
        self.input.is_none()
    }

    /// The blocks of all ranks.
    fn read(&self) -> Vec<&[u8]> {
        match &self.input {
            Some(input) => input.clone(),
            None => self.blocks.iter().map(|block| &block[..]).collect(),
        }
    }
}

/// The way of a reduction over the hosts.
struct Way<'a> {
    reducer: &'a Reducer,
    partial: Reducer,
    /// The ranks at each place of the hosts.
    rows: Vec<Arc<[u32]>>,
    rank: usize,
    host: usize,
    place: usize,
}

impl<'a> Way<'a> {
    fn new(call: &Call<'_, '_>, reducer: &'a Reducer) -> Self {
        let (places, rank) = (places(call), call.rank());
        Self {
            reducer,
            partial: reducer.partial(),
            rows: (0..places.topology.least).map(|place| places.across(place)).collect(),
            rank: rank as usize,
            host: places.host(rank) as usize,
            place: places.place(rank) as usize,
        }
    }

    /// The vector, and the memory for the sums of this rank's row, which has their operands in place.
    fn prepare<'env>(
        &self,
        call: &Call<'_, 'env>,
        (input, mut output): Segment<'env>,
    ) -> Result<(Vector<'env>, Vec<Chunk<'env, u8>>)> {
        let own = &self.rows[self.place];
        let vector = match input {
            Some(input) if !self.reducer.is_wide() => {
                // The sum for this rank itself goes where its result will be.
                let mut row = Vec::with_capacity(own.len());
                for (host, member) in own.iter().enumerate() {
                    let is_own = host == self.host;
                    let room = if is_own { output[0].take() } else { room_for(call, &input, *member)? };
                    row.push(room);
                }
                let longest = input.iter().map(|block| block.len()).max().unwrap_or(0);
                return Ok((Vector { input: Some(input), blocks: Vec::new(), longest, output: None }, row));
            }
            None if !self.reducer.is_wide() => {
                let longest = output.iter().map(|block| block.len()).max().unwrap_or(0);
                Vector { input: None, blocks: output, longest, output: None }
            }
            input => {
                let blocks = match &input {
                    Some(input) => self.widened(call, input.iter().copied())?,
                    None => self.widened(call, output.iter().map(|block| &block[..]))?,
                };
                let longest = blocks.iter().map(|block| block.len()).max().unwrap_or(0);
                Vector { input: None, blocks, longest, output: Some(output) }
            }
        };
        let mut vector = vector;
        let row = own.iter().map(|member| vector.blocks[*member as usize].take()).collect();
        Ok((vector, row))
    }

    /// Blocks of elements that are wide.
    fn widened<'b, 'env>(
        &self,
        call: &Call<'_, 'env>,
        narrow: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> Result<Vec<Chunk<'env, u8>>> {
        let Self { reducer, .. } = self;
        let lengths = narrow.clone().map(|block| block.len() / reducer.size() * reducer.wide());
        let mut blocks = call.scratch_chunk(lengths.clone().sum())?.split_into(lengths);
        reducer
            .in_mode(|| blocks.iter_mut().zip(narrow).for_each(|(wide, block)| reducer.start(wide, block)));
        Ok(blocks)
    }

    /// Sums the row over the ranks of this host by messages.
    async fn by_messages<'env>(
        &self,
        call: &Call<'_, 'env>,
        vector: &mut Vector<'env>,
        mut row: Vec<Chunk<'env, u8>>,
    ) -> Result<Vec<Chunk<'env, u8>>> {
        let inside = inside(call);
        let (rank, ranks, rows): (_, _, Rows<'_>) = (self.place, inside.world_size() as usize, &self.rows);
        let mut receives = Vec::new();
        for (host, block) in row.iter().enumerate() {
            for (_, from) in direct::peers(rank, ranks) {
                let room = inside.scratch::<u8>(block.len())?;
                receives.push((host, from, inside.recv(from as u32, host as u32, room)));
            }
        }
        let (mut lent, mut sends) = (Vec::new(), Vec::new());
        for (to, _) in direct::peers(rank, ranks) {
            for (host, member) in rows[to].iter().enumerate() {
                match &vector.input {
                    Some(input) => sends.push(inside.send(to as u32, host as u32, input[*member as usize])),
                    None => {
                        let block = vector.blocks[*member as usize].take();
                        lent.push((*member, inside.send(to as u32, host as u32, block)));
                    }
                }
            }
        }
        let mut come: Vec<Vec<Option<PoolBuffer<u8>>>> = Vec::new();
        come.resize_with(row.len(), || (0..ranks).map(|_| None).collect());
        for (host, from, receive) in receives {
            come[host][from] = Some(receive.await?);
        }
        for (host, (come, result)) in come.iter().zip(&mut row).enumerate() {
            let mut operands: Vec<Option<&[u8]>> = come.iter().map(Option::as_deref).collect();
            operands[rank] = vector.input.as_ref().map(|input| input[rows[rank][host] as usize]);
            let partial = &self.partial;
            call.computed(partial.in_mode(|| partial.reduce_in_order(&operands, rank as u32, result)))?;
        }
        for send in sends {
            send.await?;
        }
        for (member, send) in lent {
            vector.blocks[member as usize] = send.await?;
        }
        Ok(row)
    }

    /// Reduces the block of this rank over the hosts, and ends it. Returns the output.
    async fn between<'env>(
        &self,
        call: &Call<'_, 'env>,
        vector: Vector<'env>,
        mut row: Vec<Chunk<'env, u8>>,
    ) -> Result<Vec<Chunk<'env, u8>>> {
        let (own, ranks) = (&self.rows[self.place], call.world_size());
        let across = call.among(Arc::clone(own));
        direct::reduce_scatter(&across, &self.partial, None, (&mut row[..], self.host), 0).await?;
        let sums = row[self.host].take();
        if let Some(mut output) = vector.output {
            let place = if output.len() == 1 { 0 } else { self.rank };
            output[place] = ended(self.reducer, sums, Some(output[place].take()), ranks);
            return Ok(output);
        }
        let result = ended(self.reducer, sums, None, ranks);
        if vector.input.is_some() {
            return Ok(vec![result]);
        }
        row[self.host] = result;
        let mut blocks = vector.blocks;
        for (member, block) in own.iter().zip(row) {
            blocks[*member as usize] = block;
        }
        Ok(blocks)
    }
}

/// Memory for the sums of a rank's block.
fn room_for<'env>(call: &Call<'_, 'env>, blocks: &[&[u8]], rank: u32) -> Result<Chunk<'env, u8>> {
    call.scratch_chunk(blocks[rank as usize].len())
}
