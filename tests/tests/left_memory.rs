//! Memory that was given back is not touched any more, and not sent from, though the peer was stopped in the middle.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use brevity::launch::Launch;
use brevity::transport::bootstrap::Choice;
use brevity_tests::faults::Wire;

const LEAVE: &str = env!("CARGO_BIN_EXE_leave");

/// How the scope is left, bytes of the message, and progress that the other rank makes before it stops.
const CASES: [[&str; 3]; 5] = [
    ["drop", "4000", "before"],
    ["forget", "4000000", "before"],
    ["panic", "300000", "0"],
    ["forget", "40000000", "3"],
    ["drop", "40000000", "30"],
];

fn run(who: &str, wire: Wire) {
    if !wire.is_here() {
        return;
    }
    for [way, bytes, turns] in CASES {
        let choice =
            if matches!(wire, Wire::Tcp | Wire::TcpEncrypted | Wire::TcpShared) { Choice::Tcp } else { Choice::Ucx };
        let mut launch = Launch::new(LEAVE, [who, way, bytes, turns]).ranks(2).transport(choice);
        for (name, value) in wire.environment() {
            launch = launch.env(*name, *value);
        }
        let outcome = launch.spawn().unwrap().wait().unwrap();
        assert_eq!(outcome.report(), None, "{wire:?}: {who} {way} {bytes} {turns}");
    }
}

macro_rules! on_every_wire {
    ($($name:ident: $who:literal, $wire:ident;)*) => {$(
        #[test]
        fn $name() {
            run($who, Wire::$wire);
        }
    )*};
}

on_every_wire! {
    a_receiver_leaves_over_tcp: "receiver", Tcp;
    a_receiver_leaves_over_shared_memory: "receiver", TcpShared;
    a_receiver_leaves_over_ucx_and_shared_memory: "receiver", UcxShared;
    a_receiver_leaves_over_ucx_and_tcp: "receiver", UcxTcp;
    a_receiver_leaves_over_ucx_and_the_memory_of_neighbours: "receiver", UcxNeighbours;
    a_sender_leaves_over_tcp: "sender", Tcp;
    a_sender_leaves_over_shared_memory: "sender", TcpShared;
    a_sender_leaves_over_ucx_and_shared_memory: "sender", UcxShared;
    a_sender_leaves_over_ucx_and_tcp: "sender", UcxTcp;
    a_sender_leaves_over_ucx_and_the_memory_of_neighbours: "sender", UcxNeighbours;
}
