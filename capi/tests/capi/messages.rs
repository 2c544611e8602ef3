//! Messages, memory that peers access, and what a group and the log tell, on each transport.

use std::process::Command;

use brevity_testing::ucx_is_here;
use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::{launch_with, under_valgrind};
use crate::solo::alone;
use crate::stage::{Stage, run};

/// A transport, whether ranks share memory, and whether a thread makes progress.
const WAYS: [(Choice, &str, &str); 4] =
    [(Choice::Tcp, "0", "0"), (Choice::Tcp, "1", "0"), (Choice::Tcp, "0", "1"), (Choice::Ucx, "0", "0")];

fn on_each_transport(name: &str, worlds: &[u32], arguments: &[&str]) {
    let stage = Stage::new();
    let program = stage.compile(name);
    for (transport, shared_memory, progress_thread) in WAYS {
        if transport == Choice::Ucx && !ucx_is_here() {
            continue;
        }
        // Regions that peers can still access over UCX are kept until the process ends.
        let leaks = ("ASAN_OPTIONS", if transport == Choice::Ucx { "detect_leaks=0" } else { "" });
        let variables =
            [("BREVITY_SHARED_MEMORY", shared_memory), ("BREVITY_PROGRESS_THREAD", progress_thread), leaks];
        for &world_size in worlds {
            launch_with(&variables, transport, &stage, &program, arguments, world_size);
        }
    }
}

#[test]
fn messages_of_any_length_and_source() {
    on_each_transport("messages.c", &[1, 2, 4], &[]);
}

#[test]
fn messages_under_valgrind() {
    under_valgrind("messages.c", &[], 2);
}

#[test]
fn memory_that_peers_access() {
    on_each_transport("one_sided.c", &[2, 3], &[]);
}

#[test]
fn memory_that_peers_access_under_valgrind() {
    under_valgrind("one_sided.c", &[], 2);
}

#[test]
fn a_group_tells_that_a_rank_has_died() {
    on_each_transport("status.c", &[2, 4], &["lost"]);
}

#[test]
fn a_group_tells_that_a_rank_has_aborted_it() {
    on_each_transport("status.c", &[2, 4], &["abort"]);
}

#[test]
fn the_log_goes_to_a_function() {
    let stage = Stage::new();
    let program = stage.compile("log_callback.c");
    for (way, lines) in
        [("first", "1 0"), ("errors", "0 0"), ("replaced", "0 1"), ("ended", "0 0"), ("stderr", "0 0")]
    {
        let output = run(alone(Command::new(&program).arg(way)));
        assert!(output.ends_with(&format!("{lines}\n")), "{way}: {output}");
        assert_eq!(output.contains("brevity: warning: "), way == "stderr", "{way}: {output}");
    }
}
