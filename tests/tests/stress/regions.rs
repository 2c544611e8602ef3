//! Memory that ranks put to and get from.

use brevity::Group;
use brevity::transport::buffer::{Region, RemoteRegion};

use super::RANKS;
use super::member::Member;

/// The words of a region: a part for each rank that puts.
pub const REGION: usize = PART * RANKS as usize;
const PART: usize = 30_000;

/// Opens the regions of all ranks.
pub fn open_all(group: &Group, region: &Region<Vec<u32>>) -> Vec<RemoteRegion> {
    let (key, mut keys) = (region.key().to_bytes(), Vec::new());
    for owner in 0..RANKS {
        let mut length = [key.len() as u32];
        group.broadcast(&mut length, owner).unwrap();
        let mut bytes = if owner == group.rank() { key.clone() } else { vec![0; length[0] as usize] };
        group.broadcast(&mut bytes, owner).unwrap();
        keys.push(group.open_region(owner, &bytes).unwrap());
    }
    keys
}

/// Each puts to another, or itself, and reads it back; its owner finds it.
pub fn around(member: &mut Member) {
    let (group, own) = (member.group.clone(), member.rank());
    let (shift, length) = (member.common.below(RANKS as usize) as u32, 1 + member.common.below(PART));
    let seed = member.common.below(1000) as u32;
    let (to, from) = ((own + shift) % RANKS, (own + RANKS - shift) % RANKS);
    let offset = PART * own as usize * 4;
    group.put(&words(own, seed, length), &member.opened[to as usize], offset).unwrap();
    group.flush(to).unwrap();
    group.barrier().unwrap();
    let mut found = vec![0; length];
    member.region.read(PART * from as usize * 4, &mut found).unwrap();
    assert!(found == words(from, seed, length), "what rank {from} has put");
    group.get(&mut found, &member.opened[to as usize], offset).unwrap();
    assert!(found == words(own, seed, length), "what this rank has put");
    group.barrier().unwrap();
}

pub fn words(rank: u32, seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| index * 7 + seed * 31 + rank).collect()
}
