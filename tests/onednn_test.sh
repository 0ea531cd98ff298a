#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# oneDNN as a plug-in. With it: whose OpenMP it computes by, in hearth, in hearthd's engine, in a library that Python opens, and
# where another OpenMP stands before. Without it, because it is not wanted, or the plug-in or what is below it is not there: `hearth
# devices` says so, hearthd's log does once, answers and a training's losses are the same. Speaks TAP. usage: tests/onednn_test.sh BUILD_DIR
set -u
build=$(cd "$1" && pwd) cc=${CC:-cc}
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-onednn.XXXXXX")
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 143' INT TERM
unset HEARTH_ONEDNN HEARTH_SERVER LD_PRELOAD
data=tests/data/digits n=0
result() { # STATUS WHAT
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
local_() { prog=$1; shift; "$prog" --store "$dir/store" --device cpu:mem=1GiB,threads=2 "$@"; }
# Where the loader found what oneDNN calls of OpenMP, in all files of bindings: six names, none of them another's.
# omp_set_num_threads, which oneDNN 3 is linked with, is libgomp's: it sets what only libgomp's regions read.
bound() { # TO
    cat "$dir"/ld.* 2>/dev/null | grep 'file [^ ]*libdnnl\.so[^ ]* \[0\] to ' | grep -E "symbol .(GOMP|omp)_" |
        grep -v omp_set_num_threads >"$dir/bound"
    rm -f "$dir"/ld.*
    found=$(grep -c "to [^ ]*$1" "$dir/bound")
    [ "$found" -ge 6 ] && [ "$found" = "$(wc -l <"$dir/bound")" ] || { sed 's/^/# /' "$dir/bound"; return 1; }
}
serve() { # PROGRAM COMMAND..: what hearth says to COMMAND of a server, whose log is $dir/log
    : >"$dir/log"
    "$1/hearthd" --store "$dir/store" --listen "ipc://$dir/sock" --device cpu:mem=1GiB,threads=2 >"$dir/log" 2>&1 &
    pid=$!
    i=0
    until grep -q "^hearthd .* ready: " "$dir/log"; do
        i=$((i + 1))
        [ $i -lt 600 ] && kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.1
    done
    shift
    "$build/hearth" --server "ipc://$dir/sock" "$@" >"$dir/out" 2>&1
    status=$?
    kill "$pid" && wait "$pid"
    pid=
    return $status
}
values() { od -An -v -w4 -tf4 -j128 "$1"; } # of a .npy file whose header has 128 bytes
near() { # TOLERANCE A B: files of numbers, as many, and near each other
    paste -d' ' "$2" "$3" | awk -v t="$1" 'NF != 2 || $1 - $2 > t || $2 - $1 > t { bad = 1 } END { exit bad || NR == 0 }'
}
answers() { # PROGRAM NAME: logits and losses into $dir/NAME.*
    mkdir -p "$dir/$2"
    local_ "$1" infer digits --input "image=$data/images.npy" --output-dir "$dir/$2" >/dev/null || return 1
    values "$dir/$2/logits.npy" >"$dir/$2.logits"
    local_ "$1" --json train new --data $data/train.safetensors --loss softmax-xent --batch 256 --seed 1 --save-as "made-$2" |
        sed -n 's/.*"step":[0-9]*,"loss":\([0-9.e-]*\).*/\1/p' >"$dir/$2.losses"
}
local_ "$build/hearth" import digits $data/digits.onnx >/dev/null && local_ "$build/hearth" import new $data/untrained.onnx >/dev/null || exit 1

# ---- linked with it is the plug-in alone
linked=0
for f in hearth hearthd libhearth.so; do
    readelf -d "$build/$f" | grep NEEDED | grep -E 'dnnl|gomp|stdc' && linked=1
done
readelf -d "$build/libhearth_dnnl.so" | grep NEEDED | grep -q libdnnl || linked=1
result $linked 'only the plug-in is linked with oneDNN'

# ---- whose threads
local_ "$build/hearth" devices | grep -q ', oneDNN [23]\.'
result $? 'hearth devices names the version'
answers "$build/hearth" with
[ -s "$dir/with.logits" ] && [ -s "$dir/with.losses" ]
result $? 'answers and losses'
LD_DEBUG=bindings LD_DEBUG_OUTPUT=$dir/ld local_ "$build/hearth" infer digits --input image=$data/images.npy >/dev/null && bound libhearth_dnnl.so
result $? 'in hearth oneDNN has the plug-in'"'"'s OpenMP'
LD_DEBUG=bindings LD_DEBUG_OUTPUT=$dir/ld serve "$build" infer digits --input image=$data/images.npy && bound libhearth_dnnl.so
result $? 'in hearthd'"'"'s engine, too'
if /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
    cat >"$dir/ask.py" <<EOF
import sys
sys.path[:0] = ['client/python']
import hearthd, numpy
with hearthd.Client('$dir/store', device='cpu:mem=1GiB,threads=2') as h:
    numpy.save('$dir/python.npy', h.infer('digits', {'image': numpy.load('$data/images.npy')})['logits'])
EOF
    HEARTH_LIBRARY=$build/libhearth.so LD_DEBUG=bindings LD_DEBUG_OUTPUT=$dir/ld /usr/bin/python3 "$dir/ask.py" && bound libhearth_dnnl.so &&
        values "$dir/python.npy" >"$dir/python.logits" && near 1e-4 "$dir/with.logits" "$dir/python.logits"
    result $? 'in a library that Python opened, too'
else
    skip 'in a library that Python opened' 'numpy is not installed'
fi
gomp=$(ldd "$build/libhearth_dnnl.so" | awk '/libgomp/ {print $3}')
if [ -n "$gomp" ]; then
    LD_PRELOAD=$gomp serve "$build" infer digits --input image=$data/images.npy && grep -q 'event=openmp' "$dir/log"
    result $? 'where libgomp stands before, the log says so'
else
    skip 'where libgomp stands before' 'oneDNN is not linked with it'
fi

# ---- without
without() { # FOLDER WORDS: its programs
    "$1/hearth" --store "$dir/store" devices | grep -q ', no oneDNN' || { echo '# devices does not say it'; return 1; }
    answers "$1/hearth" without && near 1e-4 "$dir/with.logits" "$dir/without.logits" && near 1e-4 "$dir/with.losses" "$dir/without.losses" ||
        { echo '# answers or losses differ'; return 1; }
    serve "$1" infer digits --input image=$data/images.npy || { sed 's/^/# /' "$dir/log" "$dir/out"; return 1; }
    [ "$(grep -c 'event=no-onednn' "$dir/log")" = 1 ] && grep 'event=no-onednn' "$dir/log" | grep -q "$2" || { sed 's/^/# /' "$dir/log"; return 1; }
}
HEARTH_ONEDNN=false
export HEARTH_ONEDNN
without "$build" 'kernels.onednn is false'
result $? 'HEARTH_ONEDNN=false: the same answers, and losses'
for t in attention blocked conv conv_grad elementwise gemm norm train_ops train_rare winograd; do
    [ -x "$build/kernels/cpu/${t}_test" ] || continue
    "$build/kernels/cpu/${t}_test" >"$dir/log" 2>&1 || { sed 's/^/# /' "$dir/log"; false; }
    result $? "kernels/cpu/${t}_test without oneDNN"
done
unset HEARTH_ONEDNN
mkdir "$dir/bin"
cp "$build/hearth" "$build/hearthd" "$dir/bin/"
if ldconfig -p 2>/dev/null | grep -q 'libhearth_dnnl\.so'; then
    skip 'no plug-in' 'one is installed'
else
    without "$dir/bin" 'the plug-in was not opened: libhearth_dnnl.so'
    result $? 'no plug-in: the same answers, and losses'
fi
echo 'const void *hth_dnnl_plugin(unsigned abi, const void *host) { return 0; }' >"$dir/made.c"
$cc -shared -fPIC -o "$dir/bin/libhearth_dnnl.so" "$dir/made.c"
without "$dir/bin" 'libhearth_dnnl.so belongs to another version of hearth'
result $? 'a plug-in of another version'
echo 'int absent(void) { return 0; }' >"$dir/made.c"
$cc -shared -fPIC -Wl,-soname,libabsent.so.2 -o "$dir/libabsent.so" "$dir/made.c"
echo 'int absent(void); int hth_dnnl_plugin(void) { return absent(); }' >"$dir/made.c"
$cc -shared -fPIC -o "$dir/bin/libhearth_dnnl.so" "$dir/made.c" "$dir/libabsent.so"
without "$dir/bin" 'libabsent.so.2: cannot open shared object file'
result $? 'a plug-in whose library is absent'
echo "1..$n"
