#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Training with --spill in a process that may have its budget and 64 MiB more (RLIMIT_DATA: everything private and writable, whether
# it is touched or not: heap, stacks, the device's memory; files that are mapped to be read are not in it, the system can
# drop their pages). Everything that leaves the device goes to the file, the losses are those of a job that has all memory, and without
# --spill the same process has too little.
# usage: tests/spill_test.sh BUILD_DIR [MODEL.onnx INPUT SHAPE BATCH SHARE STORE], from the root. Without a model: the digits CNN on all digits
# six times over, in seconds. With one, such as VGG19 (x 3,224,224 32 50): on images made of digits; STORE keeps its nodes' times.
set -eu
build=$1
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/hearth-spill.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 143' INT TERM
fail() { echo "tests/spill_test.sh: $*" >&2; exit 1; }

model=${2:-tests/data/digits/untrained.onnx} input=${3:-image} shape=${4:-1,8,8} batch=${5:-8622} share=${6:-75} store=${7:-$dir/store}
policy=$([ $# -gt 1 ] && echo hearth || echo vdnn) # the small one has to offload: much of it is cheaper to recompute
digits=tests/data/digits/train.safetensors data=$dir/data
n=$(od -An -t u8 -N 8 $digits | tr -d ' ')
labels=$(tail -c +9 $digits | head -c "$n" | sed -n 's/.*"y":{"dtype":"I64","shape":\[[0-9]*\],"data_offsets":\[0,\([0-9]*\)\].*/\1/p')
y=$((batch * 8)) x=$(($(echo "$shape" | sed 's/,/ * /g') * batch * 4))
head="{\"y\":{\"dtype\":\"I64\",\"shape\":[$batch],\"data_offsets\":[0,$y]},"
head="$head\"$input\":{\"dtype\":\"F32\",\"shape\":[$batch,$shape],\"data_offsets\":[$y,$((x + y))]}}"
repeat() { while cat "$1"; do :; done 2>/dev/null | head -c "$2"; } # the file over and over
tail -c +$((n + 9)) $digits | head -c "$labels" >"$dir/labels"
tail -c +$((n + 9 + labels)) $digits >"$dir/pixels"
# shellcheck disable=SC2059
printf "\\$(printf %o ${#head})\\0\\0\\0\\0\\0\\0\\0$head" >"$data"
{ repeat "$dir/labels" $y && repeat "$dir/pixels" $x; } >>"$data"
train() { # DEVICE ARGUMENT..; the answer in $dir/NAME
    device=$1
    shift
    "$build/hearth" --store "$store" --device "cpu:threads=2$device" --json train spilled --data "$data" --loss softmax-xent \
        --optimizer momentum --lr 0.001 --batch "$batch" --epochs 3 --no-shuffle --policy "$policy" --save-as spilled-result "$@"
}
losses() { sed -n 's/^{"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1"; }
field() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$2" | tail -1; }

"$build/hearth" --store "$store" import spilled "$model" >/dev/null
train "" >"$dir/whole"
budget=$(($(field unconstrained_bytes "$dir/whole") / 100 * share))
limited() { (ulimit -d $(((budget >> 10) + 65536)) && train ",mem=$budget" --budget "$budget" "$@"); }
limited --spill "$dir" >"$dir/spilled" || fail "the budget and 64 MiB are too little"
limited >"$dir/none" 2>"$dir/error" && fail "without --spill the same memory is enough: the test shows nothing"
losses "$dir/whole" >"$dir/a"
losses "$dir/spilled" >"$dir/b"
[ "$(wc -l <"$dir/a")" -ge 3 ] || fail "not every step was told"
paste "$dir/a" "$dir/b" | awk '
    { d = $2 - $4; d = d < 0 ? -d : d; if ($1 != $3 || d > 1e-4 * $2) { print "step " $1 ": " $2 ", spilled " $4; bad = 1 } }
    END { exit bad }' || fail "the losses differ"
[ "$(field host_bytes "$dir/spilled")" -gt 0 ] || fail "nothing was offloaded"
"$build/hearth" --store "$store" rm spilled-result >/dev/null
echo "ok - $(($(field host_bytes "$dir/spilled") >> 20)) MiB offloaded: $share % of memory ($((budget >> 20)) MiB) and 64 MiB are enough with --spill, with the same losses"
echo 1..1
