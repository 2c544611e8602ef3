//! The connections of a world: one to each other rank, encrypted or not.

use ucx_sys_wrap::tcp::{Tcp, Wire};
use ucx_sys_wrap::{Error, Rank, Transport};

use super::world::*;

#[test]
fn ranks_that_are_not_connected_to_every_other_are_refused() {
    let wires = |row: &[bool]| -> Vec<Option<Wire>> {
        row.iter().map(|is_there| is_there.then(|| Wire::from(mesh(2)[0][1].take().unwrap()))).collect()
    };
    for row in [&[false, true, false][..], &[true; 3], &[false; 3], &[false, true]] {
        let refused = Tcp::over(Rank(0), 3, wires(row));
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{row:?}");
    }
    assert!(Tcp::over(Rank(0), 3, wires(&[false, true, true])).is_ok());
}

#[test]
fn encryption_costs_a_copy_of_what_is_small_and_none_of_what_is_large() {
    let mut transports = met_encrypted(2);
    let size = 900_000;
    let before = copied(&transports);
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[size]);
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
    assert!(receiving.bytes() == [pattern(1, size)]);
    let after = copied(&transports);
    // A record with the frame's header is gathered from two places, and the remainder at the end is small.
    for (rank, (before, after)) in before.into_iter().zip(after).enumerate() {
        let copied = after - before;
        assert!(copied > 0 && copied < size as u64 / 3, "rank {rank} copied {copied} bytes");
    }
}

/// The bytes that each rank has copied.
fn copied(transports: &[Tcp]) -> Vec<u64> {
    transports.iter().map(|transport| transport.statistics().bytes_copied).collect()
}
