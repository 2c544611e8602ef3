#!/usr/bin/env bash
# Lines of more than 110 columns, in code and in texts. Rows of tables and lines with an address may be
# longer.
set -euo pipefail
cd "$(dirname "$0")/.."

long=$(git ls-files '*.rs' '*.c' '*.cpp' '*.h' '*.sh' '*.py' '*.toml' '*.md' .ci/run bench/compare |
    grep -v '^ucx-sys-wrap/ucx-sys/src/bindings\.rs$' |
    LC_ALL=C.UTF-8 xargs grep -nE '^.{111,}' |
    grep -vE '^[^:]+:[0-9]+:(//[/!] )?\||https?://' || true)
[ -z "$long" ] || {
    cut -c 1-160 <<<"$long" >&2
    echo "ci/columns.sh: expected at most 110 columns: break these lines" >&2
    exit 1
}
