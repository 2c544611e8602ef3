#!/bin/sh
# Generates ucx-sys-wrap/ucx-sys/src/bindings.rs from the installed UCX headers.
#
#   ci/ucx-bindings.sh            write the file
#   ci/ucx-bindings.sh --check    fail if the file differs from what would be written,
#                                 or if the hand-written twins disagree with the C macros
#
# The bindings are those of UCX 1.13, the oldest version that is supported: later versions only
# append fields, which `field_mask` leaves unread. Other headers are therefore refused.
# BINDGEN names the bindgen program, UCX_INCLUDE the folder that holds ucp/api/ucp.h.
set -eu

bindgen_version=0.72.1
header_version='1, 13'
include=${UCX_INCLUDE:-/usr/include}
bindgen=${BINDGEN:-bindgen}
clang=${CLANG:-clang}
rustfmt=${RUSTFMT:-rustfmt}
root=$(cd "$(dirname "$0")/.." && pwd)
output=$root/ucx-sys-wrap/ucx-sys/src/bindings.rs

fail() {
    echo "ucx-bindings: $*" >&2
    exit 1
}

case ${1:-} in
'' | --check) ;;
*)
    echo "usage: ci/ucx-bindings.sh [--check]" >&2
    exit 2
    ;;
esac

[ -f "$include/ucp/api/ucp.h" ] ||
    fail "no UCX headers in $include: apt-get install libucx-dev (1.13), or set UCX_INCLUDE"
grep -q "UCP_VERSION($header_version)" "$include/ucp/api/ucp_version.h" ||
    fail "$include holds other headers than UCX 1.13" \
        "(found $(grep 'UCP API version is' "$include/ucp/api/ucp_version.h")): set UCX_INCLUDE"
command -v "$clang" >/dev/null ||
    fail "no clang: apt-get install clang, or set CLANG"
command -v "$rustfmt" >/dev/null ||
    fail "no rustfmt: rustup component add rustfmt"
found=$("$bindgen" --version 2>/dev/null) ||
    fail "no bindgen: cargo install bindgen-cli --version $bindgen_version --locked, or set BINDGEN"
[ "$found" = "bindgen $bindgen_version" ] ||
    fail "expected bindgen $bindgen_version, found $found:" \
        "cargo install bindgen-cli --version $bindgen_version --locked"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

functions='
ucp_get_version ucp_get_version_string
ucp_config_read ucp_config_modify ucp_config_release ucp_config_print
ucp_init_version ucp_cleanup
ucp_worker_create ucp_worker_destroy ucp_worker_query ucp_worker_get_address
ucp_worker_release_address ucp_worker_progress ucp_worker_get_efd ucp_worker_arm
ucp_worker_signal ucp_worker_wait ucp_worker_flush_nbx
ucp_ep_create ucp_ep_close_nbx ucp_ep_flush_nbx ucp_ep_query
ucp_tag_send_nbx ucp_tag_send_sync_nbx ucp_tag_recv_nbx ucp_tag_probe_nb ucp_tag_msg_recv_nbx
ucp_worker_set_am_recv_handler ucp_am_send_nbx ucp_am_recv_data_nbx ucp_am_data_release
ucp_request_check_status ucp_request_cancel ucp_request_free
ucp_mem_map ucp_mem_unmap ucp_mem_query
ucp_rkey_pack ucp_rkey_buffer_release ucp_ep_rkey_unpack ucp_rkey_destroy
ucp_put_nbx ucp_get_nbx
ucs_status_string
'

# Enumerations that no signature names: they travel as plain integers in masks and flags.
masks='
ucp_params_field ucp_feature ucp_worker_params_field ucp_worker_flags_t ucp_worker_attr_field
ucp_worker_address_flags_t ucp_ep_params_field ucp_ep_params_flags_field ucp_ep_close_flags_t
ucp_mem_map_params_field ucp_mem_attr_field ucp_op_attr_t ucp_ep_attr_field ucp_dt_type
ucp_wakeup_event_types ucs_config_print_flags_t
ucp_am_handler_param_field ucp_send_am_flags ucp_am_recv_attr_t ucp_am_cb_flags
'

# Values that a signature names become newtypes, never Rust enums: a later library may return others.
newtypes='ucs_status_t ucs_memory_type ucs_thread_mode_t ucp_err_handling_mode_t'

types='
ucp_config_t ucp_params_t ucp_worker_params_t ucp_worker_attr_t ucp_ep_params_t ucp_ep_attr_t
ucp_mem_map_params_t ucp_mem_attr_t ucp_request_param_t ucp_dt_iov_t ucp_tag_recv_info_t
ucp_am_handler_param_t ucp_am_recv_param_t
ucp_context_h ucp_worker_h ucp_ep_h ucp_mem_h ucp_rkey_h ucp_tag_message_h ucs_status_ptr_t
'

alternatives() {
    echo "$@" | tr -s ' \n' '|' | sed 's/^|//; s/|$//'
}

