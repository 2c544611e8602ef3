//! Reductions to one rank in a tree.
//!
//! Reduce of n bytes (4 for each 16-bit number) in a tree of radix `k`: `log_k m` levels, and 1 more unless P
//! is a power of two; every rank but the root sends n bytes; `log_k m (alpha + (k - 1) n beta)`. With `k = 2`
//! the tree is binomial.
//!
//! The tree is that of the fixed order ([`SumTree`]): a rank combines the results of its children of one
//! level in pairs, so that after a level it has the sum of an aligned block of ranks.

use ucx_sys_wrap::buffer::PoolBuffer;

use crate::buffers::Memory;
use crate::call::Call;
use crate::data::Reducer;
use crate::error::Result;
use crate::pattern::{SumTree, Towards};

/// Reduces the vectors of all ranks to the output of `root`. Other outputs are not written. Returns the
/// output.
pub(in crate::dense) async fn reduce<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
    (root, radix): (u32, u32),
) -> Result<ucx_sys_wrap::buffer::Chunk<'env, u8>> {
    let tree = SumTree::new(call.rank(), root, call.world_size(), radix);
    let bytes = memory.input().len() / reducer.size() * reducer.wide();
    let is_leaf = tree.guest.is_none() && tree.levels.is_empty();
    let parent = match tree.towards {
        Towards::Root { .. } if is_leaf && !reducer.is_wide() => {
            // Nothing is combined: the vector goes as it is.
            let Towards::Root { parent, round } = tree.towards else { unreachable!("it was matched") };
            match memory.input {
                Some(input) => drop(call.send(parent, round, input).await?),
                None => return call.send(parent, round, memory.output).await,
            }
            return Ok(memory.output);
        }
        Towards::Root { parent, round } => Some((parent, round)),
        Towards::Nobody => None,
    };
    let mut own = call.scratch::<u8>(bytes)?;
    reducer.in_mode(|| reducer.start(&mut own, memory.input()));
    if let Some(guest) = tree.guest {
        let incoming = call.recv(guest, 0, call.scratch::<u8>(bytes)?).await?;
        call.computed(reducer.in_mode(|| reducer.combine(&mut own, &incoming)))?;
    }
    for level in &tree.levels {
        let mut receives = Vec::with_capacity(level.children.len());
        for child in &level.children {
            receives.push(call.recv(*child, level.round, call.scratch::<u8>(bytes)?));
        }
        let mut stage: Vec<PoolBuffer<u8>> = vec![own];
        for receive in receives {
            stage.push(receive.await?);
        }
        own = call.computed(reducer.in_mode(|| in_pairs(reducer, stage)))?;
    }
    let mut output = memory.output;
    match parent {
        Some((parent, round)) => drop(call.send(parent, round, own).await?),
        None => reducer.in_mode(|| reducer.end(&mut output, &mut own, call.world_size())),
    }
    Ok(output)
}

/// Combines neighbours until one is left. The number is a power of two.
fn in_pairs(reducer: &Reducer, mut stage: Vec<PoolBuffer<u8>>) -> Result<PoolBuffer<u8>> {
    while stage.len() > 1 {
        let mut pairs = Vec::with_capacity(stage.len() / 2);
        let mut left = stage.into_iter();
        while let Some(mut first) = left.next() {
            if let Some(second) = left.next() {
                reducer.combine(&mut first, &second)?;
            }
            pairs.push(first);
        }
        stage = pairs;
    }
    Ok(stage.pop().unwrap_or_else(|| unreachable!("the own result is there")))
}
