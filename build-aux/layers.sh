#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The layer check: a room includes only what its line names (the house, README.md), a private header (NAME_impl.h) stays in its
# room, a vendor's headers stay in the one place that is theirs, and a folder has at most 60 entries. usage:
# build-aux/layers.sh, from the root. Prints each violation; exit 1 if there is any.
set -eu
bad=0
includes() { # FOLDER: "FILE:LINE:HEADER" of all project includes in it; tests may reach up: they bring the pieces together
    find "$1" -maxdepth 1 \( -name '*.[ch]' -o -name '*.cu' \) ! -name '*_test.c' ! -name 'fixture.h' -exec grep -nHoE '^#include "[^"]*' {} + | sed 's/#include "//'
}
room() { # FOLDER ALLOWED...: FOLDER includes itself, and headers of these folders or these single headers
    dir=$1
    shift
    seen="$seen $dir"
    found=$(includes "$dir" | awk -v own="$dir" -v allowed="$*" '
        BEGIN { n = split(allowed, a, " "); a[++n] = own }
        { h = $0; sub(/^[^:]*:[^:]*:/, "", h); folder = h; sub(/\/[^\/]*$/, "", folder); ok = 0
          for (i = 1; i <= n; i++) if (h == a[i] || folder == a[i]) ok = 1
          if (!ok) print }')
    [ -z "$found" ] || { echo "$dir may include only $*:"; echo "$found"; bad=1; }
}
only() { # HEADER-REGEX PATH-REGEX: that vendor header only in files that match
    found=$(git ls-files '*.c' '*.h' | xargs grep -nHE "^#include <($1)" | grep -vE "^($2)" || true)
    [ -z "$found" ] || { echo "<$1> belongs to $2:"; echo "$found"; bad=1; }
}
seen=
base='base base/ipc base/text'
graph='graph graph/onnx graph/passes graph/autodiff'
below_kernels="$base graph graph/passes graph/autodiff device device/cpu kernels kernels/ref convsel/choice.h"
below_runtime="$base sched $graph device device/cpu kernels convsel planner memmgr modelstore"
below_engine="$below_runtime runtime runtime/tenants runtime/compile/compile.h engine/engine.h"
front="$base graph runtime runtime/tenants runtime/content engine client server/net"
room base base/ipc
room base/ipc base
room base/text base
room sched $base
room fair $base
room group $base
room graph base graph/passes/fold.h
room graph/onnx base graph graph/passes
room graph/passes base graph graph/autodiff/grad.h
room graph/autodiff base graph graph/passes
room device base device/cpu/machine.h
for d in device/*/ device/cuda/fake/; do room "${d%/}" $base device device/cuda; done
room modelstore $base graph
room kernels $below_kernels kernels/cpu/cpu.h
room kernels/ref $below_kernels
for d in kernels/cpu kernels/cpu/kmeans kernels/cpu/winograd kernels/cpu/train; do room $d $below_kernels kernels/cpu kernels/cpu/kmeans kernels/cpu/winograd kernels/cpu/train; done
room kernels/dnnl $below_kernels kernels/cpu
room kernels/cuda $below_kernels device/cuda
room kernels/cuda/fake $below_kernels device/cuda device/cuda/fake kernels/cuda
room convsel base graph graph/passes graph/autodiff device device/cpu kernels kernels/cpu/cpu.h kernels/ref/ref_window.h
for d in planner planner/bound planner/exact planner/search; do
    room $d base convsel/choice.h planner planner/bound planner/exact planner/search
done
room memmgr $base graph device kernels convsel planner
room runtime $below_runtime runtime/tenants client/token.h client/safetensors.h client/atomic_file.h runtime/content/dataset_index.h runtime/content/dataset_own.h runtime/content/alias.h
room runtime/compile $below_runtime runtime runtime/tenants
room runtime/tenants $below_runtime runtime client/token.h
room runtime/content $below_runtime runtime runtime/tenants client/content/objects.h client/content/export_write.h client/safetensors.h client/export_format.h client/atomic_file.h
room engine $below_engine engine/local/local.h engine/process/proxy.h engine/router/router.h
room engine/local $below_engine engine engine/serve engine/train engine/train/queue engine/query
room engine/serve $below_engine
room engine/train/checkpoint $below_engine engine/train runtime/content/dataset_index.h
room engine/train/data $below_engine engine/train client/safetensors.h runtime/content/dataset_index.h
room engine/train $below_engine engine/train/checkpoint engine/train/data engine/serve/version_swap.h client/safetensors.h runtime/content/dataset_index.h group
room engine/train/kmeans $below_engine engine/train engine/train/checkpoint engine/train/data engine/serve/version_swap.h group
room engine/train/queue $below_engine engine/train engine/train/checkpoint engine/train/kmeans/kmeans_job.h runtime/content/dataset_own.h fair group/watch.h
room engine/query $below_engine engine/serve engine/train
room engine/process $below_engine engine
room engine/router $below_engine engine group/group.h
room client $base client/content client/data/data.h client/infer/buffer.h client/infer/submit.h client/jobs/job_document.h
room client/infer $base client
room client/jobs $base client
room client/data $base client
room client/content $base graph graph/onnx/onnx.h client
room client/cli/mpi client/hearth.h
room client/cli $base client client/cli/mpi client/content client/data/data.h
room client/cli/top $base client/cli/table.h
room client/cli/infer $base client client/cli client/data
room client/cli/commands $base client client/content client/data/data.h client/cli client/cli/top client/cli/infer fair
room server/net $base runtime runtime/tenants client
room server/rpc $front graph/onnx
http='server/http server/http/tensors server/http/repository server/http/trace server/http/dashboard server/http/remote'
for d in $http; do room $d $front graph/passes $http server/rpc/dispatch.h client/content/objects.h page.inc openapi.inc; done
room server $front modelstore engine/query/query.h engine/train/queue/train_ended.h server/rpc server/http
room server/daemon $front device engine/process/child.h engine/router/router.h server server/http/http.h
# Every folder with code has a line above.
for d in $(git ls-files '*.c' '*.h' | grep -vE '^(tests|docs)/' | sed 's|/[^/]*$||' | sort -u); do
    case " $seen " in *" $d "*) ;; *) echo "$d has no line in $0"; bad=1 ;; esac
done
# A private header is of its folder; fuzzers and rigs in tests/ may look inside.
private=$(git ls-files '*.c' '*.h' '*.cu' | grep -v '^tests/' | xargs grep -nHoE '^#include "[^"]*_impl\.h' |
    awk -F: '{ h = $3; sub(/^#include "/, "", h); a = $1; sub(/\/[^\/]*$/, "", a); b = h; sub(/\/[^\/]*$/, "", b); if (a != b) print }')
[ -z "$private" ] || { echo "private headers, included from another folder:"; echo "$private"; bad=1; }
only 'oneapi/|dnnl' 'kernels/cpu/|kernels/dnnl/'
only 'cuda|cudnn|cublas' 'device/cuda/|kernels/cuda/'
only 'lmdb\.h' 'modelstore/'
only 'nng/' 'client/|server/|tests/bench/'
only 'mpi\.h' 'client/cli/mpi/'
only 'png\.h' 'client/data/png\.c'
only 'jpeglib|jerror' 'client/data/jpeg\.c'
only 'event2?/|event2' 'client/|server/|docs/'
# A command is its enum: its name is compared in runtime/command.c alone ("jobs" is a word of tenants' rules, too), and a row of
# the command line's says what depends on it. What a client writes of an answer is its own.
names=$(sed -n 's/^    X([A-Z]*, \([a-z]*\), HTH_NEED.*/\1/p' runtime/command.h | paste -sd'|')
[ -n "$names" ] || { echo "$0 finds no rows in runtime/command.h"; bad=1; }
compared=$(git ls-files '*.c' '*.h' | grep -vE '^(tests|client)/|_test\.c$|^runtime/command\.c$' |
    xargs grep -nHE "cmp\([^;]*(->|\.)(query|what)\b|cmp\((query|what|command)\b|cmp\([^;\"]*\"($names)\"" |
    grep -vE '^runtime/tenants/tenant_rules\.c:.*"jobs"|^server/rpc/rpc_slot_content\.c:.*"model"' || true
    git ls-files 'client/*.c' 'client/*.h' | xargs grep -nHE 'cmp\([^;]*[^_]command->name' || true)
[ -z "$compared" ] || { echo "commands that are compared by their names:"; echo "$compared"; bad=1; }
crowded=$(git ls-files | awk -F/ -v most=60 '{ d = "."; for (i = 1; i <= NF; i++) { e = i == 1 ? $1 : d "/" $i; if (!(e in known)) { known[e]; n[d]++ } d = e } }
    END { for (d in n) if (n[d] > most && d !~ "^(tests/data|kernels/cuda)(/|$)") print d " has " n[d] " entries; at most " most " can be looked through" }')
[ -z "$crowded" ] || { echo "$crowded"; bad=1; }
odd=$(git ls-files '*.c' '*.h' '*.cu' | xargs grep -nHE "^ *# *include *[<\"][^>\"]*\.\./|^( +#| *# +)include|^#include *<($(echo $seen | tr ' ' '|'))/" || true)
[ -z "$odd" ] || { echo 'includes that climb, or are not written #include "FOLDER/NAME.h":'; echo "$odd"; bad=1; }
exit $bad
