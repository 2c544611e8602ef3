//! Ranks that fork, like programs whose data is loaded by child processes, over every wire between processes
//! of one host.

use std::time::Duration;

use brevity::launch::{Ending, Launch};
use brevity_testing::ucx_is_here;
use ucx_sys_wrap::bootstrap::Choice;

use crate::stage::{DEADLINE, Stage};

/// The settings that select a wire.
type Settings = &'static [(&'static str, &'static str)];

const SOCKETS: (Choice, Settings) = (Choice::Tcp, &[("BREVITY_SHARED_MEMORY", "0")]);
const SHARED: (Choice, Settings) = (Choice::Tcp, &[("BREVITY_SHARED_MEMORY", "1")]);
const UCX: (Choice, Settings) = (Choice::Ucx, &[("BREVITY_SHARED_MEMORY", "0")]);
const UCX_TCP: (Choice, Settings) = (Choice::Ucx, &[("BREVITY_SHARED_MEMORY", "0"), ("UCX_TLS", "tcp,self")]);
const UCX_SHARED: (Choice, Settings) =
    (Choice::Ucx, &[("BREVITY_SHARED_MEMORY", "1"), ("UCX_TLS", "tcp,self")]);

/// The deadline of calls: an error must come before it.
const FAR: &str = "40";

/// Makes a test of `body` for each wire.
macro_rules! on_every_wire {
    ($($name:ident => $body:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn over_tcp() {
                $body(SOCKETS);
            }

            #[test]
            fn over_tcp_and_shared_memory() {
                $body(SHARED);
            }

            #[test]
            fn over_ucx() {
                $body(UCX);
            }

            #[test]
            fn over_ucx_and_tcp() {
                $body(UCX_TCP);
            }

            #[test]
            fn over_ucx_and_the_memory_of_local_peers() {
                $body(UCX_SHARED);
            }
        }
    )*};
}

on_every_wire! {
    a_rank_that_dies_is_lost_though_its_child_lives => dies;
    a_child_that_frees_the_group_leaves_that_of_its_parent_alone => drops;
    a_child_that_makes_calls_is_refused => calls;
}

fn dies(wire: (Choice, Settings)) {
    if let Some(endings) = run(wire, "dies", "0") {
        assert_eq!(endings, [Ending::Exited(0), Ending::Killed(9), Ending::Exited(0)]);
    }
}

fn drops(wire: (Choice, Settings)) {
    // A progress thread does not exist in the child, and the child must not wait for it.
    for progress_thread in ["0", "1"] {
        if let Some(endings) = run(wire, "drops", progress_thread) {
            assert_eq!(endings, [Ending::Exited(0); 3], "with {progress_thread} progress threads");
        }
    }
}

fn calls(wire: (Choice, Settings)) {
    for progress_thread in ["0", "1"] {
        if let Some(endings) = run(wire, "calls", progress_thread) {
            assert_eq!(endings, [Ending::Exited(0); 3], "with {progress_thread} progress threads");
        }
    }
}

/// The endings of three ranks of which one forks; `None` without what the wire needs.
fn run((transport, settings): (Choice, Settings), way: &str, progress_thread: &str) -> Option<Vec<Ending>> {
    if transport == Choice::Ucx && !ucx_is_here() {
        return None;
    }
    let stage = Stage::new();
    let program = stage.compile_plain("forks.c");
    let mut launch = Launch::new(program, [way]).ranks(3).transport(transport).grace(DEADLINE);
    launch = launch.env("BREVITY_TIMEOUT", FAR).env("BREVITY_PROGRESS_THREAD", progress_thread);
    for (name, value) in settings {
        launch = launch.env(*name, *value);
    }
    let job = launch.spawn().unwrap();
    let (report, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || report.send(job.wait().unwrap()));
    Some(outcome.recv_timeout(DEADLINE + Duration::from_secs(10)).unwrap().endings)
}
