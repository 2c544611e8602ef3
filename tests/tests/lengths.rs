//! Lengths that a peer only says it has: no memory is touched for them, and none is taken beyond what there
//! is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::read_to_string;

use brevity::Group;
use brevity::collectives::dense::{AllGather, Lengths};
use brevity::collectives::{Chunk, Description, Element, Error, Operation};
use brevity::transport::Rank;
use brevity_tests::on_local;

const GIBIBYTE: u64 = 1 << 30;

/// A line of a file of /proc, in bytes.
fn kibibytes(path: &str, line: &str) -> u64 {
    let text = read_to_string(path).unwrap();
    let found = text.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    1024 * found.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// The error of rank 0, which gathers three bytes of each rank. The others say that they have `claimed`, and
/// send three.
fn gather(world_size: u32, claimed: u64) -> Error {
    let ends = on_local(world_size, move |group| {
        if group.rank() == 0 {
            group.all_gather_varying(vec![1u8; 3]).map(drop)
        } else {
            claim(group, claimed)
        }
    });
    ends.into_iter().next().unwrap().unwrap_err()
}

fn claim(group: &Group, claimed: u64) -> brevity::collectives::Result<()> {
    let (rank, world_size) = (group.rank(), group.world_size());
    group.run(Description::new(Operation::ALL_GATHER, u8::TYPE.number(), 0), async |call| {
        let mut lengths = vec![0u64; world_size as usize];
        lengths[rank as usize] = claimed;
        call.run_in_place(&AllGather::new::<u64>(Lengths::Equal), Chunk::from(lengths)).await?;
        call.send((rank + 1) % world_size, world_size - 1, vec![1u8; 3]).await?;
        // Rank 0 ends the call.
        call.recv((rank + world_size - 1) % world_size, world_size, vec![0u8; 1]).await.map(drop)
    })
}

#[test]
fn memory_that_is_never_filled_is_never_touched() {
    let before = kibibytes("/proc/self/status", "VmHWM");
    let error = gather(2, GIBIBYTE);
    assert!(matches!(&error, Error::Payload { rank: Rank(1), .. }), "{error}");
    assert!(error.to_string().contains("expected [1073741824]"), "{error}");
    let grown = kibibytes("/proc/self/status", "VmHWM") - before;
    assert!(grown < GIBIBYTE / 4, "{grown} bytes were touched");
}

#[test]
fn more_than_there_is_memory_for_is_refused() {
    let memory = kibibytes("/proc/meminfo", "MemTotal");
    for (world_size, claimed, named) in [(2, 2 * memory, 1), (2, u64::MAX, 1), (3, memory / 10 * 7, 2)] {
        let error = gather(world_size, claimed);
        assert!(matches!(&error, Error::Payload { rank, .. } if rank.0 == named), "{error}");
        assert!(error.to_string().contains("more than there is memory for"), "{error}");
    }
}
