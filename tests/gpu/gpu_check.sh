#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is to be known of a machine with an NVIDIA GPU, in parts, those that tell most first: versions and the device's description,
# the device's suite and the rates of its links, operators against the reference, answers and training bits, single operators'
# speed, then networks: costs of all candidates as profiles, benches against PyTorch, training in less memory, page-in. Writes a
# table to stdout, at the end all of it, and files to OUT_DIR. A part all of whose rows are ok is done and not run again; the rows of
# one that is run again take the place of those it had. Exit 1: a row of the table, of whichever run, says FAILED; 2: there is no GPU
# here, which is said in a sentence.
# usage: tests/gpu/gpu_check.sh BUILD_DIR OUT_DIR [CUDA_HOME]
#   GPU_PARTS='machine probes ..'   these only, in this order
#   GPU_SECONDS=560                 nothing is begun after that, and no part gets more than what is left
#   GPU_NETWORKS='vgg19:144 ..'     networks and their batches; NAME.onnx and NAME-infer.onnx in GPU_MODELS (made there by PyTorch)
#   GPU_PRECISIONS='fp32 tf32 bf16' GPU_MEM=80%   memory of the device
#   GPU_RATIOS, GPU_POLICIES        of the part `policies`
#   GPU_DATA=FILE.safetensors       of the part `training`
#   GPU_NO_TORCH=1                 PyTorch is neither asked nor named
#   GPU_STORE=DIR                   is kept: models and what was timed serve the next run on that machine
set -u
build=$1 out=$2
CUDA_HOME=${3:-${CUDA_HOME:-/usr/local/cuda}}
# Where PyTorch is, its own cuDNN and cublasLt are: a toolkit alone has no cuDNN.
site=$(python3 -c 'import os, nvidia; print(os.path.dirname(list(nvidia.__path__)[0]))' 2>/dev/null)
CUDA_HOME=$CUDA_HOME${site:+:$site}
export CUDA_HOME
all='machine probes ops answers training speed models profiles bench policies pagein'
parts=${GPU_PARTS:-$all}
seconds=${GPU_SECONDS:-560}
networks=${GPU_NETWORKS:-resnet50:184 vgg19:144 unet:120}
precisions=${GPU_PRECISIONS:-fp32 tf32 bf16}
device=cuda:0,mem=${GPU_MEM:-80%}
began=$(date +%s)
part_bad=0
prog=$build/hearth
# Behind the plug-in's folder, what the machine had: a container's driver may be found by nothing else.
lib_path=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ -n "${GPU_STORE:-}" ]; then
    store=$GPU_STORE
    mkdir -p "$store" || exit 1
else
    store=$(mktemp -d "${TMPDIR:-/tmp}/hearth-gpu.XXXXXX") || exit 1
    trap 'rm -rf "$store"' EXIT
    trap 'exit 143' INT TERM
fi
models=${GPU_MODELS:-$store/models}
data=${GPU_DATA:-tests/data/digits/train.safetensors}
for part in $parts; do
    case " $all " in *" $part "*) ;; *) echo "gpu-check: no part '$part'; there are: $all" >&2; exit 1 ;; esac
done
mkdir -p "$store/s" || exit 1
reason=$("$prog" --store "$store/s" --device "$device" ls 2>&1 >/dev/null) || {
    echo "gpu-check: nothing was run on a GPU: $reason"
    exit 2
}
mkdir -p "$out/rows" "$models" || exit 1
# Over the fake driver everything is run, and nothing is kept as a result.
fake=
"$prog" --store "$store/s" --device "$device" --json devices 2>/dev/null | grep -q 'fake CUDA device' && fake=yes
[ -n "$fake" ] || { GPU_RESULTS=$out/results.jsonl GPU_DEVICE_JSON=$out/device.json HEARTH_GPU=1; export GPU_RESULTS GPU_DEVICE_JSON HEARTH_GPU; }
[ -n "$fake" ] && unset HEARTH_GPU
train_seconds=5 infer_seconds=3
[ -z "$fake" ] || { train_seconds=0.1; infer_seconds=0.1; }

