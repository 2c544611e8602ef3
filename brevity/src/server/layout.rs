//! Which shard has which part of which tensor, and which ranks are workers and servers.

use std::ops::Range;

use super::method::{Servers, Threshold};

/// All tensors, one after the other, cut into equal shards.
pub(super) struct Layout {
    pub(super) tensors: Vec<Tensor>,
    /// The elements of all tensors.
    pub(super) total: usize,
    pub(super) shards: Vec<ShardLayout>,
}

pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) len: usize,
}

/// The elements of one shard.
pub(super) struct ShardLayout {
    /// Where it begins among all elements.
    pub(super) first: usize,
    pub(super) len: usize,
    /// Its parts of tensors, in order.
    pub(super) pieces: Vec<Piece>,
    /// The ranges of the shard in which the largest entries are selected.
    pub(super) lanes: Vec<Range<usize>>,
}

/// A part of a tensor in a shard.
pub(super) struct Piece {
    pub(super) tensor: usize,
    /// In the tensor.
    pub(super) range: Range<usize>,
    /// In the shard.
    pub(super) at: Range<usize>,
}

impl Layout {
    pub(super) fn new(tensors: Vec<Tensor>, shards: usize, threshold: Threshold) -> Self {
        let total = tensors.iter().map(|tensor| tensor.len).sum();
        let cut = |shard: usize| (total as u128 * shard as u128 / shards as u128) as usize;
        let shard = |shard| ShardLayout::new(&tensors, cut(shard)..cut(shard + 1), threshold);
        let shards = (0..shards).map(shard).collect();
        Self { tensors, total, shards }
    }
}

impl ShardLayout {
    fn new(tensors: &[Tensor], elements: Range<usize>, threshold: Threshold) -> Self {
        let mut first = 0;
        let mut pieces = Vec::new();
        for (tensor, Tensor { len, .. }) in tensors.iter().enumerate() {
            let (start, end) = (elements.start.max(first), elements.end.min(first + len));
            if start < end {
                let at = start - elements.start..end - elements.start;
                pieces.push(Piece { tensor, range: start - first..end - first, at });
            }
            first += len;
        }
        let whole = 0..elements.len();
        let lanes = match threshold {
            Threshold::PerTensor => pieces.iter().map(|piece| piece.at.clone()).collect(),
            Threshold::PerShard => Some(whole).filter(|whole| !whole.is_empty()).into_iter().collect(),
        };
        Self { first: elements.start, len: elements.len(), pieces, lanes }
    }

    /// Copies this shard's part of all tensors to `to`.
    pub(super) fn gather<T: AsRef<[f32]>>(&self, tensors: &[T], to: &mut [f32]) {
        for Piece { tensor, range, at } in &self.pieces {
            to[at.clone()].copy_from_slice(&tensors[*tensor].as_ref()[range.clone()]);
        }
    }

    /// The gradient of a lane: the tensor's own memory where the lane is part of one, else a copy in `flat`.
    pub(super) fn gradient<'a, T: AsRef<[f32]>>(
        &self,
        lane: &Range<usize>,
        tensors: &'a [T],
        flat: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        self.scaled(lane, (tensors, &[]), flat).0
    }

    /// The same for gradients that are scaled by a factor for each tensor, if there are any. Returns the
    /// factor by which the lane is still to be scaled.
    pub(super) fn scaled<'a, T: AsRef<[f32]>>(
        &self,
        lane: &Range<usize>,
        (tensors, factors): (&'a [T], &[f32]),
        flat: &'a mut Vec<f32>,
    ) -> (&'a [f32], f32) {
        let factor = |piece: &Piece| factors.get(piece.tensor).copied().unwrap_or(1.0);
        if let Some(piece) = self.pieces.iter().find(|piece| piece.at == *lane) {
            return (&tensors[piece.tensor].as_ref()[piece.range.clone()], factor(piece));
        }
        flat.resize(self.len, 0.0);
        self.gather(tensors, flat);
        for piece in self.pieces.iter().filter(|piece| factor(piece) != 1.0) {
            flat[piece.at.clone()].iter_mut().for_each(|value| *value *= factor(piece));
        }
        (&flat[lane.clone()], 1.0)
    }

    /// The tensor that holds an element of the shard.
    pub(super) fn tensor_at(&self, place: usize) -> usize {
        self.pieces.iter().find(|piece| piece.at.contains(&place)).map_or(0, |piece| piece.tensor)
    }

    /// Calls `change` with each of this shard's parts of the tensors and its place in the shard.
    pub(super) fn for_pieces<T: AsMut<[f32]>>(
        &self,
        tensors: &mut [T],
        mut change: impl FnMut(Range<usize>, &mut [f32]),
    ) {
        for Piece { tensor, range, at } in &self.pieces {
            change(at.clone(), &mut tensors[*tensor].as_mut()[range.clone()]);
        }
    }
}

