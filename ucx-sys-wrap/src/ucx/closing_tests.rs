//! Endpoints that do not close in time. Skipped where there is no UCX, unless `BREVITY_REQUIRE_UCX` is 1.

use std::time::Duration;

use super::worlds::{has_ucx, world};

/// UCX ends the process when a worker is destroyed while a request of it is held; this process goes on.
#[test]
fn endpoints_that_do_not_close_in_time_are_left_to_the_worker() {
    if !has_ucx() {
        return;
    }
    for lanes in ["all", "tcp,self"] {
        for turns in [0, 1, 2, 5, 10, 20, 50] {
            leave_early(lanes, turns);
        }
    }
}

/// Two ranks; each turns so often, closes its endpoint without patience, and leaves.
fn leave_early(lanes: &str, turns: usize) {
    std::thread::scope(|threads| {
        for mut ucx in world(2, &[("TLS", lanes)]) {
            threads.spawn(move || {
                ucx.engine.close_endpoints(Duration::ZERO);
                for _ in 0..turns {
                    ucx.engine.progress();
                }
            });
        }
    });
}
