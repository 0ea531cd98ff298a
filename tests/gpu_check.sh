#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is to be known of a machine with an NVIDIA GPU, in the order in which it fails most cheaply: versions, devices and the link,
# then the answers of models and the losses of training on the GPU against the CPU's, then the benches. Writes a table to stdout
# and full outputs to OUT_DIR. Exit 1: something is wrong; 2: there is no GPU here, which is said in a sentence.
# usage: tests/gpu_check.sh BUILD_DIR OUT_DIR [CUDA_HOME]
set -u
build=$1 out=$2
CUDA_HOME=${3:-${CUDA_HOME:-/usr/local/cuda}}
export CUDA_HOME
bad=0
store=$(mktemp -d "${TMPDIR:-/tmp}/hearth-gpu.XXXXXX")
trap 'rm -rf "$store"' EXIT INT TERM
mkdir -p "$out" || exit 1
prog=$build/hearth
row() { printf '%-34s %-8s %s\n' "$1" "$2" "$3"; }
on() { # DEVICE ARGUMENTS..
    device=$1
    shift
    "$prog" --store "$store" --device "$device" "$@"
}
reason=$("$prog" --store "$store" --device cuda:0,mem=80% ls 2>&1 >/dev/null) || {
    echo "gpu-check: nothing was run on a GPU: $reason"
    exit 2
}
{ uname -a; ldd --version 2>&1 | head -1; nvidia-smi 2>&1; "$prog" --store "$store" devices; } >"$out/machine.txt" 2>&1
row 'machine' ok "$out/machine.txt"

# Every operator against the reference, cases and tolerances of the CPU's tests.
for t in elementwise norm gemm train_ops train_rare; do
    HEARTH_GPU=1 LD_LIBRARY_PATH=$build "$build/kernels/cuda/${t}_test" >"$out/$t.log" 2>&1 && result=ok || { result=FAILED; bad=1; }
    row "operators: $t" $result "$(grep '^# on CUDA' "$out/$t.log" | cut -c3-)"
done

# The same question to both devices; outputs may differ by 1e-3 of the largest.
answers() { # NAME FILE INPUT DATA
    on cpu import "$1" "$2" >"$out/$1.import" 2>&1
    for d in cpu cuda:0,mem=80%; do
        mkdir -p "$out/$1.${d%%[:,]*}"
        on "$d" infer "$1" --input "$3=$4" --output-dir "$out/$1.${d%%[:,]*}" >"$out/$1.${d%%[:,]*}.log" 2>&1 || {
            row "infer $1" FAILED "$(tail -1 "$out/$1.${d%%[:,]*}.log")"
            bad=1
            return
        }
    done
    if worst=$(python3 - "$out/$1.cpu" "$out/$1.cuda" 2>&1 <<'EOF'
import array, glob, os, struct, sys
def load(path):
    b = open(path, 'rb').read()
    n = struct.unpack('<H', b[8:10])[0] + 10 if b[6] == 1 else struct.unpack('<I', b[8:12])[0] + 12
    return array.array('f', b[n:len(b) - (len(b) - n) % 4])
worst = 0
for path in glob.glob(sys.argv[1] + '/*.npy'):
    a, b = load(path), load(os.path.join(sys.argv[2], os.path.basename(path)))
    largest = max(map(abs, a)) or 1
    worst = max([worst] + [abs(x - y) / largest if x == x and y == y else 9 for x, y in zip(a, b)])
print('%.2e' % worst)
sys.exit(worst > 1e-3)
EOF
    ); then row "infer $1" ok "differs by $worst"; else row "infer $1" FAILED "$worst"; bad=1; fi
}
answers digits tests/data/digits/digits.onnx "${DIGITS_INPUT:-image}" tests/data/digits/images.npy

# Training with and without a budget: the same loss bits where the budget left the algorithms as they were, else nearly the same.
losses() { # BUDGET LOG
    on cuda:0,mem=80% --json train untrained --data tests/data/digits/train.safetensors --loss softmax-xent --optimizer momentum \
        --lr 0.05 --batch 50 --epochs 1 --no-shuffle --save-as trained ${1:+--budget "$1"} >"$2" 2>&1
}
on cpu import untrained tests/data/digits/untrained.onnx >"$out/untrained.import" 2>&1
if losses '' "$out/train.json" && losses 75% "$out/train-75.json" && said=$(python3 - "$out/train.json" "$out/train-75.json" 2>&1 <<'EOF'
import json, sys
def load(path):
    return [d['loss'] for d in map(json.loads, filter(lambda l: l.startswith('{'), open(path))) if 'loss' in d]
a, b = map(load, sys.argv[1:])
worst = max(abs(x - y) / (abs(x) + 0.1) for x, y in zip(a, b)) if a and len(a) == len(b) else 9
print('%d losses, %s' % (len(a), 'the same bits' if a == b else 'they differ by %.1e: other algorithms' % worst))
sys.exit(not worst < 1e-3)
EOF
); then
    row 'training, 75 % of the memory' ok "$said"
else
    row 'training, 75 % of the memory' FAILED "${said:-} see $out/train*.json"
    bad=1
fi

for m in ${GPU_MODELS:-}; do # FILE.onnx files to measure
    name=$(basename "$m" .onnx)
    on cuda:0,mem=80% import "$name" "$m" >"$out/$name.import" 2>&1
    for b in 1 32; do
        on cuda:0,mem=80% --json bench "$name" --batch "$b" >"$out/$name-$b.json" 2>&1 && result=ok || { result=FAILED; bad=1; }
        row "bench $name --batch $b" $result "$(tail -1 "$out/$name-$b.json" | cut -c1-90)"
        on cuda:0,mem=80% --json convsel "$name" --batch "$b" >"$out/$name-$b.convsel.json" 2>&1 || true
    done
done
exit $bad
