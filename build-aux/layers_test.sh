#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes each kind of violation in a copy of the tree, and sees build-aux/layers.sh refuse it by its name. usage:
# build-aux/layers_test.sh, from the root of a clone. Prints what was not refused; exit 1 if anything was not.
set -eu
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-layers.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
git ls-files -z ':!tests/data' | xargs -0 cp --parents -t "$dir"
cd "$dir"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
git init -q . && git add -A
git -c user.name=hearth -c user.email=hearth@localhost commit -qm 'the tree'
bad=0
fail() { echo "$*:"; sed 's/^/    /' out; bad=1; }
look() { git add -A; sh build-aux/layers.sh >out 2>&1; }
refused() { # NAME WORDS: the tree as it is now is refused, and these words of the answer say why; then it is whole again
    if look; then
        fail "$1: not refused"
    elif ! grep -qF -e "$2" out; then
        fail "$1: refused without '$2'"
    fi
    git reset -q --hard
}
adds() { # NAME WORDS FILE LINE: this line, at the end of this file, is refused
    printf '%s\n' "$4" >>"$3"
    refused "$1" "$2"
}
includes() { adds "$2 includes $3" "$1" "$2" "#include $3"; } # WORDS FILE HEADER

look || fail 'the tree itself: refused'
echo '#include "engine/engine.h"' >>base/err_test.c
look || fail "a test that includes what is above it: refused"
git reset -q --hard

# rooms
includes 'base may include only' base/err.c '"engine/engine.h"'
includes 'graph may include only' graph/graph.h '"runtime/model.h"'
includes 'kernels/cuda may include only' "$(git ls-files 'kernels/cuda/*.cu' | head -n 1)" '"memmgr/pool.h"'
includes 'server/rpc may include only' server/rpc/rpc.c '"server/http/http.h"'
includes 'engine/serve may include only' engine/serve/serve.c '"engine/train/train.h"'
includes 'planner may include only' planner/plan.c '"convsel/bench.h"'
includes 'private headers' engine/train/queue/train_queue.c '"engine/train/trainer_impl.h"'
includes 'private headers' planner/plan.c '"planner/bound/plan_bound_impl.h"'
mkdir base/attic
adds 'a folder that nobody has listed' 'base/attic has no line' base/attic/old.c 'int old;'
for i in $(seq 61); do
    echo "int n$i;" >sched/more_$i.c
done
refused 'a crowded folder' 'sched has '

# vendors' headers
includes '<oneapi/|dnnl>' memmgr/run.c '<oneapi/dnnl/dnnl.h>'
includes '<cuda|cudnn|cublas>' memmgr/run.c '<cuda.h>'
includes '<lmdb\.h>' runtime/catalog.c '<lmdb.h>'
includes '<nng/>' engine/engine.c '<nng/nng.h>'
includes '<png\.h>' client/data/jpeg.c '<png.h>'
includes '<jpeglib|jerror>' client/data/png.c '<jpeglib.h>'
includes '<event2?/|event2>' engine/engine.c '<event2/event.h>'

# how an include is written
includes 'includes that climb' server/rpc/rpc.c '"../net/auth.h"'
adds 'an include with a space' 'includes that climb' base/err.c '# include "base/alloc.h"'
includes 'includes that climb' base/err.c '<base/alloc.h>'

# commands that are compared by their names
for line in 'strcmp(word, "train")' 'strncmp(q->what, word, 5)' 'strcmp(command, word)'; do
    adds "$line" 'compared by their names' engine/query/query.c "static int same(void) { return $line; }"
done
adds 'a row of the command line' 'compared by their names' client/cli/cli.c 'static int same(void) { return strcmp(cli->command->name, "x"); }'
sed -i 's/HTH_NEED/NEED/' runtime/command.h
refused 'a table of commands that is not found' 'finds no rows in runtime/command.h'
exit $bad
