#!/bin/sh
# Installs the C libraries of Brevity, with header, pkg-config file and CMake package, under PREFIX.
#
#   cargo rustc --release -p brevity-capi --crate-type cdylib,staticlib && capi/install.sh PREFIX [BUILT]
#
# BUILT is the folder with libbrevity_capi.so and .a: by default what the command above builds (without its
# option cargo builds a Rust library beside them, and then optimises none across crates: a call takes 0.1 us
# longer). DESTDIR, where set, is put before PREFIX. What is installed finds its own place, so the tree may be
# moved. Debug information is beside the shared library, as libbrevity.so.ABI.debug, where debuggers find it;
# it may be deleted.
set -eu

fail() {
    echo "install.sh: $1" >&2
    exit "$2"
}

[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] ||
    fail "expected PREFIX [BUILT], as in: capi/install.sh /usr/local" 2
case $1 in
/*) ;;
*) fail "PREFIX is $1, expected an absolute path" 2 ;;
esac

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
built=${2:-${CARGO_TARGET_DIR:-$here/../target}/release}
for library in libbrevity_capi.so libbrevity_capi.a; do
    [ -f "$built/$library" ] ||
        fail "no $library in $built: run cargo rustc --release -p brevity-capi \
--crate-type cdylib,staticlib first" 1
done

header=$here/include/brevity.h
version=$(sed -n 's/^#define BRV_VERSION "\(.*\)"$/\1/p' "$header")
abi=$(sed -n 's/^#define BRV_ABI_VERSION \([0-9]*\)$/\1/p' "$header")
root=${DESTDIR:-}$1

# file SOURCE TARGET: by way of a second name, so that a program that runs with the old file keeps it.
file() {
    cp "$1" "$2.new"
    chmod 644 "$2.new"
    mv -f "$2.new" "$2"
}

# template SOURCE TARGET
template() {
    sed -e "s|@VERSION@|$version|g" -e "s|@ABI@|$abi|g" "$1" >"$2.new"
    chmod 644 "$2.new"
    mv -f "$2.new" "$2"
}

# shared SOURCE TARGET: without debug information, which goes to TARGET.debug.
shared() {
    objcopy --only-keep-debug "$1" "$2.debug.new"
    chmod 644 "$2.debug.new"
    mv -f "$2.debug.new" "$2.debug"
    objcopy --strip-unneeded --add-gnu-debuglink="$2.debug" "$1" "$2.new"
    chmod 755 "$2.new"
    mv -f "$2.new" "$2"
}

command -v objcopy >/dev/null || fail "no objcopy: install binutils first" 1
mkdir -p "$root/include" "$root/lib/pkgconfig" "$root/lib/cmake/brevity"
file "$header" "$root/include/brevity.h"
shared "$built/libbrevity_capi.so" "$root/lib/libbrevity.so.$abi"
ln -sf "libbrevity.so.$abi" "$root/lib/libbrevity.so"
file "$built/libbrevity_capi.a" "$root/lib/libbrevity.a"
template "$here/install/brevity.pc.in" "$root/lib/pkgconfig/brevity.pc"
template "$here/install/brevity-config.cmake.in" "$root/lib/cmake/brevity/brevity-config.cmake"
template "$here/install/brevity-config-version.cmake.in" \
    "$root/lib/cmake/brevity/brevity-config-version.cmake"
