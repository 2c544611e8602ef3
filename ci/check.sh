#!/usr/bin/env bash
# Formatting, lints, documentation and the files that texts name, with every warning an error.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

step() {
    echo "== $*"
    "$@"
}

step cargo fmt --all --check
step ci/columns.sh
step ci/docs.sh
step cargo clippy --workspace --all-targets --locked -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --workspace --no-deps --locked

# The bindings to UCX and PMIx against the installed headers.
if [ "$(bindgen --version 2>/dev/null)" != "bindgen 0.72.1" ]; then
    step cargo install bindgen-cli --version 0.72.1 --locked
fi
step ci/ucx-bindings.sh --check
step ci/pmix-bindings.sh
