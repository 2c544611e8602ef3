#!/usr/bin/env bash
# Compares the estimates of all algorithms of dense collectives with the simulated network, for all numbers of
# ranks up to 1,024 and lengths up to 16 MiB that have room in 2 GiB. CI measures those that take seconds.
#
#   ci/estimates.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

export BREVITY_TEST_ESTIMATES=all
cargo test --locked --release -p brevity-tests --test ranks -- estimates:: --nocapture --test-threads=1
