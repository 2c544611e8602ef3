#!/usr/bin/env bash
# Builds what bench/compare ffi measures: a program in C, against the library that cargo has built in the
# folder BUILT, by default its folder for releases. Library and program go to target/peers/brevity, or to the
# folder brevity in the one that BREVITY_PEERS names.
#
#   bench/peers/ffi.sh [BUILT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${BREVITY_PEERS:-$here/../../target/peers}/brevity"
to=$(cd "${BREVITY_PEERS:-$here/../../target/peers}/brevity" && pwd)
env -u DESTDIR "$here/../../capi/install.sh" "$to" "$@"
"${CC:-cc}" -O2 -I "$to/include" -o "$to/brevity_ffi" "$here/brevity_ffi.c" -L "$to/lib" -lbrevity \
    -Wl,-rpath,"$to/lib"