row() { # NAME STATUS NOTE: of the part that runs, which is not done if that is not `ok`
    [ "$2" = ok ] || part_bad=1
    printf '%-42s %-8s %s\n' "$1" "$2" "$3" | tee -a "$out/rows/$part"
}
figures() { # LOG: the figures that it names, below the part's rows
    sed -n 's/^# \(.*: .*\)$/    \1/p' "$1" | grep -v 'JSON' | tee -a "$out/rows/$part"
}
table() { # the rows of all parts
    for q in $all; do
        [ ! -e "$out/rows/$q" ] || cat "$out/rows/$q"
    done >"$out/table.txt"
}
result() { # WHAT VALUE UNIT
    [ -n "$fake" ] || printf '{"what": "%s", "value": %s, "unit": "%s"}\n' "$1" "$2" "$3" >>"$out/results.jsonl"
}
left() { echo $((seconds - $(date +%s) + began)); }
limited() { # SECONDS COMMAND..: at most that, and at most what is left
    limit=$1
    shift
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    [ "$limit" -gt 0 ] || return 124
    timeout -k 5 "$limit" "$@"
}
on() { # SECONDS DEVICE ARGUMENTS..
    limit_on=$1 dev=$2
    shift 2
    limited "$limit_on" "$prog" --store "$store/s" --device "$dev" "$@"
}
figure() { # KEYS.. of the last line of JSON on stdin: a value each, "-" where it is not there
    grep '^{' | tail -1 | awk -v keys="$*" '{
        n = split(keys, key, " ")
        for (i = 1; i <= n; i++) {
            value = "-"
            if (match($0, "\"" key[i] "\": *-?[0-9][-+.0-9eE]*")) {
                value = substr($0, RSTART, RLENGTH)
                sub(/^[^:]*: */, "", value)
                value = sprintf("%.6g", value)
            }
            printf "%s%s", value, i < n ? " " : "\n"
        }
        said = 1
    }
    END { if (!said) print "- - - -" }'
}
judge() { # NAME CODE NOTE
    case $2 in
    0) row "$1" ok "$3" ;;
    124 | 137) row "$1" 'no time' "$3" ;;
    *) row "$1" FAILED "$3" ;;
    esac
}
import() { # NAME FILE: once
    [ -e "$store/imported-$1" ] && return 0
    on 120 "$device" import "$1" "$2" >"$out/$1.import" 2>&1 && : >"$store/imported-$1"
}

