//! Vectors of bytes between two processes, on each wire. `BREVITY_TEST_BYTES` is their length, by default one
//! that takes milliseconds; `ci/large.sh` takes one of more than 2^31.

use brevity::launch::Launch;
use brevity::transport::bootstrap::Choice;
use brevity_testing::ucx_is_here;

const RANK: &str = env!("CARGO_BIN_EXE_rank");

/// One more than a segment, and odd.
const BYTES: usize = (1 << 20) + 17;

fn check(transport: Choice, shared_memory: &str) {
    let bytes = std::env::var("BREVITY_TEST_BYTES").map_or(BYTES, |bytes| bytes.parse().unwrap());
    let launch = Launch::new(RANK, ["long", &bytes.to_string()]).ranks(2).transport(transport);
    let launch = launch.env("BREVITY_SHARED_MEMORY", shared_memory).env("BREVITY_TIMEOUT", "120");
    let outcome = launch.spawn().unwrap().wait().unwrap();
    assert_eq!(outcome.report(), None, "{transport}, shared memory {shared_memory}");
    println!("{transport}, shared memory {shared_memory}: {bytes} bytes are right");
}

#[test]
fn over_sockets() {
    check(Choice::Tcp, "off");
}

#[test]
fn over_shared_memory() {
    check(Choice::Tcp, "on");
}

#[test]
fn over_ucx() {
    if ucx_is_here() {
        check(Choice::Ucx, "off");
    }
}
