#!/usr/bin/env bash
# Compiles everything for 64-bit ARM, and runs the kernels' tests there, in an emulator. Needs Debian, whose
# packages of the compiler come with libraries for other processors. Not a part of CI: it adds an architecture
# to the system's packages.
set -euo pipefail
cd "$(dirname "$0")/.."

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
packages=(rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    "${as_root[@]}" dpkg --add-architecture arm64
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qy --no-install-recommends "${packages[@]}"
fi

export RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc
export CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/aarch64
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static

RUSTFLAGS="-D warnings" cargo check --workspace --all-targets --locked
# Linked statically: in this emulator programs with threads and the dynamic linker hang.
RUSTFLAGS="-C target-feature=+crt-static" cargo test -p brevity-compress --lib --tests --locked
