//! The addresses that ranks listen on, and those that they announce.

use std::io::copy;
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use ucx_sys_wrap::bootstrap::{Master, Ports, connect_mesh};
use ucx_sys_wrap::tcp::Wire;

use super::world::{AMPLE, Port, error, joined, rank};

/// Ports of this process, below those that the system assigns.
fn range() -> Vec<u16> {
    let first = 10_000 + (std::process::id() % 1000) as u16 * 16;
    (first..first + 16).collect()
}

fn ports(first: u16, last: u16) -> Ports {
    Ports::parse(&format!("{first}-{last}")).unwrap()
}

/// The first port of the range that is free.
fn free() -> u16 {
    range().into_iter().find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).unwrap()
}

/// Rank 0 is given a name, and the others each connect to one of its addresses.
#[test]
fn rank_0_listens_on_every_address_of_its_name() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("skipped: no IPv6");
        return;
    }
    for is_keyed in [false, true] {
        let port = Port::reserve();
        let ranks = (0..).zip(["localhost", "::1", "127.0.0.1", "localhost"]).map(|(number, host)| {
            let mut identity = port.identity(number, 4, AMPLE);
            identity.master.host = host.into();
            identity.key = identity.key.filter(|_| is_keyed);
            rank(identity, |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous))
        });
        for rank in ranks.collect::<Vec<_>>() {
            rank.join().unwrap().unwrap();
        }
    }
}

#[test]
fn ranks_listen_on_ports_of_the_range() {
    let port = Port::reserve();
    let (first, last) = (range()[0], range()[15]);
    let ranks = (0..4).map(|number| {
        let mut identity = port.identity(number, 4, AMPLE);
        identity.ports = ports(first, last);
        rank(identity, |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous))
    });
    for (number, rank) in ranks.collect::<Vec<_>>().into_iter().enumerate() {
        for (peer, wire) in rank.join().unwrap().unwrap().iter().enumerate() {
            let Some(socket) = wire.as_ref().map(Wire::socket) else { continue };
            let listened = if peer < number { socket.peer_addr() } else { socket.local_addr() };
            assert!((first..=last).contains(&listened.unwrap().port()));
        }
    }
}

#[test]
fn a_range_without_a_free_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _taken = TcpListener::bind(("127.0.0.1", taken)).unwrap();
    let port = Port::reserve();
    let root =
        rank(port.identity(0, 2, AMPLE), |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous));
    let mut identity = port.identity(1, 2, AMPLE);
    identity.ports = ports(taken, taken);
    let told =
        error(rank(identity, |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous))).to_string();
    let expected =
        format!("can't listen on 127.0.0.1: no port of BREVITY_PORT_RANGE={taken}-{taken} is free");
    assert_eq!(told, expected);
    error(root);
}

/// Forwards one connection after the other, like a forwarded port.
fn forward(to: u16) -> u16 {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = door.local_addr().unwrap().port();
    thread::spawn(move || {
        for outer in door.incoming().flatten() {
            let Ok(inner) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            for (mut from, mut to) in [(outer.try_clone(), inner.try_clone()), (Ok(inner), Ok(outer))]
                .map(|(from, to)| (from.unwrap(), to.unwrap()))
            {
                thread::spawn(move || copy(&mut from, &mut to));
            }
        }
    });
    port
}

#[test]
fn peers_connect_to_the_address_that_is_announced() {
    let port = Port::reserve();
    let behind = free();
    let forwarded = forward(behind);
    let mut root = port.identity(0, 2, AMPLE);
    root.ports = ports(behind, behind);
    root.announce = Some(Master { host: "127.0.0.1".into(), port: forwarded });
    let mesh = |identity| rank(identity, |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous));
    let (root, other) = (mesh(root), mesh(port.identity(1, 2, AMPLE)));
    let of_root = root.join().unwrap().unwrap();
    let of_other = other.join().unwrap().unwrap();
    let (of_root, of_other) = (of_root[1].as_ref().unwrap().socket(), of_other[0].as_ref().unwrap().socket());
    assert_eq!(of_root.local_addr().unwrap().port(), behind);
    assert_eq!(of_other.peer_addr().unwrap().port(), forwarded);
}

/// With a key, a rank 0 that was given `localhost` also waits for ranks of other hosts.
#[test]
fn a_rank_that_comes_over_another_address_of_the_host_finds_rank_0_behind_localhost() {
    let outside = if_addrs::get_if_addrs().unwrap().into_iter().map(|interface| interface.ip());
    let Some(outside) = outside.filter(IpAddr::is_ipv4).find(|address| !address.is_loopback()) else {
        println!("skipped: no network interface but loopback");
        return;
    };
    let port = free();
    let identity = |number: u32, host: String| {
        let mut identity = Port::reserve().identity(number, 2, AMPLE);
        (identity.master, identity.port_reserved) = (Master { host, port }, false);
        identity
    };
    let root = rank(identity(0, "localhost".into()), joined);
    rank(identity(1, outside.to_string()), joined).join().unwrap().unwrap();
    root.join().unwrap().unwrap();
}
