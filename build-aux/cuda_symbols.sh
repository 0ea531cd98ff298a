#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every name in device/cuda/driver.h, as the preprocessor makes it (cuMemAlloc_v2), is in the toolkit's library or, for the
# driver, in its stub. usage: build-aux/cuda_symbols.sh CC CUDA_HOME. Prints what is missing (exit 1), or SKIP per library.
set -eu
cc=$1 home=$2
[ -f "$home/include/cuda.h" ] && [ -f "$home/include/cudnn.h" ] && [ -f "$home/include/cublasLt.h" ] ||
    { echo "SKIP: names in the CUDA table: no headers of CUDA 13 and cuDNN 9 in $home/include"; exit 0; }
bad=0
check() { # TABLE PREFIX LIBRARY...: the first library that is there
    table=$1 prefix=$2
    shift 2
    for lib; do
        [ -f "$lib" ] || continue
        want=$(printf '#include "device/cuda/driver.h"\n#define NAME(f) @f\n%s(NAME)\n' "$table" |
            $cc -E -P -I. -isystem "$home/include" -x c - | grep -o "@ *$prefix[A-Za-z0-9_]*" | tr -d '@ ' | sort -u)
        [ -n "$want" ] || { echo "$table: no names found"; bad=1; return; }
        nm -D --defined-only "$lib" | awk '{sub(/@.*/, "", $3); print $3}' | sort -u >"$tmp"
        missing=$(echo "$want" | comm -23 - "$tmp")
        [ -z "$missing" ] || { echo "$lib has no: $missing"; bad=1; }
        echo "ok: $(echo "$want" | wc -l) names of $table are in $lib"
        return
    done
    echo "SKIP: $table: none of $* is here"
}
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
check HTH_CUDA_DRIVER cu "$home/lib64/stubs/libcuda.so" "$home/lib/stubs/libcuda.so"
check HTH_CUDA_CUDNN cudnn "$home/lib64/libcudnn.so.9" "$home/lib/libcudnn.so.9"
check HTH_CUDA_CUBLASLT cublasLt "$home/lib64/libcublasLt.so.13" "$home/lib/libcublasLt.so.13"
exit $bad
