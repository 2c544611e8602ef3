//! All-gather by hosts.

use std::sync::Arc;

use ucx_sys_wrap::buffer::Chunk;

use super::{inside, places, slots};
use crate::call::Call;
use crate::dense::by::direct;
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::{Lanes, in_lanes};

/// Gathers the blocks of all ranks, of elements of `size` bytes, in these segments; this rank's is in its
/// place. Every host has as many ranks.
pub(in crate::dense) async fn all_gather<'a, 'env>(
    call: &Call<'a, 'env>,
    size: usize,
    segments: Vec<Vec<Chunk<'env, u8>>>,
) -> Result<Vec<Vec<Chunk<'env, u8>>>> {
    if let Some((mut place, terms)) = slots(call, size) {
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        return over_slots(call, &mut turn, segments).await;
    }
    let run = |lane: Call<'a, 'env>, mut blocks: Vec<Chunk<'env, u8>>| async move {
        between(&lane, &mut blocks).await?;
        by_messages(&lane, &mut blocks).await?;
        Ok(blocks)
    };
    in_lanes(call, segments, run).await
}

/// Gathers the blocks of the ranks at this rank's place on all hosts.
async fn between<'env>(call: &Call<'_, 'env>, blocks: &mut [Chunk<'env, u8>]) -> Result<()> {
    let places = places(call);
    let row = places.across(places.place(call.rank()));
    let mut own: Vec<_> = row.iter().map(|rank| blocks[*rank as usize].take()).collect();
    direct::all_gather(&call.among(row.clone()), &mut own, 0).await?;
    for (member, block) in row.iter().zip(own) {
        blocks[*member as usize] = block;
    }
    Ok(())
}

/// Gathers what the ranks of this host have.
async fn by_messages<'env>(call: &Call<'_, 'env>, blocks: &mut [Chunk<'env, u8>]) -> Result<()> {
    let (places, inside) = (places(call), inside(call));
    let (rank, ranks) = (inside.rank() as usize, inside.world_size() as usize);
    let row = places.across(inside.rank());
    let shared: Vec<_> = row.iter().map(|member| Arc::new(blocks[*member as usize].take())).collect();
    let hosts = 0..shared.len();
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    for (_, from) in direct::peers(rank, ranks) {
        for (host, member) in hosts.clone().zip(places.across(from as u32).iter()) {
            let place = blocks[*member as usize].take();
            receives.push((*member, inside.recv(from as u32, host as u32, place)));
        }
    }
    for (to, _) in direct::peers(rank, ranks) {
        for (host, block) in hosts.clone().zip(&shared) {
            sends.push(inside.send(to as u32, host as u32, Arc::clone(block)));
        }
    }
    for (member, receive) in receives {
        blocks[member as usize] = receive.await?;
    }
    for send in sends {
        drop(send.await?);
    }
    for (member, block) in row.iter().zip(shared) {
        let block = Arc::into_inner(block);
        blocks[*member as usize] =
            block.unwrap_or_else(|| unreachable!("every send has given its count back"));
    }
    Ok(())
}

/// While some segments are on their way between hosts, one that has come is copied inside.
async fn over_slots<'env>(
    call: &Call<'_, 'env>,
    turn: &mut SlotTurn<'_>,
    segments: Vec<Vec<Chunk<'env, u8>>>,
) -> Result<Vec<Vec<Chunk<'env, u8>>>> {
    let rows: Vec<_> = (0..turn.world_size()).map(|place| places(call).across(place)).collect();
    let mut lanes = Lanes::new();
    let mut done = Vec::with_capacity(segments.len());
    let mut segments = segments.into_iter();
    loop {
        while !lanes.are_full()
            && let Some(mut blocks) = segments.next()
        {
            lanes.start(call, |lane| async move { between(&lane, &mut blocks).await.map(|()| blocks) });
        }
        if lanes.is_empty() {
            break;
        }
        let mut blocks = lanes.end().await?;
        lanes.beside(host::all_gather_rows(turn, &mut blocks, &rows)).await?;
        turn.slots().wake();
        done.push(blocks);
    }
    turn.finish();
    Ok(done)
}
