#!/bin/sh
# Compares the hand-written bindings in ucx-sys-wrap/pmi/src/pmix/raw.rs with an installed pmix.h: sizes,
# places, constants and signatures. raw.rs asserts the same figures in Rust.
#
# PMIX_INCLUDE is the folder that holds pmix.h.
set -eu

clang=${CLANG:-clang}
include=${PMIX_INCLUDE:-}
if [ -z "$include" ]; then
    multiarch=$("$clang" -print-multiarch 2>/dev/null || gcc -print-multiarch)
    for folder in /usr/include "/usr/lib/$multiarch/pmix2/include"; do
        [ ! -f "$folder/pmix.h" ] || include=$folder
    done
fi
[ -n "$include" ] && [ -f "$include/pmix.h" ] || {
    echo "pmix-bindings: no pmix.h: apt-get install libpmix-dev, or set PMIX_INCLUDE" >&2
    exit 1
}

"$clang" -fsyntax-only -Wno-deprecated-declarations -I"$include" -x c - <<'END' || {
#include <pmix.h>
#include <stddef.h>
#define SAME(type, other) _Static_assert(__builtin_types_compatible_p(type, other), #type)
_Static_assert(PMIX_MAX_NSLEN + 1 == 256 && PMIX_MAX_KEYLEN + 1 == 512, "lengths of names");
_Static_assert(PMIX_SUCCESS == 0 && PMIX_GLOBAL == 3 && PMIX_BOOL == 1 && PMIX_STRING == 3, "constants");
_Static_assert(__builtin_strcmp(PMIX_COLLECT_DATA, "pmix.collect") == 0, "PMIX_COLLECT_DATA");
SAME(pmix_status_t, int);
SAME(pmix_scope_t, unsigned char);
SAME(pmix_data_type_t, unsigned short);
SAME(pmix_rank_t, unsigned int);
_Static_assert(sizeof(pmix_proc_t) == 260 && offsetof(pmix_proc_t, rank) == 256, "pmix_proc_t");
_Static_assert(offsetof(pmix_proc_t, nspace) == 0, "pmix_proc_t");
_Static_assert(sizeof(pmix_value_t) == 32 && offsetof(pmix_value_t, data) == 8, "pmix_value_t");
_Static_assert(offsetof(pmix_value_t, type) == 0, "pmix_value_t");
_Static_assert(sizeof(pmix_info_t) == 552 && offsetof(pmix_info_t, flags) == 512, "pmix_info_t");
_Static_assert(offsetof(pmix_info_t, key) == 0 && offsetof(pmix_info_t, value) == 520, "pmix_info_t");
SAME(__typeof__(PMIx_Init), pmix_status_t(pmix_proc_t *, pmix_info_t *, size_t));
SAME(__typeof__(PMIx_Finalize), pmix_status_t(const pmix_info_t *, size_t));
SAME(__typeof__(PMIx_Put), pmix_status_t(pmix_scope_t, const char *, pmix_value_t *));
SAME(__typeof__(PMIx_Commit), pmix_status_t(void));
SAME(__typeof__(PMIx_Fence), pmix_status_t(const pmix_proc_t *, size_t, const pmix_info_t *, size_t));
SAME(__typeof__(PMIx_Get),
     pmix_status_t(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **));
SAME(__typeof__(PMIx_Error_string), const char *(pmix_status_t));
END
    echo "pmix-bindings: the header in $include differs from ucx-sys-wrap/pmi/src/pmix/raw.rs" >&2
    exit 1
}
echo "pmix-bindings: raw.rs agrees with the header in $include"
