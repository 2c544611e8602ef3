#!/usr/bin/env bash
# Kills a rank in every way that takes too long for each change: after each message of every collective on a
# simulated network, and at random times between processes. Takes killed processes back a hundred times on
# each wire, while an exchange makes steps; checks how soon a group goes on after a kill, for which the ranks
# need the processors for themselves, and the accuracies of a training that loses ranks. Counts what Ok-Topk
# sends among up to 128 ranks, and times the sums of Table I of the gTop-k paper among as many; a dense one,
# with 100 MB a rank, among 32. Runs 1,000 steps of an exchange by every method, format of values and
# momentum, for residuals that grow. Then sends 100,000 messages of random lengths among five ranks in random
# order, on every wire.
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
ranks() {
    run cargo test --locked -p brevity-tests --test ranks -- "$@"
}
ranks groups_sim:: --ignored --nocapture --test-threads=2
ranks group_kills:: --ignored --nocapture --test-threads=1
ranks shrink:: --ignored --nocapture --test-threads=2
ranks going_on:: --ignored --nocapture --test-threads=2
ranks grow_sim:: --ignored --nocapture --test-threads=2
ranks exchange_bounds:: --ignored --nocapture
ranks shrink_processes:: --ignored --nocapture --test-threads=1
BREVITY_CYCLES=100 ranks grow_processes:: --nocapture --test-threads=1
run cargo test --locked -p brevity-examples --test survive -- --ignored --nocapture
BREVITY_VOLUME_RANKS=128 ranks ok_topk::volume:: --nocapture --test-threads=1
BREVITY_TABLE_RANKS=128 ranks gtopk_paper:: --skip dense --nocapture --test-threads=1
BREVITY_TABLE_RANKS=32 ranks gtopk_paper::a_dense --nocapture
export BREVITY_MESSAGES=100000 BREVITY_TEST_PATIENCE=10
ranks messages::random messages::simulated::random --test-threads=1