/// Which ranks of the group work, and which serve, in the order of their numbers.
pub(super) struct Roles {
    pub(super) workers: Vec<u32>,
    pub(super) servers: Vec<u32>,
}

impl Roles {
    /// `None` if there would be no worker or no server.
    pub(super) fn new(world_size: u32, servers: Servers) -> Option<Self> {
        let all = || (0..world_size).collect();
        match servers {
            Servers::EveryRank => Some(Self { workers: all(), servers: all() }),
            Servers::Dedicated(count) if (1..world_size).contains(&count) => Some(Self {
                workers: (0..world_size - count).collect(),
                servers: (world_size - count..world_size).collect(),
            }),
            Servers::Dedicated(_) => None,
        }
    }

    /// Whether servers do not work.
    pub(super) fn is_dedicated(&self) -> bool {
        self.workers != self.servers
    }

    pub(super) fn worker(&self, rank: u32) -> Option<usize> {
        self.workers.iter().position(|worker| *worker == rank)
    }

    pub(super) fn shard(&self, rank: u32) -> Option<usize> {
        self.servers.iter().position(|server| *server == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(lens: &[usize], shards: usize, threshold: Threshold) -> Layout {
        let tensor = |len: &usize| Tensor { name: len.to_string(), shape: vec![*len], len: *len };
        Layout::new(lens.iter().map(tensor).collect(), shards, threshold)
    }

    #[test]
    fn shards_hold_every_element_once() {
        for (lens, shards) in [(&[5, 0, 7, 1][..], 3), (&[1], 4), (&[], 2), (&[100], 1), (&[3, 3, 3], 9)] {
            let layout = layout(lens, shards, Threshold::PerTensor);
            let tensors: Vec<Vec<f32>> = lens.iter().map(|len| vec![1.0; *len]).collect();
            let mut seen: Vec<Vec<f32>> = lens.iter().map(|len| vec![0.0; *len]).collect();
            let mut first = 0;
            for shard in &layout.shards {
                assert_eq!((shard.first, shard.lanes.len()), (first, shard.pieces.len()));
                first += shard.len;
                let mut flat = vec![0.0; shard.len];
                shard.gather(&tensors, &mut flat);
                assert!(flat.iter().all(|value| *value == 1.0));
                shard.for_pieces(&mut seen, |at, piece| {
                    piece.iter_mut().zip(&flat[at]).for_each(|(to, from)| *to += from);
                });
                assert!(shard.len.abs_diff(layout.total / shards) <= 1);
            }
            assert_eq!((first, seen), (layout.total, tensors));
        }
        let whole = &layout(&[4, 4], 2, Threshold::PerShard).shards[1];
        assert!(whole.lanes.len() == 1 && whole.lanes[0] == (0..4));
    }

    #[test]
    fn the_last_ranks_serve() {
        let roles = Roles::new(5, Servers::Dedicated(2)).unwrap();
        assert_eq!((&roles.workers[..], &roles.servers[..]), (&[0, 1, 2][..], &[3, 4][..]));
        assert_eq!((roles.worker(2), roles.worker(3), roles.shard(4)), (Some(2), None, Some(1)));
        assert!(
            Roles::new(2, Servers::Dedicated(2)).is_none() && Roles::new(2, Servers::Dedicated(0)).is_none()
        );
        assert_eq!(Roles::new(2, Servers::EveryRank).unwrap().servers, [0, 1]);
    }
}
