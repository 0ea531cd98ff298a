#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kill -9 of hearthd while it trains: after a restart the same command goes on from the last checkpoint, and all losses are
# those of a job that ran through, whose images are flipped and cropped at random. Asked for by nobody, the restarted hearthd goes
# on with it, too. kill -9 of the engine's process alone: the command says so, follows the job on, and ends as it ends.
# usage: tests/resume_test.sh BUILD_DIR, from the root.
set -eu
build=$1
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-resume.XXXXXX")
pid=
cleanup() {
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 143' INT TERM
fail() { echo "tests/resume_test.sh: $*" >&2; exit 1; }

HEARTH_SERVER=ipc://$dir/sock
export HEARTH_SERVER
start() {
    rm -f "$dir/sock"
    "$build/hearthd" --store "$dir/store" --listen "$HEARTH_SERVER" >"$dir/log" 2>&1 &
    pid=$!
    i=0
    until "$build/hearth" ls >/dev/null 2>&1; do
        i=$((i + 1))
        kill -0 "$pid" 2>/dev/null && [ $i -lt 3000 ] || fail "hearthd did not start: $(cat "$dir/log")"
        sleep 0.1
    done
}
train() { # name, and what else is said
    name=$1
    shift
    "$build/hearth" --json train new --data tests/data/digits/train.safetensors --loss softmax-xent --optimizer adam \
        --lr 0.002 --batch 64 --epochs 6 --seed 1 --flip --crop 1 --budget 60% --checkpoint-every 5 --save-as "$name" "$@"
}
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1"; }

start
"$build/hearth" import new tests/data/digits/untrained.onnx >/dev/null
train whole >"$dir/whole"
checkpointed() { # waits for a job's first checkpoint with a step; the one before it, of step 0, keeps what was accepted
    i=0
    until "$build/hearth" ls --all | grep -qE "^$1\.checkpoint +([2-9]|[1-9][0-9])"; do
        i=$((i + 1))
        [ $i -lt 12000 ] || fail "there was no checkpoint"
        sleep 0.01
    done
}
cut() { # begins a job, kills the server behind its first checkpoint, and starts it again
    train "$1" >"$dir/cut" 2>&1 &
    client=$!
    checkpointed "$1"
    kill -9 "$pid"
    wait "$pid" 2>/dev/null || true
    kill -9 "$client" 2>/dev/null || true # it would wait for the server to come back
    if wait "$client"; then fail "the job ended before the kill"; fi
    start
}
cut cut
train cut --resume >"$dir/cut"
losses "$dir/whole" >"$dir/a"
losses "$dir/cut" >"$dir/b"
[ "$(wc -l <"$dir/a")" -eq 138 ] || fail "not every step was told"
cmp "$dir/a" "$dir/b" || fail "the losses differ"
if "$build/hearth" ls --all | grep -q '\.checkpoint '; then fail "a finished job left its checkpoint"; fi
cut alone
i=0
until "$build/hearth" job alone | grep -q 'state *finished'; do
    i=$((i + 1))
    [ $i -lt 3000 ] || fail "the job was not gone on with"
    sleep 0.1
done
"$build/hearth" --json job alone --svg "$dir/loss.svg" >"$dir/job"
grep -q polyline "$dir/loss.svg" || fail "the losses of an ended job are not drawn"
for name in whole alone; do
    "$build/hearth" export $name "$dir/$name.safetensors" >/dev/null
done
cmp "$dir/whole.safetensors" "$dir/alone.safetensors" || fail "the results differ"
echo "ok - a killed daemon's job goes on from its checkpoint with the same losses"

# shellcheck disable=SC2046 # it may have no child for the moment
engine_kill() { kill -9 $(cat "/proc/$pid/task/"*/children) 2>/dev/null || true; }
followed() { # waits for the command, which is to end well; $1: its job, $2: what it says
    wait "$client" || fail "the command failed: $(cat "$dir/says")"
    grep -q "$2" "$dir/says" || fail "the command said: $(cat "$dir/says")"
    losses "$dir/cut" >"$dir/b"
    cmp "$dir/a" "$dir/b" || fail "the losses of $1 differ"
    "$build/hearth" export "$1" "$dir/$1.safetensors" >/dev/null
    cmp "$dir/whole.safetensors" "$dir/$1.safetensors" || fail "the result of $1 differs"
}
train kept >"$dir/cut" 2>"$dir/says" &
client=$!
checkpointed kept
engine_kill
followed kept "the engine process died; the job continues after step [1-9]"
echo "ok - a killed engine's job is followed on from its checkpoint"

long() { # no checkpoint in sight
    "$build/hearth" --json train new --data tests/data/digits/train.safetensors --loss softmax-xent --batch 64 --epochs 1000 \
        --save-as "$1"
}
step() { # waits until a job has made a step, not counting those that a process before did
    i=0
    until "$build/hearth" --json job "$1" 2>/dev/null | grep -q '"state": *"running".*"step": *[1-9]'; do
        i=$((i + 1))
        [ $i -lt 12000 ] || fail "$1 is not at work: $("$build/hearth" --json job "$1" 2>&1)"
        sleep 0.02
    done
}
long anew >"$dir/cut" 2>"$dir/says" &
client=$!
step anew
engine_kill
step anew # by itself
i=0
until grep -q "died before the job's first checkpoint; the job starts over" "$dir/says"; do
    i=$((i + 1))
    [ $i -lt 12000 ] || fail "the command said: $(cat "$dir/says")"
    sleep 0.02
done
for again in 2 3; do
    engine_kill
    [ $again = 3 ] || step anew
done
if wait "$client"; then fail "a job that ends every process went on"; fi
grep -q "died 3 times while job 'anew' was at work" "$dir/says" || fail "the command said: $(cat "$dir/says")"
"$build/hearth" --json job anew | grep -q '"state": *"failed".*died 3 times' ||
    fail "listed as: $("$build/hearth" --json job anew)"
echo "ok - a killed engine's job without a checkpoint begins anew, and is listed as failed behind the third death"

# Jobs that were accepted outlive hearthd, whenever it is killed: one at work that has no checkpoint, and one that waits for it.
left() { # name, and what else is said
    name=$1
    shift
    "$build/hearth" --json train new --data tests/data/digits/train.safetensors --loss softmax-xent --optimizer adam \
        --lr 0.002 --batch 64 --epochs 6 --seed 1 --flip --crop 1 --budget 60% --detach --save-as "$name" "$@" >/dev/null
}
left accepted
left follows --after accepted
kill -9 "$pid"
wait "$pid" 2>/dev/null || true
start
for name in accepted follows; do
    i=0
    until "$build/hearth" --json job $name | grep -q '"state": *"finished"'; do
        i=$((i + 1))
        [ $i -lt 3000 ] || fail "$name is not finished: $("$build/hearth" --json job $name)"
        sleep 0.1
    done
    "$build/hearth" export $name "$dir/$name.safetensors" >/dev/null
    cmp "$dir/whole.safetensors" "$dir/$name.safetensors" || fail "the result of $name differs"
done
if "$build/hearth" ls --all | grep -q '\(accepted\|follows\)\.checkpoint '; then fail "a finished job left its checkpoint"; fi
echo "ok - accepted jobs outlive a killed daemon, with and without a step, and end with the same result"
echo 1..4
