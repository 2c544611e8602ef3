//! Endpoints that do not close in time. Skipped where there is no UCX, unless `BREVITY_REQUIRE_UCX` is 1.

use std::sync::Barrier;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Options, Ucx, available};
use crate::Rank;

/// UCX ends the process when its worker goes while somebody still has a request of it: this one goes on.
#[test]
fn endpoints_that_do_not_close_in_time_are_left_to_the_worker() {
    if let Err(why) = available() {
        assert!(std::env::var_os("BREVITY_REQUIRE_UCX").is_none_or(|value| value != "1"), "{why}");
        return;
    }
    for lanes in ["all", "tcp,self"] {
        for turns in [0, 1, 2, 5, 10, 20, 50] {
            leave_early(lanes, turns);
        }
    }
}

/// Two ranks; each has no patience with its endpoint, turns so often, and leaves.
fn leave_early(lanes: &str, turns: usize) {
    let options = &Options { settings: vec![("TLS".into(), lanes.into())], ..Options::default() };
    let (cards, met) = (&Mutex::new(vec![Vec::new(); 2]), &Barrier::new(2));
    std::thread::scope(|threads| {
        for rank in Rank::all(2) {
            threads.spawn(move || {
                let mut exchange = |own: &[u8]| {
                    cards.lock()[rank.index()] = own.to_vec();
                    met.wait();
                    let all = cards.lock().clone();
                    met.wait();
                    Ok(all)
                };
                let mut ucx = Ucx::connect(rank, 2, &mut exchange, options).unwrap();
                ucx.engine.close_endpoints(Duration::ZERO);
                for _ in 0..turns {
                    ucx.engine.progress();
                }
            });
        }
    });
}
