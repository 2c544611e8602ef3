#!/usr/bin/env bash
# Formatting, lints, documentation, packages and the files that texts name, with every warning an error.
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

# What is built without a feature, and that it needs no C compiler then.
for features in "" encryption pmi ucx; do
    step cargo clippy -p brevity -p brevity-capi -p brevity-cli --no-default-features --features "$features" \
        --locked -- -D warnings
done
step cargo clippy -p brevity --features svd --locked -- -D warnings
if cargo tree -p brevity --no-default-features --edges normal,build --locked | grep -wE "cc|ring"; then
    echo "ci/check.sh: expected no C compiler to be needed without features" >&2
    exit 1
fi
RUSTDOCFLAGS="-D warnings" step cargo doc --workspace --no-deps --locked

# What is published can be packed: each dependency has a version, and no file is missing.
step cargo package --workspace --exclude brevity-testing --exclude brevity-tests --exclude brevity-examples \
    --no-verify --locked --allow-dirty --quiet

# The bindings to UCX and PMIx against the installed headers.
if [ "$(bindgen --version 2>/dev/null)" != "bindgen 0.72.1" ]; then
    step cargo install bindgen-cli --version 0.72.1 --locked --debug
fi
step ci/ucx-bindings.sh --check
step ci/pmix-bindings.sh
