//! The parameter server.

use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::{launch_with, under_valgrind};
use crate::stage::Stage;
use brevity_testing::ucx_is_here;

#[test]
fn workers_lose_nothing() {
    let stage = Stage::new();
    let program = stage.compile("server.c");
    let mut wires = vec![(Choice::Tcp, "1", 1), (Choice::Tcp, "1", 3), (Choice::Tcp, "0", 3)];
    if ucx_is_here() {
        wires.push((Choice::Ucx, "0", 3));
    }
    for (transport, shared_memory, world_size) in wires {
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        launch_with(&variables, transport, &stage, &program, &[], world_size);
    }
}

#[test]
fn servers_run_under_valgrind() {
    under_valgrind("server.c", &[], 2);
}
