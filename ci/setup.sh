#!/usr/bin/env bash
# Installs what the checks and tests need beyond the Rust toolchain. Sourced; says what is missing where it
# can't. What users need is less: the library itself needs nothing but cargo.

# What tests use: UCX to test its transport; gcc, g++, make, cmake, pkg-config and valgrind for the C ABI;
# clang for bindgen; ip for network namespaces, in which links are cut, libpmix-dev to compare the bindings
# with; and the launchers that start ranks in tests.
brevity_packages=(libucx0 libucx-dev gcc g++ libc6-dev make cmake clang pkg-config valgrind iproute2
    libpmix-dev openmpi-bin mpich slurm-wlm)

# Of no use to scripts that build everything once, and gigabytes.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

brevity_missing() {
    local package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null |
            grep -q '^install ok installed$' || echo "$package"
    done
}

if command -v dpkg-query >/dev/null; then
    mapfile -t missing < <(brevity_missing "${brevity_packages[@]}")
    if [ "${#missing[@]}" -gt 0 ]; then
        as_root=()
        [ "$(id -u)" = 0 ] || as_root=(sudo)
        "${as_root[@]}" apt-get update -q
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -qy --no-install-recommends "${missing[@]}"
    fi
else
    echo "ci/setup.sh: no dpkg here: install the equivalents of ${brevity_packages[*]} yourself" >&2
fi

# A newer UCX, on which the tests of its transport run as well: a wheel that holds the library, beside the
# system's.
brevity_new_ucx=1.22.0
brevity_new_ucx_folder=$PWD/target/ucx/$brevity_new_ucx
brevity_new_ucx_lib=$brevity_new_ucx_folder/libucx/lib/libucp.so.0
if [ ! -f "$brevity_new_ucx_lib" ]; then
    python3 -m pip install --quiet --no-deps --upgrade --target "$brevity_new_ucx_folder" \
        "libucx-cu12==$brevity_new_ucx" || {
        echo "ci/setup.sh: can't install libucx-cu12 $brevity_new_ucx: is there a python3 with pip?" >&2
        exit 1
    }
fi

for component in rustfmt clippy; do
    cargo "${component/rustfmt/fmt}" --version >/dev/null || {
        echo "ci/setup.sh: no $component: run 'rustup component add $component'" >&2
        exit 1
    }
done
