#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gpu-check itself, over the fake driver as a plug-in: every part runs, finds nothing wrong, and keeps no figure; a part that is
# done is not done again; a part that is not known and a time that is up are said. Speaks TAP. usage: tests/gpu_check_test.sh BUILD_DIR
set -u
build=$1 n=0
if [ ! -e "$build/fake/libhearth_cuda.so" ]; then
    echo '1..0 # SKIP no headers of CUDA 13 and cuDNN 9'
    exit 0
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-gpu-check.XXXXXX")
trap 'rm -rf "$dir"' EXIT INT TERM
unset CUDA_HOME HEARTH_SERVER HEARTH_GPU OUT
mkdir -p "$dir/build/kernels/cuda" "$dir/build/tests" "$dir/models"
root=$(pwd)
case $build in /*) ;; *) build=$root/$build ;; esac
cp "$build/hearth" "$build/hearthd" "$build/fake/libhearth_cuda.so" "$dir/build/"
for t in elementwise norm gemm train_ops train_rare; do ln -s "$build/kernels/cuda/${t}_test" "$dir/build/kernels/cuda/"; done
for t in probe speed; do ln -s "$build/tests/cuda_${t}_test" "$dir/build/tests/"; done
ln -s "$root/tests/data/digits/untrained.onnx" "$dir/models/untrained.onnx"
ln -s "$root/tests/data/digits/digits.onnx" "$dir/models/untrained-infer.onnx"
check() { # WANTED_CODE WORDS..: of what the last run said
    n=$((n + 1)) want=$1
    shift
    missing=
    for w; do case $said in *"$w"*) ;; *) missing="$missing [$w]" ;; esac; done
    if [ "$code" = "$want" ] && [ -z "$missing" ]; then
        echo "ok $n - $1"
    else
        printf '%s\n' "$said" | sed 's/^/# /'
        for f in "$dir"/out/*.log; do [ ! -e "$f" ] || tail -2 "$f" | sed "s|^|# ${f##*/}: |"; done
        echo "not ok $n - code $code, wanted $want; missing:$missing"
    fi
}
run() { # PARTS SECONDS
    said=$(GPU_PARTS=$1 GPU_SECONDS=$2 GPU_MEM=60% GPU_NETWORKS=untrained:50 GPU_MODELS=$dir/models GPU_NO_TORCH=1 GPU_PAGEIN=untrained-infer \
        GPU_PRECISIONS='fp32 tf32' GPU_RATIOS=0.9 GPU_POLICIES=hearth,keep sh tests/gpu_check.sh "$dir/build" "$dir/out" 2>&1)
    code=$?
}
run 'machine probes ops answers training speed' 600
check 0 'device suite, captures, probes' 'operators: norm' 'answers of digits, against the CPU' 'training: whole against graphless' 'the same bits' \
    'speed of operators' 'nothing here is a measurement'
run 'models profiles bench policies pagein' 600
check 0 'profile untrained, batch 50, tf32' 'train untrained, batch 50, fp32' 'no graphs' 'infer untrained, batch 32, tf32' 'policies on untrained' \
    'page-in of untrained-infer' 'not measured'
n=$((n + 1))
found=$(find "$dir/out" -name '*.jsonl' -o -name 'h200*' -o -name device.json)
[ -z "$found" ] && echo "ok $n - no figure was kept" || echo "not ok $n - figures of the fake driver: $found"
run 'machine' 600
check 0 'speed of operators'
rm -f "$dir/out/machine.done"
run 'machine' 0
check 0 'no time'
run 'machines' 600
check 1 "no part 'machines'"
echo "1..$n"
