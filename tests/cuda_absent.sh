#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What hearth says of CUDA where pieces of it are absent: the plug-in itself, then, with libraries made here that have every name
# and do nothing, each of driver, cuDNN and cublasLt; a cuDNN of another version, one that lacks a function, a driver without a
# device. Never an error but for who asks for the device. usage: tests/cuda_absent.sh BUILD_DIR CC CUDA_HOME
set -eu
build=$1 cc=$2 home=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset CUDA_HOME HEARTH_SERVER
n=0
says() { # WORDS: `devices` succeeds and says so; a command on cuda:0 fails and says so
    n=$((n + 1))
    out=$("$prog" --store "$dir/store" devices 2>&1) || { echo "not ok $n - devices failed: $out"; exit 1; }
    case $out in *"$1"*) ;; *) echo "not ok $n - no '$1' in: $out"; exit 1 ;; esac
    out=$("$prog" --store "$dir/store" --device cuda:0,mem=80% ls 2>&1) && { echo "not ok $n - cuda:0 was opened: $out"; exit 1; }
    case $out in *"$1"*) ;; *) echo "not ok $n - no '$1' in: $out"; exit 1 ;; esac
    echo "ok $n - $1"
}
# A program with no plug-in beside it.
mkdir "$dir/bin" "$dir/libs"
cp "$build/hearth" "$dir/bin/"
prog=$dir/bin/hearth
if ldconfig -p 2>/dev/null | grep -q 'libhearth_cuda\.so'; then
    echo "SKIP: no plug-in: one is installed"
else
    says "no CUDA device: the plug-in was not opened: libhearth_cuda.so"
fi
if [ ! -f "$build/libhearth_cuda.so" ]; then
    echo "SKIP: pieces absent below the plug-in: it was not built (no CUDA toolkit)"
    exit 0
fi
cp "$build/libhearth_cuda.so" "$dir/bin/"
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    echo "SKIP: pieces absent below the plug-in: this machine has NVIDIA's driver"
    exit 0
fi
says "no CUDA device: NVIDIA's driver (libcuda.so.1) was not found"
library() { # TABLE PREFIX FILE [DEFINITIONS [WITHOUT]]: a library of the table's names; each call answers 100, "no device"
    names=$(printf '#include "device/cuda/driver.h"\n#define NAME(f) @f\n%s(NAME)\n' "$1" |
        ${cc:-cc} -E -P -I. -isystem "$home/include" -x c - | grep -o "@ *$2[A-Za-z0-9_]*" | tr -d '@ ' | grep -vx "${5:-none}")
    { for f in $names; do
        case ${4:-} in *" $f("*) ;; *) echo "int $f(void) { return 100; }" ;; esac
      done; echo "${4:-}"; } >"$dir/made.c"
    mkdir -p "$(dirname "$3")"
    $cc -shared -fPIC -w -o "$3" "$dir/made.c"
}
CUDA_HOME=$dir/libs
export CUDA_HOME
library HTH_CUDA_DRIVER cu "$dir/libs/libcuda.so.1"
# The toolkit's own libraries would be found in its usual place: a broken one comes first.
echo 'no library' >"$dir/libs/libcudnn.so.9"
[ -e /usr/local/cuda/lib64/libcudnn.so.9 ] || [ -e /usr/local/cuda/lib/libcudnn.so.9 ] || says "cuDNN 9 (libcudnn.so.9) does not load"
library HTH_CUDA_CUDNN cudnn "$dir/libs/libcudnn.so.9" " unsigned long cudnnGetVersion(void) { return 8907; }"
library HTH_CUDA_CUBLASLT cublasLt "$dir/libs/nvidia/cu13/lib/libcublasLt.so.13"
says "libcudnn.so.9 says that it is version 8907; 9 is needed"
library HTH_CUDA_CUDNN cudnn "$dir/libs/libcudnn.so.9" "" cudnnBackendExecute
says "cuDNN 9 (libcudnn.so.9) has no cudnnBackendExecute"
rm "$dir/libs/libcudnn.so.9"
library HTH_CUDA_CUDNN cudnn "$dir/libs/nvidia/cudnn/lib/libcudnn.so.9" " unsigned long cudnnGetVersion(void) { return 91900; }"
says "no CUDA device: NVIDIA's driver: cuInit answered"
echo "1..$n"
