#!/usr/bin/env bash
# Runs every test. Installs what they need first; nothing is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

# UCX, CMake and valgrind are installed above: a test that does not find one must fail.
export BREVITY_REQUIRE_UCX=1 BREVITY_REQUIRE_CMAKE=1 BREVITY_REQUIRE_VALGRIND=1

# So are the launchers; but only root can run Slurm's daemons, make the network namespaces between which links
# are cut, and listen to what others send.
if [ "$(id -u)" = 0 ]; then
    export BREVITY_REQUIRE_LAUNCHERS=1 BREVITY_REQUIRE_NAMESPACES=1 BREVITY_REQUIRE_LISTENING=1
else
    echo "ci/test.sh: not root: no Slurm, no links that are cut, no listening on the network" >&2
fi

if command -v cargo-nextest >/dev/null; then
    # One process a test, and a test that hangs is named and ended (.config/nextest.toml).
    cargo nextest run --workspace --locked --no-fail-fast
else
    cargo test --workspace --locked --all-targets --no-fail-fast
fi
# The error codes of what must not compile are checked too.
RUSTDOC="$PWD/ci/rustdoc.sh" cargo test --workspace --locked --doc

# What goes over UCX once more, on a newer one; and a short part of ci/stress.sh.
if command -v cargo-nextest >/dev/null; then
    # Of the whole workspace, which is built: a part of it would be built again, with other features.
    BREVITY_UCX_LIB=$brevity_new_ucx_lib cargo nextest run --workspace --locked --no-fail-fast \
        -E 'package(brevity-ucx-sys) |
            (package(ucx-sys-wrap) | package(brevity-tests)) & (binary(ucx*) | binary(progress) | test(ucx))'
    BREVITY_STRESS_SECONDS=9 cargo nextest run --workspace --locked --no-fail-fast -E 'binary(stress)'
else
    BREVITY_UCX_LIB=$brevity_new_ucx_lib cargo test -p brevity-ucx-sys --locked --no-fail-fast
    BREVITY_UCX_LIB=$brevity_new_ucx_lib cargo test -p ucx-sys-wrap --locked --no-fail-fast ucx
    BREVITY_UCX_LIB=$brevity_new_ucx_lib cargo test -p ucx-sys-wrap --test ucx --locked --no-fail-fast
    BREVITY_UCX_LIB=$brevity_new_ucx_lib cargo test -p brevity-tests --locked --no-fail-fast ucx
    BREVITY_UCX_LIB=$brevity_new_ucx_lib \
        cargo test -p brevity-tests --test progress --test ucx_troubles --locked --no-fail-fast
    BREVITY_STRESS_SECONDS=9 cargo test -p ucx-sys-wrap --test stress --locked -- --test-threads=2
    BREVITY_STRESS_SECONDS=9 cargo test -p brevity-tests --test stress --locked
fi

# Where unsafe code and hostile bytes meet, with every access checked.
ci/sanitize.sh quick
