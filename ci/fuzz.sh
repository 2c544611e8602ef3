#!/usr/bin/env bash
# Fuzzes everything that reads bytes of others: each target for so many seconds (10 unless given), from the
# corpus in fuzz/corpus, which is left as it is.
#
#   ci/fuzz.sh [SECONDS] [TARGET...]
#
# What it finds lies in fuzz/artifacts. New inputs that are worth keeping: cargo fuzz cmin TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/setup.sh

seconds=${1:-10}
shift $(($# > 0 ? 1 : 0))

version=0.13.2
if [ "$(cargo fuzz --version 2>/dev/null)" != "cargo-fuzz $version" ]; then
    cargo install cargo-fuzz --version "$version" --locked
fi

# Sanitizers and coverage are not in the stable language, but in the stable compiler.
export RUSTC_BOOTSTRAP=1

targets=("$@")
[ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <(cargo fuzz list)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo fuzz build
for target in "${targets[@]}"; do
    echo "== $target for $seconds s"
    mkdir -p "$work/$target"
    # The first folder gets new inputs, the second is only read.
    cargo fuzz run "$target" "$work/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
done
