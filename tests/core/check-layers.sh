#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-layers.sh [ROOT]: fails when a layer reaches where it must not (design.md 2 and 9).
#  - Raw addresses, keys, provider regions and libfabric objects are named only in core/mem, the wire
#    format, the providers, and the files of the core that post (listed here one by one).
#  - Includes go one way: tools -> public headers; core -> provider/provider.h; provider -> its own
#    kind and the public headers.
# Without ROOT it checks this tree, and then that each rule does find a planted breach.
set -uo pipefail

# Core files that post, or that carry a key from a registration into a frame.
posters='core/(grant|link|read)\.[ch]'
raw='\b(struct lieni_(mr|mr_info|key|region)|mr_reg|mr_close|lieni_buf_(addr|region|own_region))\b|\bfid_[a-z]+\b|\bfi_mr_'
# lien-perf's raw side is libfabric without Lien: that is what it measures against.
# lien-trace shows the keys of a frame that it was given.
raw_may="^(core/mem/|core/wire(_call|_impl)?\.[ch]|provider/|tools/lien-perf/raw\.c|tools/lien-trace/text\.c|$posters)"
include='#[[:space:]]*include[[:space:]]*[<"]'
# Tools that look inside (lieni_add_tool(... INTERNAL or PARTS)).
inside='^tools/lien-(sim|trace)/'

bad=0
complain() { # RULE BREACHES
    [ -n "$2" ] || return 0
    printf '%s\n' "$2" | sed "s|^|$1: |"
    bad=1
}

# FILE:LINE:TEXT of what matches $1, comments aside, in the directories that follow.
lines() {
    local pattern=$1
    shift
    grep -rnHsE --include='*.[ch]' -e "$pattern" -- "$@" | grep -vE '^[^:]*:[0-9]+:[[:space:]]*//'
}

check() {
    cd "$1" || exit 2
    bad=0
    complain "raw memory named outside core/mem and provider" \
        "$(lines "$raw" core tools | grep -vE "$raw_may")"
    complain "core includes more than provider/provider.h" \
        "$(lines "$include"'(provider|\.\./|rdma/|infiniband/|libmnl|ucp/)' core |
            grep -vE '"provider/provider\.h"')"
    complain "provider includes upwards" \
        "$(lines "$include"'(core/|shim/|tools/|tests/)' provider)"
    complain "tool includes internals" \
        "$(lines "$include"'(core/|provider/|shim/)' tools | grep -vE "$inside")"
    complain "core/mem/impl.h outside core/mem" \
        "$(lines "$include"'core/mem/impl\.h' core provider tools | grep -vE '^core/mem/')"
    return "$bad"
}

plant() { # FILE TEXT: breach in a copy must be found
    local dir rc
    dir=$(mktemp -d) || exit 2
    mkdir -p "$dir/core/mem" "$dir/provider/tcp" "$dir/tools/lien-x" "$dir/tools/lien-sim"
    printf '%s\n' "$2" >"$dir/$1"
    (check "$dir") >/dev/null
    rc=$?
    rm -rf "$dir"
    return "$rc"
}

must_fail() {
    if plant "$1" "$2"; then
        echo "check-layers does not notice '$2' in $1"
        failed=1
    fi
}

must_pass() {
    if ! plant "$1" "$2"; then
        echo "check-layers complains about '$2' in $1"
        failed=1
    fi
}

failed=0
root=${1-$(cd "$(dirname "$0")/../.." && pwd)}
(check "$root") || failed=1
if [ $# -eq 0 ]; then
    must_fail core/call.c 'struct lieni_mr *mr;'
    must_fail core/call.c 'rc = prov->mr_reg(domain);'
    must_fail core/call.c 'void *p = lieni_buf_addr(buf);'
    must_fail core/call.c 'struct fid_ep *ep;'
    must_fail tools/lien-x/main.c 'struct lieni_key key;'
    must_fail core/conn.c '#include "provider/tcp/tcp.h"'
    must_fail core/conn.c '#include <rdma/fabric.h>'
    must_fail provider/tcp/tcp.c '#include "core/log.h"'
    must_fail tools/lien-x/main.c '#include "core/mem/mem.h"'
    must_fail tools/lien-x/main.c '#include "provider/provider.h"'
    must_fail core/conn.c '#include "core/mem/impl.h"'
    must_pass core/mem/x.c 'struct lieni_mr *mr; #include "core/mem/impl.h"'
    must_pass provider/tcp/tcp.c '#include "provider/provider.h"'
    must_pass core/conn.c '// says struct lieni_mr'
    must_pass tools/lien-sim/x.c '#include "core/mem/mem.h"'
fi
exit "$failed"
