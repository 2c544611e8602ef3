#!/bin/sh
# rustdoc that also checks the error codes of `compile_fail` examples, which the stable one does not:
# RUSTDOC=ci/rustdoc.sh
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
