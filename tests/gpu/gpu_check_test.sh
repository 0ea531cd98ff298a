#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gpu-check itself, over the fake driver as a plug-in: every part runs, finds nothing wrong, and keeps no figure; a part that is
# done is not done again; a part that is not known and a time that is up are said. Then over programs of two lines instead of hearth, as
# on a machine with a GPU: what fails or has no time is not done, and fails the run; figures that are there are not taken again, those that
# are missing are; a signal ends it. Speaks TAP. usage: tests/gpu/gpu_check_test.sh BUILD_DIR
set -u
build=$1 n=0
if [ ! -e "$build/fake/libhearth_cuda.so" ]; then
    echo '1..0 # SKIP no headers of CUDA 13 and cuDNN 9'
    exit 0
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-gpu-check.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 143' INT TERM
unset CUDA_HOME HEARTH_SERVER HEARTH_GPU OUT
mkdir -p "$dir/build/kernels/cuda" "$dir/build/tests/cuda" "$dir/models"
root=$(pwd)
case $build in /*) ;; *) build=$root/$build ;; esac
cp "$build/hearth" "$build/hearthd" "$build/fake/libhearth_cuda.so" "$dir/build/"
for t in attention attention_parts elementwise norm gemm train_ops train_rare rare; do ln -s "$build/kernels/cuda/${t}_test" "$dir/build/kernels/cuda/"; done
for t in probe speed; do ln -s "$build/tests/cuda/cuda_${t}_test" "$dir/build/tests/cuda/"; done
ln -s "$root/tests/data/digits/untrained.onnx" "$dir/models/untrained.onnx"
ln -s "$root/tests/data/digits/digits.onnx" "$dir/models/untrained-infer.onnx"
# A few steps of training: the fake driver's kernels run on the CPU.
python3 - tests/data/digits/train.safetensors "$dir/few.safetensors" 100 <<'EOF'
import json, struct, sys
with open(sys.argv[1], 'rb') as f:
    head = json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))
    data, few, n = f.read(), b'', int(sys.argv[3])
for t in (t for name, t in head.items() if name != '__metadata__'):
    start, end = t['data_offsets']
    part = data[start:start + (end - start) // t['shape'][0] * n]
    t['shape'][0], t['data_offsets'] = n, [len(few), len(few) + len(part)]
    few += part
text = json.dumps(head).encode()
with open(sys.argv[2], 'wb') as f:
    f.write(struct.pack('<Q', len(text)) + text + few)
EOF
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
    said=$(GPU_PARTS=$1 GPU_SECONDS=$2 GPU_MEM=60% GPU_NETWORKS=untrained:10 GPU_MODELS=$dir/models GPU_NO_TORCH=1 GPU_PAGEIN=untrained-infer \
        GPU_STORE=$dir/store GPU_DATA=$dir/few.safetensors GPU_PRECISIONS='fp32 tf32' GPU_RATIOS=0.9 GPU_POLICIES=hearth,keep \
        sh tests/gpu/gpu_check.sh "$dir/build" "$dir/out" 2>&1)
    code=$?
}
run 'machine probes ops answers training speed' 600
check 0 'device suite, captures, probes' 'operators: norm' 'answers of digits, against the CPU' 'training: whole against graphless' 'the same bits' \
    'speed of operators' 'nothing here is a measurement'
run 'models profiles bench policies pagein' 600
check 0 'profile untrained, batch 10, tf32' 'train untrained, batch 10, fp32' 'no graphs' 'infer untrained, batch 32, tf32' 'policies on untrained' \
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

# Instead of hearth: bench takes no time and fails as $dir/fails says, everything else works. PyTorch: as $dir/torch says.
mkdir -p "$dir/stub/tests/cuda" "$dir/bin" "$dir/models2"
: >"$dir/models2/net.onnx"
cat >"$dir/stub/hearth" <<EOF
#!/bin/sh
case "\$*" in
*' bench '*) echo "\$*" >>"$dir/benches"
    case "\$*" in *' --train '*) plans=', "planned_ms": 18, "predicted_ms": 19' ;; esac
    echo "{\"samples_per_second\": 50, \"p50_ms\": 20\$plans}"; exit "\$(cat "$dir/fails")" ;;
*' devices') [ ! -e "$dir/gone" ] || { echo 'no device' >&2; exit 1; }
    echo 'cuda:0  a device' ;;
esac
EOF
cat >"$dir/stub/tests/cuda/cuda_probe_test" <<EOF
#!/bin/sh
echo "# libraries at: \$LD_LIBRARY_PATH"
: >"$dir/probing"
sleep "\$(cat "$dir/sleeps")"
exit "\$(cat "$dir/fails")"
EOF
cat >"$dir/bin/python3" <<EOF
#!/bin/sh
case "\$*" in *'import torch'*) echo 'no PyTorch' >&2; exit 1 ;; esac
[ "\$1" = tests/gpu/gpu_torch.py ] || exec $(command -v python3) "\$@"
[ -e "$dir/torch" ] || { echo 'no PyTorch' >&2; exit 1; }
echo "\$*" >>"$dir/benches"
echo "{\"what\": \"PyTorch 2 \$2 \$3, batch \$4, \$5\", \"samples_per_second\": 40}"
EOF
chmod +x "$dir/stub/hearth" "$dir/stub/tests/cuda/cuda_probe_test" "$dir/bin/python3"
stub() { # PARTS SECONDS
    : >"$dir/benches"
    said=$(PATH=$dir/bin:$PATH LD_LIBRARY_PATH=/a/driver GPU_PARTS=$1 GPU_SECONDS=$2 GPU_NETWORKS=net:8 GPU_MODELS=$dir/models2 \
        sh tests/gpu/gpu_check.sh "$dir/stub" "$dir/out2" 2>&1)
    code=$?
}
is() { # NAME COMMAND..
    n=$((n + 1)) name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; fi
}
echo 0 >"$dir/sleeps"
echo 1 >"$dir/fails"
stub probes 600
check 1 'FAILED' "libraries at: $dir/stub:/a/driver"
is 'a part that failed is not done' [ ! -e "$dir/out2/probes.done" ]
stub machine 600
check 1 'FAILED'
is 'what failed in another run fails this one, which is done itself' [ -e "$dir/out2/machine.done" ]
echo 0 >"$dir/fails"
rm "$dir/out2/machine.done"
: >"$dir/gone"
stub machine 600
check 1 'machine' 'FAILED' 'no device'
is 'a device that is not there is not a machine that is done' [ ! -e "$dir/out2/machine.done" ]
rm "$dir/gone"
stub machine 600
stub probes 600
check 0 'device suite, captures, probes             ok'
is 'a part that is run again has no earlier rows' [ "$(grep -c 'device suite' "$dir/out2/table.txt")" = 1 ]
is 'and is done' [ -e "$dir/out2/probes.done" ]
rm -f "$dir/out2/probes.done"
echo 30 >"$dir/sleeps"
stub probes 7
check 0 'no time'
is 'a part at its limit is not done' [ ! -e "$dir/out2/probes.done" ]

stub bench 600
check 0 'train net, batch 8, bf16' 'infer net, batch 32, tf32' 'batch 1, bf16, no graphs' '50 samples/s' 'no PyTorch'
is 'every bench was taken' [ "$(grep -c ' bench ' "$dir/benches")" = 11 ]
is 'without those of PyTorch it is not done' [ ! -e "$dir/out2/bench.done" ]
: >"$dir/torch"
stub bench 600
check 0 'train net, batch 8, fp32' '20 ms (planned 18, then 19), 50 samples/s' '20 ms, 50 samples/s' '40 samples/s; hearth / PyTorch 1.250'
is 'what is missing is taken, and only that' [ "$(grep -c ' bench ' "$dir/benches") $(grep -c gpu_torch "$dir/benches")" = '0 9' ]
is 'a part is done under its own name' [ -e "$dir/out2/bench.done" ]
rm -f "$dir/out2/bench.done"
stub bench 600
check 0 'train net, batch 8, tf32' 'hearth / PyTorch 1.250'
is 'nothing is taken twice' [ ! -s "$dir/benches" ]

rm -f "$dir/probing"
echo 2 >"$dir/sleeps"
mkdir "$dir/tmp"
TMPDIR=$dir/tmp GPU_PARTS='probes machine' GPU_NETWORKS=net:8 sh tests/gpu/gpu_check.sh "$dir/stub" "$dir/out3" >"$dir/killed" 2>&1 &
pid=$!
i=0
while [ ! -e "$dir/probing" ] && [ $i -lt 3000 ]; do sleep 0.1; i=$((i + 1)); done
kill -TERM $pid
wait $pid
is 'a signal ends it' [ $? = 143 ]
is 'with nothing begun behind it' [ ! -e "$dir/out3/rows/machine" ]
is 'and its store removed' [ -z "$(ls "$dir/tmp")" ]
echo "1..$n"
