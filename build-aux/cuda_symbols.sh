#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every name in device/cuda/driver.h, as the preprocessor makes it (cuMemAlloc_v2), is in the toolkit's library or, for the
# driver, in its stub. Speaks TAP; exit 1: a name is missing. usage: build-aux/cuda_symbols.sh CC CUDA_HOME
set -eu
cc=$1 home=$2 n=0 bad=0
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
check() { # TABLE PREFIX LIBRARY...: the first library that is there
    table=$1 prefix=$2 n=$((n + 1))
    shift 2
    if [ ! -f "$home/include/cuda.h" ] || [ ! -f "$home/include/cudnn.h" ] || [ ! -f "$home/include/cublasLt.h" ]; then
        echo "ok $n - $table # SKIP no headers of CUDA 13 and cuDNN 9 in $home/include"
        return
    fi
    for lib; do
        [ -f "$lib" ] || continue
        want=$(printf '#include "device/cuda/driver.h"\n#define NAME(f) @f\n%s(NAME)\n' "$table" |
            $cc -E -P -I. -isystem "$home/include" -x c - | grep -o "@ *$prefix[A-Za-z0-9_]*" | tr -d '@ ' | sort -u)
        nm -D --defined-only "$lib" | awk '{sub(/@.*/, "", $3); print $3}' | sort -u >"$tmp"
        missing=$(echo "${want:-no name at all}" | comm -23 - "$tmp")
        if [ -z "$missing" ]; then
            echo "ok $n - $(echo "$want" | wc -l) names of $table are in $lib"
        else
            bad=1
            echo "not ok $n - $lib lacks" $missing
        fi
        return
    done
    echo "ok $n - $table # SKIP none of $* is here"
}
check HTH_CUDA_DRIVER cu "$home/lib64/stubs/libcuda.so" "$home/lib/stubs/libcuda.so"
check HTH_CUDA_CUDNN cudnn "$home/lib64/libcudnn.so.9" "$home/lib/libcudnn.so.9"
check HTH_CUDA_CUBLASLT cublasLt "$home/lib64/libcublasLt.so.13" "$home/lib/libcublasLt.so.13"
echo "1..$n"
exit $bad
