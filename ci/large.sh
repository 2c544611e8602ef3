#!/usr/bin/env bash
# All-reduce, broadcast, reduce-scatter and all-gather of 2^31 + 17 bytes between two processes, over sockets,
# shared memory and UCX, checked in content. Takes 9 GiB of memory and some minutes.
#
#   ci/large.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

export BREVITY_REQUIRE_UCX=1 BREVITY_TEST_BYTES=$((2 ** 31 + 17))
cargo test --locked -p brevity-tests --test ranks -- long:: --nocapture --test-threads=1
