#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The layer check: a folder includes only the folders below it (the house, README.md), and a vendor's headers stay in the one
# place that is theirs. usage: build-aux/layers.sh, from the root. Prints each violation; exit 1 if there is any.
set -eu
bad=0
allow() { # FOLDER ALLOWED...: every project include in FOLDER must start with one of ALLOWED/
    dir=$1
    shift
    pattern=$(printf '%s|' "$@" | sed 's/|$//')
    # Tests may reach up: they bring the pieces together.
    found=$(find "$dir" -maxdepth 1 -name '*.[ch]' ! -name '*_test.c' ! -name 'fixture.h' -exec grep -nHE '^#include "' {} + |
        grep -vE "\"($pattern)/[^\"]*\"" || true)
    [ -z "$found" ] || { echo "$dir may include only $*:"; echo "$found"; bad=1; }
}
only() { # HEADER-REGEX PATH-REGEX: that vendor header only in files that match
    found=$(git ls-files '*.c' '*.h' | xargs grep -nHE "^#include <($1)" | grep -vE "^($2)" || true)
    [ -z "$found" ] || { echo "<$1> belongs to $2:"; echo "$found"; bad=1; }
}
allow base base
allow graph base graph
allow device base device
for d in device/*/ device/cuda/fake/; do allow "${d%/}" base device; done
allow modelstore base graph modelstore
for d in kernels kernels/*/; do allow "${d%/}" base graph device kernels convsel/choice.h convsel; done
allow convsel base graph device kernels convsel
allow memmgr base graph device kernels convsel memmgr
allow client base client
only 'oneapi/|dnnl' 'kernels/cpu/|kernels/dnnl/'
only 'cuda|cudnn|cublas' 'device/cuda/|kernels/cuda/'
only 'lmdb\.h' 'modelstore/'
only 'nng/' 'client/|server/|tests/bench/'
only 'event2?/|event2' 'client/|server/'
up=$(git ls-files '*.c' '*.h' | xargs grep -nHE '^#include *[<"]\.\./' || true)
[ -z "$up" ] || { echo "includes that climb:"; echo "$up"; bad=1; }
exit $bad
