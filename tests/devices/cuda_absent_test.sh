#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What hearth says of CUDA where pieces of it are absent: the plug-in itself, or one of another version; then, with libraries made
# here that have every name and do nothing, the driver, cuDNN and cublasLt, a cuDNN of another version, one that lacks a function,
# a driver without a device; last, the toolkit's own libraries. `hearth devices` succeeds and says it; who asks for cuda:0 is
# refused with the same words. Speaks TAP. usage: tests/devices/cuda_absent_test.sh BUILD_DIR
set -u
build=$1 cc=${CC:-cc} home=${CUDA_HOME:-/usr/local/cuda}
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-cuda.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 143' INT TERM
unset CUDA_HOME HEARTH_SERVER
prog=$dir/bin/hearth n=0
one() { # WANTED_CODE WORDS COMMAND..
    want=$1 words=$2
    shift 2
    out=$("$prog" --store "$dir/store" "$@" 2>&1)
    code=$?
    case $code,$out in "$want",*"$words"*) return 0 ;; esac
    echo "# exit code $code, wanted $want with '$words': $out"
    return 1
}
says() {
    n=$((n + 1))
    if one 0 "$1" devices && one 1 "no CUDA device: " --device cuda:0,mem=80% ls && one 1 "$1" --device cuda:0,mem=80% ls; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
    fi
}
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
finish() { echo "1..$n"; exit 0; }
installed() { ldconfig -p 2>/dev/null | grep -q "$1"; }

if installed 'libcuda\.so\.1'; then
    skip 'gpu-check' "this machine has NVIDIA's driver"
else
    n=$((n + 1))
    out=$(sh tests/gpu/gpu_check.sh "$build" "$dir/check" 2>&1)
    case $?,$out in
    2,"gpu-check: nothing was run on a GPU: "*"no CUDA device: "*) echo "ok $n - gpu-check says that nothing was run" ;;
    *) echo "not ok $n - gpu-check: $out" ;;
    esac
fi
mkdir "$dir/bin" "$dir/libs"
cp "$build/hearth" "$dir/bin/"
if installed 'libhearth_cuda\.so'; then
    skip 'no plug-in' 'one is installed'
else
    says "no CUDA device: the plug-in was not opened: libhearth_cuda.so"
fi
echo 'const void *hth_cuda_plugin(unsigned abi, const void *host) { return 0; }' >"$dir/made.c"
$cc -shared -fPIC -o "$dir/bin/libhearth_cuda.so" "$dir/made.c"
says "libhearth_cuda.so belongs to another version of hearth"
if [ ! -f "$build/libhearth_cuda.so" ]; then
    skip 'pieces absent below the plug-in' "it was not built: no headers of CUDA 13 and cuDNN 9 in $home/include"
    finish
fi
cp "$build/libhearth_cuda.so" "$dir/bin/"
if installed 'libcuda\.so\.1'; then
    skip 'pieces absent below the plug-in' "this machine has NVIDIA's driver"
    finish
fi
says "NVIDIA's driver (libcuda.so.1) was not found"

library() { # TABLE PREFIX FILE [DEFINITION [WITHOUT]]: a library of the table's names; each call answers 100, "no device"
    names=$(printf '#include "device/cuda/driver.h"\n#define NAME(f) @f\n%s(NAME)\n' "$1" |
        $cc -E -P -I. -isystem "$home/include" -x c - | grep -o "@ *$2[A-Za-z0-9_]*" | tr -d '@ ' | grep -vx "${5:-none}")
    { for f in $names; do
        case ${4:-} in *" $f("*) ;; *) echo "int $f(void) { return 100; }" ;; esac
      done; echo "${4:-}"; } >"$dir/made.c"
    mkdir -p "$(dirname "$3")"
    $cc -shared -fPIC -w -o "$3" "$dir/made.c"
}
CUDA_HOME=$dir/libs
export CUDA_HOME
echo 'no library' >"$dir/libs/libcuda.so.1"
says "NVIDIA's driver (libcuda.so.1) does not load: "
library HTH_CUDA_DRIVER cu "$dir/libs/libcuda.so.1" "" cuMemCreate
says "NVIDIA's driver (libcuda.so.1) has no cuMemCreate"
library HTH_CUDA_DRIVER cu "$dir/libs/libcuda.so.1"
library HTH_CUDA_CUDNN cudnn "$dir/libs/libcudnn.so.9" " unsigned long cudnnGetVersion(void) { return 8907; }"
library HTH_CUDA_CUBLASLT cublasLt "$dir/libs/nvidia/cu13/lib/libcublasLt.so.13"
says "libcudnn.so.9 reports version 8907; 9 is needed"
library HTH_CUDA_CUDNN cudnn "$dir/libs/libcudnn.so.9" "" cudnnBackendExecute
says "cuDNN 9 (libcudnn.so.9) has no cudnnBackendExecute"
rm "$dir/libs/libcudnn.so.9"
library HTH_CUDA_CUDNN cudnn "$dir/libs/nvidia/cudnn/lib/libcudnn.so.9" " unsigned long cudnnGetVersion(void) { return 91900; }"
says "NVIDIA's driver: cuInit answered"
for stub in "$home/lib64/stubs/libcuda.so" "$home/lib/stubs/libcuda.so" ''; do
    [ ! -f "$stub" ] || break
done
if [ -n "$stub" ]; then
    rm -r "$dir/libs"
    mkdir "$dir/libs"
    ln -s "$stub" "$dir/libs/libcuda.so.1"
    CUDA_HOME=$dir/libs:$home
    says "NVIDIA's driver: cuInit answered" # of the real libraries
else
    skip "the toolkit's libraries" "no stub of the driver in $home"
fi
finish
