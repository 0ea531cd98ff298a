#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job on real input: two models into a fresh store (the second shares all but its head with the first), a server on
# a local socket, 360 handwritten digits classified, the ledger of bytes; then the same network trained from scratch under half of
# its peak, published, served. At the end the server is started again, with HTTP at port 8000 or, where that is taken, at a free one,
# and left for HEARTH_DEMO_SECONDS (600; 0: not at all). Whatever fails, fails the demo, and then nothing of it stays.
# usage: tests/demo.sh BUILD_DIR, from the root.
set -eu
build=$1
data=tests/data/digits
seconds=${HEARTH_DEMO_SECONDS:-600}
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-demo.XXXXXX")
pid=
stop() {
    kill -TERM "$pid"
    wait "$pid" || { code=$?; pid=; return $code; }
    pid=
}
cleanup() {
    [ -z "$pid" ] || stop 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
fail() { echo "demo: $*" >&2; exit 1; }
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
run() { say "$@"; "$@"; }

# start SECONDS FLAG..: hearthd in the background, for so long at most (0: no limit). It is ready when this very process says so on its
# standard output, which is a pipe that only it writes into: $ready is its line. false: it ended before, $dir/log has what it said.
start() {
    limit=$1
    shift
    mkfifo "$dir/out"
    say hearthd "$@" '&'
    timeout --foreground "$limit" "$build/hearthd" "$@" </dev/null >"$dir/out" 2>"$dir/log" &
    pid=$!
    exec 3<"$dir/out"
    rm "$dir/out"
    ready=$(timeout 60 head -n 1 <&3) || ready=
    case $ready in
    'hearthd '*' ready: '*) echo "$ready" ;;
    *)
        stop 2>/dev/null || true
        return 1
        ;;
    esac
}

HEARTH_SERVER=ipc://$dir/hearth.sock
export HEARTH_SERVER
start 0 --store "$dir/store" --listen "$HEARTH_SERVER" || fail "hearthd did not start: $(cat "$dir/log")"
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
run hearth infer trained --input image=$data/images.npy --labels $data/labels.npy >"$dir/accuracy"
cat "$dir/accuracy"
awk '/^accuracy/ { good = $2 >= 97 } END { exit !good }' "$dir/accuracy" || fail "the trained model is below 97 %"
say kill -TERM "$pid"
stop || fail "hearthd did not stop cleanly: $(cat "$dir/log")"
echo "hearthd stopped cleanly"

# The same models over HTTP. hearthd ends by itself, and takes the folder with it.
[ "$seconds" != 0 ] || exit 0
command -v curl >/dev/null || sh build-aux/deps.sh demo
serve() { start "$seconds" --store "$dir/store" --listen "$HEARTH_SERVER" --http "127.0.0.1:$1"; }
if ! serve 8000; then
    grep -F 'cannot listen on http://127.0.0.1:8000: Address already in use' "$dir/log" || fail "$(cat "$dir/log")"
    echo "Another program has port 8000; the demo takes a free one."
    serve 0 || fail "$(cat "$dir/log")"
fi
url=${ready##* }
pixels=$(tail -c +129 $data/images.npy | head -c 256 | od -An -v -w4 -tf4 | paste -sd,)
printf '{"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":[%s]}],"outputs":[{"name":"logits","parameters":{"classification":3}}]}' \
    "$pixels" >"$dir/six.json"
run curl -sSf "$url/v2/models/digits/infer" -d "@$dir/six.json" >"$dir/answer"
cat "$dir/answer"
grep -q ':6","' "$dir/answer" || fail "the digit is not a 6"
curl -sSf "$url/" >"$dir/page"
grep -q '<title>hearth</title>' "$dir/page" || fail "there is no page"
kill -0 "$pid" 2>/dev/null || fail "hearthd ended: $(cat "$dir/log")"
printf '\n\nThis server goes on for %s seconds ("kill %s" ends it). Its page, and the inference above once more:\n\n    %s\n    %s\n' \
    "$seconds" "$pid" "$url/" "curl -s $url/v2/models/digits/infer -d @$dir/six.json"
printf '\nThe commands above, for its models:\n\n    export PATH=%s:$PATH HEARTH_SERVER=%s\n    hearth ls\n' "$(cd "$build" && pwd)" "$HEARTH_SERVER"
trap - EXIT
(while kill -0 "$pid" 2>/dev/null; do sleep 1; done; rm -rf "$dir") </dev/null >/dev/null 2>&1 3<&- &
