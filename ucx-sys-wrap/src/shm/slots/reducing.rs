//! Reducing what lies in the slots of all ranks.

use bytemuck::Pod;

use super::{Slots, Step, check_chunk};
use crate::shm::blocks::{self, BLOCK_BYTES, Block};

impl Slots {
    /// Reduces over all ranks, in the order of places: `own` is this rank's part, and gets the result; the others' lie in
    /// their slots of the step, from `offset` on. `combine` puts the second into the first; `finish` has the last word.
    /// Works a block at a time, so that what is read is still near when it is combined.
    ///
    /// With `publishing`, the result goes to this rank's slot too, at the same offset.
    ///
    /// # Panics
    /// When `own` is longer than the slot, or the size of an element does not divide 512 bytes.
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
        let place = self.own_place();
        let (mut held, mut theirs) = (Block([0; BLOCK_BYTES]), Block([0; BLOCK_BYTES]));
        let (held, theirs) = (bytemuck::cast_slice_mut(&mut held.0), bytemuck::cast_slice_mut(&mut theirs.0));
        let streams = self.regime.is_slow();
        self.is_unfenced |= publishing && streams;
        let mut left = size_of_val(own);
        for block in own.chunks_mut(BLOCK_BYTES / size_of::<T>()) {
            let bytes = size_of_val(block);
            left -= bytes;
            for peer in self.peers.iter().flatten() {
                blocks::ask_to_read(peer, at + bytes, left);
            }
            if publishing && !streams {
                blocks::ask_to_write(&self.own, at + bytes, left);
            }
            let count = block.len();
            self.fold(place, at, block, (&mut held[..count], &mut theirs[..count]), &combine);
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
    fn fold<T: Pod>(
        &self,
        own_place: usize,
        at: usize,
        own: &mut [T],
        (held, theirs): (&mut [T], &mut [T]),
        combine: &impl Fn(&mut [T], &[T]),
    ) {
        if own_place > 0 {
            held.copy_from_slice(own);
            self.peer(0).read_block(at, bytemuck::cast_slice_mut(own));
        }
        for peer in self.peers.iter().skip(1) {
            match peer {
                None => combine(own, held),
                Some(peer) => {
                    peer.read_block(at, bytemuck::cast_slice_mut(theirs));
                    combine(own, theirs);
                }
            }
        }
    }
}
