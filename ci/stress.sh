#!/usr/bin/env bash
# Drops, forgets and panics at random for so many seconds on every transport (60 unless given).
#
#   ci/stress.sh [SECONDS]
#
# A plan that fails is printed: BREVITY_STRESS_SEED=... runs it again.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

export BREVITY_REQUIRE_UCX=1 BREVITY_STRESS_SECONDS=${1:-60}
cargo test --locked -p ucx-sys-wrap --test stress -- --nocapture --test-threads=2
cargo test --locked -p brevity-tests --test ranks -- handles --nocapture --test-threads=2
# One after the other: it counts what its process has open.
cargo test --locked -p brevity-tests --test stress -- --nocapture --test-threads=1