echo '#include <ucp/api/ucp.h>' >"$work/ucx.h"

# Comments are left out: the text of the headers is UCX's own, and stays there.
generate() {
    "$bindgen" "$work/ucx.h" --no-doc-comments --use-core --no-prepend-enum-name \
        --default-enum-style consts --newtype-enum "$(alternatives $newtypes)" \
        --with-derive-default --merge-extern-blocks \
        --blocklist-type 'FILE|_IO_.*|sockaddr' \
        --rust-target 1.88 --rust-edition 2024 --disable-header-comment \
        "$@" -- -I"$include"
}

# Masks are 64 bits wide wherever a `field_mask`, or the features, are.
fields='params|worker_params|worker_attr|ep_params|mem_map_params|mem_attr|ep_attr|am_handler_param'
others='ucp_am_recv_attr_t|ucp_feature|ucp_worker_flags_t|ucp_dt_type'
widen="s/^pub type (ucp_($fields)_field|$others) = .*/pub type \\1 = u64;/"

# The numbers of these two move with every memory type that UCX adds, so nobody may pass them.
unstable='/^ +pub const UCS_MEMORY_TYPE_(LAST|UNKNOWN):/d'

generate --ignore-functions \
    --allowlist-function "$(alternatives $functions)" \
    --allowlist-type "$(alternatives $masks $newtypes $types)" \
    --allowlist-item 'UCP_MEM_MAP_.*|UCP_API_.*|UCP_ENTITY_NAME_MAX' >"$work/types.rs"
generate --generate functions \
    --allowlist-function "$(alternatives $functions)" >"$work/prototypes.rs"
{
    echo "// Generated by ci/ucx-bindings.sh (bindgen $bindgen_version)" \
        "from the headers of UCX 1.13: do not edit."
    echo
    echo 'use crate::{FILE, sockaddr};'
    echo
    sed -E "$widen; $unstable" "$work/types.rs"
    echo
    echo '// What the headers declare. Nothing links against these: `load` checks its own table with them.'
    echo 'pub(crate) mod prototypes {'
    echo 'use super::*;'
    cat "$work/prototypes.rs"
    echo '}'
} >"$work/bindings.rs"
"$rustfmt" --edition 2024 --config-path "$root" "$work/bindings.rs"

if [ "${1:-}" != --check ]; then
    cp "$work/bindings.rs" "$output"
    echo "ucx-bindings: wrote $output"
    exit 0
fi
diff -u "$output" "$work/bindings.rs" ||
    fail "bindings.rs differs from the headers in $include: run ci/ucx-bindings.sh and commit the result"

# The twins of the inline pieces: src/inline.rs tests the same figures.
cat >"$work/inline.c" <<'END'
#include <ucp/api/ucp.h>
_Static_assert(ucp_dt_make_contig(1) == 8, "ucp_dt_make_contig");
_Static_assert(ucp_dt_make_contig(4096) == 32768, "ucp_dt_make_contig");
_Static_assert(ucp_dt_make_iov() == 2, "ucp_dt_make_iov");
_Static_assert(!UCS_PTR_IS_ERR(0) && !UCS_PTR_IS_ERR(4096), "UCS_PTR_IS_ERR");
_Static_assert(!UCS_PTR_IS_ERR(-101) && UCS_PTR_IS_ERR(-100) && UCS_PTR_IS_ERR(-1), "UCS_PTR_IS_ERR");
_Static_assert(!UCS_PTR_IS_PTR(0) && UCS_PTR_IS_PTR(1) && UCS_PTR_IS_PTR(4096), "UCS_PTR_IS_PTR");
_Static_assert(UCS_PTR_IS_PTR(-101) && !UCS_PTR_IS_PTR(-100) && !UCS_PTR_IS_PTR(-1), "UCS_PTR_IS_PTR");
_Static_assert(UCS_PTR_RAW_STATUS(0) == UCS_OK, "UCS_PTR_RAW_STATUS");
_Static_assert(UCS_PTR_RAW_STATUS(-16) == UCS_ERR_CANCELED, "UCS_PTR_RAW_STATUS");
_Static_assert(UCS_PTR_STATUS(0) == UCS_OK && UCS_PTR_STATUS(4096) == UCS_INPROGRESS, "UCS_PTR_STATUS");
_Static_assert(UCS_PTR_STATUS(-25) == UCS_ERR_CONNECTION_RESET, "UCS_PTR_STATUS");
_Static_assert(UCS_STATUS_IS_ERR(-1) && !UCS_STATUS_IS_ERR(0) && !UCS_STATUS_IS_ERR(1), "UCS_STATUS_IS_ERR");
END
"$clang" -fsyntax-only -I"$include" "$work/inline.c" ||
    fail "the inline pieces of the headers in $include differ from src/inline.rs"
echo "ucx-bindings: bindings.rs and inline.rs agree with the headers in $include"
