//! Memory that was given back is no longer written, and no longer sent from, even if the peer was stopped in
//! the middle.

use brevity::launch::Launch;
use brevity_testing::{Wire, on_every_wire_of_processes};

const LEAVE: &str = env!("CARGO_BIN_EXE_leave");

/// How the scope is left, the bytes of the message, and when the other rank is stopped.
type Case = [&'static str; 3];

const MESSAGES: [Case; 5] = [
    ["drop", "4000", "before"],
    ["forget", "4000000", "before"],
    ["panic", "300000", "0"],
    ["forget", "40000000", "3"],
    ["drop", "40000000", "middle"],
];

const VISITS: [Case; 2] = [["forget", "40000000", "middle"], ["panic", "40000000", "middle"]];

fn run(who: &str, cases: &[Case], wire: Wire) {
    for [way, bytes, when] in cases {
        let mut launch = Launch::new(LEAVE, [who, *way, *bytes, *when]).ranks(2).transport(wire.choice());
        for (name, value) in wire.environment() {
            launch = launch.env(*name, *value);
        }
        let outcome = launch.spawn().unwrap().wait().unwrap();
        assert_eq!(outcome.report(), None, "{wire:?}: {who} {way} {bytes} {when}");
    }
}

on_every_wire_of_processes! {
    a_receiver_leaves => |wire| run("receiver", &MESSAGES, wire);
    a_sender_leaves => |wire| run("sender", &MESSAGES, wire);
    a_visitor_leaves => |wire| run("visitor", &VISITS, wire);
}
