#!/usr/bin/env bash
# Kills a rank in every way that takes too long for each change: after each message of every collective on a
# simulated network, and at random times between processes. Then sends 100,000 messages of random lengths
# among five ranks in random order, on every wire.
#
#   ci/exhaustive.sh
#
# A plan that fails is printed, with its seed and the number of the message.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

export BREVITY_REQUIRE_UCX=1
run() {
    echo "ci/exhaustive.sh: $*"
    "$@"
}
run cargo test --locked -p brevity-tests --test groups_sim -- --ignored --nocapture --test-threads=2
run cargo test --locked -p brevity-tests --test group_kills -- --ignored --nocapture --test-threads=1
export BREVITY_MESSAGES=100000 BREVITY_TEST_PATIENCE=10
run cargo test --locked -p brevity-tests --test messages -- random --test-threads=1
