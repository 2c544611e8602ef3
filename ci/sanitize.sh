#!/usr/bin/env bash
# Runs the tests of the transports under AddressSanitizer and ThreadSanitizer, and those of the kernels of
# compression under AddressSanitizer: the crates that have unsafe code.
#
#   ci/sanitize.sh [address|thread]    all of it, or one of the two
#   ci/sanitize.sh quick               what ci/test.sh does: the transport's unit tests under AddressSanitizer
#
# The stable compiler has both, though the stable language does not (RUSTC_BOOTSTRAP). The standard library is
# not instrumented: that would take its sources, which not every toolchain has. For AddressSanitizer that
# costs what happens inside it; for ThreadSanitizer it means that what the standard library's own atomics
# order is not seen, so the reports that come from that are named in ci/tsan.supp, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 BREVITY_REQUIRE_UCX=1 BREVITY_STRESS_SECONDS=${BREVITY_STRESS_SECONDS:-5}
# Under ThreadSanitizer, beside other work, a case of a second has taken most of a minute.
export BREVITY_TEST_PATIENCE=${BREVITY_TEST_PATIENCE:-10}

prepare_address() {
    echo "== AddressSanitizer"
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/address RUSTFLAGS="-Zsanitizer=address"
    # UCX keeps what it allocates until the process ends; its own hooks on memory calls and the sanitizer's
    # get in each other's way.
    export ASAN_OPTIONS=detect_leaks=0 UCX_MEM_EVENTS=no
}

quick() {
    prepare_address
    # Compiling takes longer here than running.
    export CARGO_PROFILE_DEV_OPT_LEVEL=1
    cargo test --locked --target "$host" -p ucx-sys-wrap --lib --test local
    cargo test --locked --target "$host" -p ucx-sys-wrap --test battery over_threads
}

address() {
    prepare_address
    cargo test --locked --target "$host" -p ucx-sys-wrap --lib --test battery --test local --test tcp \
        --test ucx --test stress
    # Few cases of each property: they are to meet every kernel and every end of a vector, not every value.
    PROPTEST_CASES=${PROPTEST_CASES:-16} \
        cargo test --locked --target "$host" -p brevity-compress --lib --tests
}

thread() {
    echo "== ThreadSanitizer"
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/thread
    export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
    export TSAN_OPTIONS="halt_on_error=0 suppressions=$PWD/ci/tsan.supp"
    # What tests panic with on purpose would be printed with a backtrace, from a cache whose lock is not seen.
    export RUST_BACKTRACE=0
    # UCX is not instrumented: nothing could be said about what happens inside it. The harness catches what
    # tests print in memory of its own, which is not instrumented either.
    cargo test --locked --target "$host" -p ucx-sys-wrap --lib -- --nocapture local:: buffer:: shm::
    cargo test --locked --target "$host" -p ucx-sys-wrap --test battery --test tcp -- --nocapture \
        --skip ucx battery
    cargo test --locked --target "$host" -p ucx-sys-wrap --test stress -- --nocapture --skip ucx
    # Programs in C with requests of several threads and callbacks, compiled with the sanitizer as well.
    CAPI_THREAD_SANITIZED=1 \
        cargo test --locked --target "$host" -p brevity-capi --test capi -- --nocapture over_tcp_with_threads
}

case ${1:-both} in
quick) quick ;;
address) address ;;
thread) thread ;;
both) (address) && (thread) ;;
*)
    echo "usage: ci/sanitize.sh [address|thread|quick]" >&2
    exit 2
    ;;
esac
