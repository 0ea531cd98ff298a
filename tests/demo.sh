#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job on real input: two models into a fresh store (the second shares all but its head with the first), a server on
# a local socket, 360 handwritten digits classified, the ledger of bytes; then the same network trained from scratch under half of
# its peak, published, served. At the end the server is started again, with HTTP, and left for HEARTH_DEMO_SECONDS (600; 0: not at all).
# usage: tests/demo.sh BUILD_DIR, from the root.
set -eu
build=$1
data=tests/data/digits
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-demo.XXXXXX")
pid=
cleanup() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT INT TERM
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
run() { say "$@"; "$@"; }

HEARTH_SERVER=ipc://$dir/hearth.sock
export HEARTH_SERVER
say hearthd --store "$dir/store" --listen "$HEARTH_SERVER" '&'
"$build/hearthd" --store "$dir/store" --listen "$HEARTH_SERVER" &
pid=$!
i=0
while [ ! -S "$dir/hearth.sock" ]; do
    i=$((i + 1))
    kill -0 "$pid" 2>/dev/null && [ $i -lt 100 ] || { echo "hearthd did not start" >&2; exit 1; }
    sleep 0.1
done
PATH=$build:$PATH
run hearth import digits $data/digits.onnx
run hearth import parity $data/digits-parity.onnx
run hearth ls
run hearth infer digits --input image=$data/images.npy --labels $data/labels.npy
run hearth infer parity --input image=$data/images.npy --labels $data/labels-parity.npy
run hearth stats
# Training from scratch in half of the memory that it would take.
run hearth import new $data/untrained.onnx
run hearth train new --data $data/train.safetensors --loss softmax-xent --optimizer adam --lr 0.002 --weight-decay 0.0001 \
    --batch 64 --epochs 12 --seed 1 --budget 50% --save-as trained
run hearth infer trained --input image=$data/images.npy --labels $data/labels.npy | tee "$dir/accuracy"
awk '/^accuracy/ { good = $2 >= 97 } END { if (!good) { print "the trained model is below 97 %" > "/dev/stderr"; exit 1 } }' "$dir/accuracy"
say kill -TERM "$pid"
kill -TERM "$pid"
wait "$pid"
pid=
echo "hearthd stopped cleanly"

# The same models over HTTP. hearthd ends by itself, and takes the folder with it.
[ "${HEARTH_DEMO_SECONDS:-600}" != 0 ] || exit 0
command -v curl >/dev/null || sh build-aux/deps.sh demo
port=8000
serve() { # on $port; false: it is taken
    say hearthd --store "$dir/store" --listen "$HEARTH_SERVER" --http "127.0.0.1:$port" '&'
    timeout "${HEARTH_DEMO_SECONDS:-600}" "$build/hearthd" --store "$dir/store" --listen "$HEARTH_SERVER" --http "127.0.0.1:$port" \
        </dev/null >"$dir/log" 2>&1 &
    pid=$!
    while ! grep ready "$dir/log"; do
        kill -0 "$pid" 2>/dev/null || { pid=; return 1; }
        sleep 0.1
    done
}
until serve; do
    grep 'cannot listen' "$dir/log" && [ $port -lt 8020 ] || { cat "$dir/log" >&2; exit 1; }
    port=$((port + 1))
done
pixels=$(tail -c +129 $data/images.npy | head -c 256 | od -An -v -w4 -tf4 | paste -sd,)
printf '{"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":[%s]}],"outputs":[{"name":"logits","parameters":{"classification":3}}]}' \
    "$pixels" >"$dir/six.json"
run curl -sf "http://127.0.0.1:$port/v2/models/digits/infer" -d "@$dir/six.json" >"$dir/answer"
cat "$dir/answer"
grep -q ':6","' "$dir/answer" || { echo "the digit is not a 6" >&2; exit 1; }
curl -sf "http://127.0.0.1:$port/" | grep -q '<title>hearth</title>' || { echo "there is no page" >&2; exit 1; }
printf '\n\nThis server goes on for %s seconds ("kill %s" ends it). Its page, and the inference above once more:\n\n    %s\n    %s\n' \
    "${HEARTH_DEMO_SECONDS:-600}" "$pid" "http://127.0.0.1:$port/" "curl -s http://127.0.0.1:$port/v2/models/digits/infer -d @$dir/six.json"
trap - EXIT
(while kill -0 "$pid" 2>/dev/null; do sleep 1; done; rm -rf "$dir") </dev/null >/dev/null 2>&1 &
