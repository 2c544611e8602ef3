#!/usr/bin/env bash
# Runs the unit tests of lent memory under miri where there is one (a nightly toolchain with the miri
# component), and under valgrind's memcheck otherwise. Says which.
#
#   ci/miri.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests without sockets and without UCX, which miri does not know: buffers, and the transport between threads.
tests=(buffer:: memory::region:: local::)

if cargo +nightly miri --version >/dev/null 2>&1; then
    echo "== miri"
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p ucx-sys-wrap --lib -- "${tests[@]}"
    exit 0
fi

echo "== no miri here (rustup toolchain install nightly --component miri): memcheck instead, which sees less"
. ci/setup.sh
mapfile -t programs < <(
    cargo test --locked -p ucx-sys-wrap --lib --test battery --test stress --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
)
[ "${#programs[@]}" = 3 ] || { echo "expected three test programs, found ${#programs[@]}" >&2; exit 1; }
memcheck=(valgrind --quiet --error-exitcode=99 --leak-check=no --trace-children=no)
"${memcheck[@]}" "${programs[@]:0:1}" "${tests[@]}"
"${memcheck[@]}" "${programs[1]}" over_threads
BREVITY_STRESS_SECONDS=5 "${memcheck[@]}" "${programs[2]}" --exact \
    {messages,puts_and_gets}::{over_threads,over_tcp}
