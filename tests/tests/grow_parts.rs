//! A part of the ranks that are left does not grow: each part would become a world of its own.

use std::thread;
use std::time::Duration;

use brevity::collectives::Error;
use brevity::{Group, Join, Settings};
use brevity_testing::worlds::reserved_port;

const WORLD_SIZE: u32 = 4;

/// Only a hang reaches it.
const AMPLE: Duration = Duration::from_secs(60);

fn joined(port: u16, rank: u32) -> Group {
    let join = Join::new(rank, WORLD_SIZE).address(&format!("127.0.0.1:{port}")).port_reserved(true);
    join.key("correct horse battery staple").timeout(AMPLE).settings(Settings::default()).join().unwrap()
}

fn is_refused(part: &Group, others: &str) {
    let error = part.grow(AMPLE).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::NotGrown { .. }), "{error}");
    let why =
        format!("rank {others} of the world is there, and not in this group: call grow on a group of all");
    assert!(error.to_string().contains(&why), "{error}");
    // It is as before.
    part.barrier().unwrap();
}

#[test]
fn parts_do_not_grow_while_ranks_of_others_are_there() {
    let (_reserved, port) = reserved_port();
    let ranks = (0..WORLD_SIZE).map(|rank| {
        thread::spawn(move || {
            let group = joined(port, rank);
            let part = group.split(Some(rank % 2), 0).unwrap().unwrap();
            is_refused(&part, if rank % 2 == 0 { "1, 3" } else { "0, 2" });
            group.barrier().unwrap();
            if rank == 3 {
                return;
            }
            assert!(group.barrier().is_err(), "a rank has gone");
            let left = group.shrink().unwrap();
            let part = left.split(Some(rank % 2), 0).unwrap().unwrap();
            is_refused(&part, if rank % 2 == 0 { "1" } else { "0, 2" });
            // All that are left, also as another group; nobody comes.
            let same = left.duplicate().unwrap();
            assert!(same.grow(Duration::from_millis(300)).unwrap().is_same(&same));
            left.barrier().unwrap();
        })
    });
    ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
}
