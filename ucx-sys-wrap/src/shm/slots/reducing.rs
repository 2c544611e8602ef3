//! Reductions over the slots of all ranks.

use bytemuck::Pod;

use super::{PAYLOAD_AT, Slots, Step, check_chunk, check_inline};
use crate::shm::blocks::{self, BLOCK_BYTES};

/// Memory of one block, aligned for every element type.
#[repr(align(64))]
struct Block<const BYTES: usize>([u8; BYTES]);

/// Buffers for the reduction of a block: a peer's block, and this rank's own where it comes later in the
/// order.
struct Scratch<const BYTES: usize> {
    theirs: Block<BYTES>,
    own: Option<Block<BYTES>>,
}

impl<const BYTES: usize> Block<BYTES> {
    #[inline]
    fn new() -> Self {
        Self([0; BYTES])
    }
}

impl<const BYTES: usize> Scratch<BYTES> {
    /// The first two places are interchangeable: a reduction is commutative, if not associative.
    #[inline]
    fn new(own_place: usize) -> Self {
        Self { theirs: Block::new(), own: (own_place > 1).then(Block::new) }
    }
}

impl Slots {
    /// Reduces over all ranks what was published by [`publish_inline`](Self::publish_inline), of up to `N`
    /// bytes; otherwise like [`reduce`](Self::reduce).
    ///
    /// # Panics
    /// When `own` is longer than `N` bytes or [`INLINE_BYTES`](super::INLINE_BYTES).
    #[inline]
    pub fn reduce_inline<T: Pod, const N: usize>(
        &self,
        step: Step,
        own: &mut [T],
        combine: impl Fn(&mut [T], &[T]),
    ) {
        check_inline(size_of_val(own));
        let at = step.control() + PAYLOAD_AT;
        self.fold(at, own, &mut Scratch::<N>::new(self.own_place()), combine);
    }

    /// Reduces over all ranks, in the order of places. `own` is this rank's part, and gets the result; the
    /// others' parts lie at `offset` in their slots of the step. `combine` adds the second operand into the
    /// first, and must be commutative, except for NaN payloads; `finish` gets each block of the result. Works
    /// a block at a time, so that a block is still in the cache when it is combined.
    ///
    /// With `publishing`, the result goes to this rank's slot too, at the same offset.
    ///
    /// # Panics
    /// When `own` is longer than the slot, or an element longer than 512 bytes; or when elements have no
    /// bytes.
    pub fn reduce<T: Pod>(
        &mut self,
        (step, offset): (Step, usize),
        own: &mut [T],
        publishing: bool,
        combine: impl Fn(&mut [T], &[T]),
        finish: impl Fn(&mut [T]),
    ) {
        check_chunk(offset, size_of_val(own));
        if publishing {
            self.count(size_of_val(own));
        }
        let mut at = step.chunk() + offset;
        let mut scratch = Scratch::<BLOCK_BYTES>::new(self.own_place());
        let streams = self.store_policy.is_slow();
        self.is_unfenced |= publishing && streams;
        let mut left = size_of_val(own);
        for block in own.chunks_mut(BLOCK_BYTES / size_of::<T>()) {
            let bytes = size_of_val(block);
            left -= bytes;
            for peer in self.peers.iter().flatten() {
                blocks::prefetch_to_read(peer, at + bytes, left);
            }
            if publishing && !streams {
                blocks::prefetch_to_write(&self.own, at + bytes, left);
            }
            self.fold(at, block, &mut scratch, &combine);
            finish(block);
            if publishing {
                let block = bytemuck::cast_slice(block);
                if streams { self.own.stream_unfenced(at, block) } else { self.own.write_block(at, block) }
            }
            at += bytes;
        }
    }

    /// Reduces one block in the order of places.
    #[inline]
    fn fold<T: Pod, const N: usize>(
        &self,
        at: usize,
        block: &mut [T],
        scratch: &mut Scratch<N>,
        combine: impl Fn(&mut [T], &[T]),
    ) {
        let bytes = size_of_val(block);
        let theirs = &mut scratch.theirs.0[..bytes];
        let mut own = scratch.own.as_mut().map(|own| &mut own.0[..bytes]);
        if let (Some(own), Some(first)) = (&mut own, &self.peers[0]) {
            own.copy_from_slice(bytemuck::cast_slice(block));
            first.read_block(at, bytemuck::cast_slice_mut(block));
        }
        let others = self.peers.iter().skip(usize::from(own.is_some()));
        for peer in others {
            match (peer, &own) {
                (Some(peer), _) => {
                    peer.read_block(at, theirs);
                    combine(block, bytemuck::cast_slice(theirs));
                }
                (None, Some(own)) => combine(block, bytemuck::cast_slice(own)),
                (None, None) => {}
            }
        }
    }
}
