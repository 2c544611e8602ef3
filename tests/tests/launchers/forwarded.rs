//! A rank 0 that the others reach only through a forwarded port, as in a container.

use std::io::copy;
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::programs::{MPIEXEC, RANK};
use super::run_suite;

/// Forwards connections to a port of this host; returns its own port.
fn forward(to: u16) -> u16 {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = door.local_addr().unwrap().port();
    thread::spawn(move || {
        for outer in door.incoming().flatten() {
            let Ok(inner) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let (mut from, mut into) = (outer.try_clone().unwrap(), inner.try_clone().unwrap());
            thread::spawn(move || copy(&mut from, &mut into));
            let (mut from, mut into) = (inner, outer);
            thread::spawn(move || copy(&mut from, &mut into));
        }
    });
    port
}

/// The ranks meet at the announced port, and rank 1 then connects to it for the mesh: rank 0 listens on its
/// one port both times.
#[test]
fn rank_0_is_reached_at_what_it_announces_under_mpiexec() {
    let Some(mpiexec) = MPIEXEC.found() else { return };
    let first = 22_000 + (std::process::id() % 250) as u16 * 16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let behind = (first..first + 16).find(is_free).unwrap();
    let announced = format!("127.0.0.1:{}", forward(behind));
    let range = format!("{behind}-{behind}");
    let mut command = mpiexec.ranks(1);
    command.args([
        "-env",
        "BREVITY_ANNOUNCE",
        &announced,
        "-env",
        "BREVITY_PORT_RANGE",
        &range,
        RANK,
        "suite",
    ]);
    run_suite(command.args([":", "-n", "1", RANK, "suite"]), 2);
}