part_machine() {
    { uname -a; ldd --version 2>&1 | head -1; nvidia-smi 2>&1; "$prog" --store "$store/s" --device "$device" devices; lscpu; free -m
      [ -n "${GPU_NO_TORCH:-}" ] ||
          python3 -c 'import torch; print("torch", torch.__version__, torch.version.cuda, torch.backends.cudnn.version())'; } >"$out/machine.txt" 2>&1
    found=$("$prog" --store "$store/s" --device "$device" devices 2>"$store/devices.err" | grep -m1 cuda: | tr -s ' ' | cut -c1-100)
    [ -n "$found" ]
    judge machine $? "${found:-$(tail -1 "$store/devices.err")}"
}
# The suite of tests/rig/device_conformance.h, captures, rates of copies, what the driver can do.
part_probes() {
    limited 150 env LD_LIBRARY_PATH="$lib_path" "$build/tests/cuda/cuda_probe_test" >"$out/probes.log" 2>&1
    judge 'device suite, captures, probes' $? "$(grep -c ' OK ' "$out/probes.log") passed, $out/probes.log"
    figures "$out/probes.log"
    [ -z "$fake" ] && [ -s "$out/device.json" ] && row 'description of the device' ok "$out/device.json"
}
# Every operator against the reference, cases and tolerances of the CPU's tests, outputs poisoned; all at once.
part_ops() {
    rm -f "$store"/ops-*
    for t in attention attention_parts elementwise norm gemm train_ops train_rare rare; do
        [ -x "$build/kernels/cuda/${t}_test" ] || continue
        (limited 240 env LD_LIBRARY_PATH="$lib_path" "$build/kernels/cuda/${t}_test" >"$out/ops-$t.log" 2>&1; echo $? >"$store/ops-$t") &
    done
    wait
    for f in "$store"/ops-*; do
        t=${f##*/ops-}
        judge "operators: $t" "$(cat "$f")" "$(grep '^# on CUDA' "$out/ops-$t.log" | cut -c3-)"
    done
}
# The same question to both devices; outputs may differ by 1e-3 of the largest. Then a second time, and many times by a graph.
part_answers() {
    import digits tests/data/digits/digits.onnx
    for d in cpu "$device"; do
        mkdir -p "$out/answers-${d%%[:,]*}"
        on 60 "$d" infer digits --input image=tests/data/digits/images.npy --output-dir "$out/answers-${d%%[:,]*}" >"$out/answers-${d%%[:,]*}.log" 2>&1 || {
            judge "answers of digits on ${d%%[:,]*}" $? "$(tail -1 "$out/answers-${d%%[:,]*}.log")"
            return
        }
    done
    said=$(python3 tests/gpu/gpu_compare.py answers "$out/answers-cpu" "$out/answers-cuda" 2>&1)
    judge 'answers of digits, against the CPU' $? "$said"
}
# Losses: whole and in 75 % of the memory, with CUDA graphs and without: the same bits where the algorithms are the same.
part_training() {
    import untrained tests/data/digits/untrained.onnx
    for way in whole graphless less; do
        more='' dev=$device
        case $way in graphless) dev=$device,graphs=off ;; less) more='--budget 75%' ;; esac
        # shellcheck disable=SC2086
        on 90 "$dev" --json train untrained --data "$data" --loss softmax-xent --optimizer momentum --lr 0.05 --batch 50 \
            --epochs 1 --no-shuffle --save-as trained $more >"$out/train-$way.json" 2>&1 || {
            judge "training, $way" $? "$(tail -1 "$out/train-$way.json")"
            return
        }
    done
    for way in graphless less; do
        said=$(python3 tests/gpu/gpu_compare.py losses "$out/train-whole.json" "$out/train-$way.json" 2>&1)
        judge "training: whole against $way" $? "$said"
    done
}
# What single operators reach: of the copy bandwidth, and in arithmetic; all algorithms of a product and a convolution.
part_speed() {
    limited 180 env LD_LIBRARY_PATH="$lib_path" "$build/tests/cuda/cuda_speed_test" >"$out/speed.log" 2>&1
    judge 'speed of operators' $? "$out/speed.log"
    figures "$out/speed.log"
}
# The networks, exported by the machine's own PyTorch.
part_models() {
    for n in $networks; do
        [ -e "$models/${n%:*}.onnx" ] && { row "model ${n%:*}" ok 'is there'; continue; }
        limited 120 python3 tests/gpu/gpu_torch.py export "$models" "${n%:*}" >"$out/export-${n%:*}.log" 2>&1
        judge "model ${n%:*}, exported" $? "$(tail -1 "$out/export-${n%:*}.log" | cut -c1-80)"
    done
}
has_model() { [ -e "$models/$1.onnx" ] && import "$1" "$models/$1.onnx"; }
# What every node of a training step takes with every candidate: profiles for planning elsewhere.
part_profiles() {
    for n in $networks; do
        has_model "${n%:*}" || { row "profile ${n%:*}" skipped 'no model'; continue; }
        for precision in $precisions; do
            file=h200-${n%:*}-${n#*:}-$precision.json
            [ ! -s "$out/$file" ] || { row "profile ${n%:*}, batch ${n#*:}, $precision" ok 'is there'; continue; }
            on 150 "$device" plan "${n%:*}" --train --batch "${n#*:}" --precision "$precision" --write-profile "$store/$file" \
                >"$out/profile-${n%:*}-$precision.log" 2>&1
            code=$?
            [ -n "$fake" ] || [ $code != 0 ] || cp "$store/$file" "$out/$file" || code=$?
            judge "profile ${n%:*}, batch ${n#*:}, $precision" $code "$([ -s "$store/$file" ] && wc -c <"$store/$file") bytes"
        done
    done
}
known() { # WORDS END: the last line of bench.jsonl whose `what` has these words and this end
    grep -F "\"what\": \"$1" "$out/bench.jsonl" 2>/dev/null | grep -F "$2\"," | tail -1
}
measure() { # WHAT OPTION NAME ARGUMENTS..: a row with samples per second, which it sets $rate to, and what a step's plans said; 1: failed
    what=$1 dev=$device${2:+,$2}
    shift 2
    code=0
    known "$what\"" '' >"$store/bench.json"
    if [ ! -s "$store/bench.json" ]; then
        on 60 "$dev" --json bench "$@" >"$store/bench.json" 2>"$store/bench.err"
        code=$?
        [ -n "$fake" ] || [ $code != 0 ] || grep '^{' "$store/bench.json" | sed "s|^{|{\"what\": \"$what\", |" >>"$out/bench.jsonl"
    fi
    read -r rate ms planned predicted <<EOF
$(figure samples_per_second p50_ms planned_ms predicted_ms <"$store/bench.json")
EOF
    [ "$planned" = - ] && said='' || said=" (planned $planned, then $predicted)"
    [ -z "$fake" ] || rate=- ms=- said=''
    judge "$what" $code "$ms ms$said, $rate samples/s $([ $code = 0 ] || tail -1 "$store/bench.err" | cut -c1-90)"
    [ $code = 0 ]
}
against() { # MODE NAME BATCH PRECISION: PyTorch's figure and hearth's over it
    [ -n "${GPU_NO_TORCH:-}" ] && return
    known 'PyTorch ' " $1 $2, batch $3, $4" >"$store/torch.json"
    if [ ! -s "$store/torch.json" ]; then
        limited 90 python3 tests/gpu/gpu_torch.py "$1" "$2" "$3" "$4" >"$store/torch.json" 2>"$out/torch-$1-$2-$3-$4.log" || {
            row '  PyTorch, the same' skipped "$(tail -1 "$out/torch-$1-$2-$3-$4.log" | cut -c1-90)"
            return
        }
        grep '^{' "$store/torch.json" >>"$out/bench.jsonl"
    fi
    theirs=$(figure samples_per_second <"$store/torch.json")
    row '  PyTorch, the same' ok "$theirs samples/s; hearth / PyTorch $(awk "BEGIN { printf \"%.3f\", ${rate#-} / $theirs }" 2>/dev/null)"
}
part_bench() {
    for n in $networks; do
        has_model "${n%:*}" || { row "bench ${n%:*}" skipped 'no model'; continue; }
        for precision in $precisions; do
            measure "train ${n%:*}, batch ${n#*:}, $precision" '' "${n%:*}" --train --batch "${n#*:}" --precision "$precision" --seconds $train_seconds &&
                against train "${n%:*}" "${n#*:}" "$precision"
        done
        measure "train ${n%:*}, batch ${n#*:}, $precision, no graphs" graphs=off "${n%:*}" --train --batch "${n#*:}" --precision "$precision" --seconds $train_seconds
        name=${n%:*}-infer
        has_model "$name" || name=${n%:*}
        for precision in $precisions; do
            for b in 1 32; do
                measure "infer ${n%:*}, batch $b, $precision" '' "$name" --batch "$b" --precision "$precision" --seconds $infer_seconds &&
                    against infer "${n%:*}" "$b" "$precision"
            done
        done
        measure "infer ${n%:*}, batch 1, $precision, no graphs" graphs=off "$name" --batch 1 --precision "$precision" --seconds $infer_seconds
    done
}
# Training steps in less memory, by policy; cells are kept, and a run goes on from them.
part_policies() {
    for n in $networks; do
        case ${n%:*} in resnet50) continue ;; esac
        [ -e "$models/${n%:*}.onnx" ] || { row "policies ${n%:*}" skipped 'no model'; continue; }
        cells=$out/policies.jsonl
        [ -z "$fake" ] || cells=$store/policies.jsonl
        limited 600 python3 tests/bench/train_policies.py "$prog" --device "$device" --models "$models" --names "${n%:*}" --batch "${n#*:}" \
            --ratios "${GPU_RATIOS:-0.8,0.6,0.4,0.7,0.5}" --policies "${GPU_POLICIES:-hearth,checkmate-auto,str-auto,mo-sos}" --rounds 20 --processes 1 \
            --minutes "$(awk "BEGIN { print ($(left) - 30) / 60 }")" --store "$store/policies" --json "$cells" --table "$store/policies.md" >"$out/policies-${n%:*}.log" 2>&1
        judge "policies on ${n%:*}" $? "$out/policies-${n%:*}.log"
        [ -n "$fake" ] || { [ -s "$store/policies.md" ] && cp "$store/policies.md" "$out/policies-${n%:*}.md"; }
    done
}
# From unloaded to the first answer, over HTTP.
part_pagein() {
    name=${GPU_PAGEIN:-vgg19-infer}
    has_model "$name" || { row "page-in of $name" skipped 'no model'; return; }
    said=$(limited 120 python3 tests/gpu/gpu_pagein.py "$build/hearthd" "$store/s" "$device" "$name" 2>"$out/pagein.log")
    code=$?
    [ -n "$fake" ] && [ $code = 0 ] && said='not measured'
    [ -n "$fake" ] || [ $code != 0 ] || result 'page-in' "$(printf %s "$said" | cut -d' ' -f1)" ms
    judge "page-in of $name" $code "$said"
}
keep() { # what comes back from where files are few: one archive beside the table
    cp "$out/table.txt" "$1/" 2>/dev/null
    tar czf "$1/gpu-check.tar.gz" -C "$out" . 2>/dev/null
}

for part in $parts; do
    [ -e "$out/$part.done" ] && continue
    if [ "$(left)" -le 5 ]; then
        row "$part" 'no time' "GPU_PARTS='$part ..' goes on from here"
        continue
    fi
    began_part=$(date +%s) part_bad=0
    : >"$out/rows/$part"
    part_"$part"
    [ $part_bad != 0 ] || : >"$out/$part.done"
    echo "    ($part: $(($(date +%s) - began_part)) s)"
    table
    [ -z "${OUT:-}" ] || [ -n "$fake" ] || keep "$OUT"
done
table
echo
[ -z "$fake" ] || echo 'gpu-check: over the fake driver: nothing here is a measurement'
cat "$out/table.txt"
! grep -qE '^.{42,} FAILED   ' "$out/table.txt"
