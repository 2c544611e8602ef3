//! Worlds of ranks that are threads of one process, for tests.

use std::sync::Barrier;

use parking_lot::Mutex;

use super::{Options, Ucx, available};
use crate::Rank;

/// Whether there is a UCX; fails if there must be one.
pub(super) fn has_ucx() -> bool {
    let why = available().err();
    let is_needed = std::env::var_os("BREVITY_REQUIRE_UCX").is_some_and(|value| value == "1");
    assert!(why.is_none() || !is_needed, "{why:?}");
    why.is_none()
}

/// The ranks of a world, with UCX's settings.
pub(super) fn world(world_size: u32, settings: &[(&str, &str)]) -> Vec<Ucx> {
    world_with_infos(world_size, settings, &|_, _| {})
}

/// Like [`world`], with changed endpoint infos.
pub(super) fn world_with_infos(
    world_size: u32,
    settings: &[(&str, &str)],
    change: &(dyn Fn(Rank, &mut Vec<u8>) + Sync),
) -> Vec<Ucx> {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let options = &Options { settings, ..Options::default() };
    let (infos, met) =
        (&Mutex::new(vec![Vec::new(); world_size as usize]), &Barrier::new(world_size as usize));
    let connect = |rank: Rank| {
        let mut exchange = |own: &[u8]| {
            let mut own = own.to_vec();
            change(rank, &mut own);
            infos.lock()[rank.index()] = own;
            met.wait();
            let all = infos.lock().clone();
            met.wait();
            Ok(all)
        };
        Ucx::connect(rank, world_size, &mut exchange, options).unwrap()
    };
    std::thread::scope(|threads| {
        let ranks: Vec<_> = Rank::all(world_size).map(|rank| threads.spawn(move || connect(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
