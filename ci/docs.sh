#!/usr/bin/env bash
# Whether every file that the texts name, and everything that they link, is there.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
for text in ./*.md docs/*.md; do
    folder=$(dirname "$text")
    # Files in code marks: from the top, or inside the transport.
    while read -r file; do
        [ -e "$file" ] || [ -e "ucx-sys-wrap/src/$file" ] || {
            echo "$text names $file, which is not there"
            failed=1
        }
    done < <(grep -oE '`[A-Za-z_.-]+/[A-Za-z0-9_./-]+\.(rs|sh|h|c|toml)`' "$text" | tr -d '`' | sort -u)
    # Links, but for those to elsewhere.
    while read -r link; do
        [ -e "$folder/$link" ] || { echo "$text links $link, which is not there"; failed=1; }
    done < <(grep -oE '\]\([^)]+\)' "$text" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' |
        grep -vE '^$|^https?:' | sort -u)
done
exit "$failed"
