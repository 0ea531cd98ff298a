#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libhearth.so exports hearth_* and nothing else, the CUDA plug-in its entry, oneDNN's that and the six functions of OpenMP's ABI that
# oneDNN calls. usage: build-aux/exports.sh BUILD_DIR
set -eu
names=$(nm -D --defined-only "$1/libhearth.so" | awk '$2 ~ /[A-Z]/ {print $3}')
[ -n "$names" ] || { echo "libhearth.so exports nothing"; exit 1; }
if echo "$names" | grep -v '^hearth_'; then echo "libhearth.so exports names that are not hearth_*"; exit 1; fi
names=$(nm -D --defined-only "$1/libhearth_dnnl.so" | awk '$2 ~ /[A-Z]/ {print $3}' | sort | tr '\n' ' ')
[ "$names" = 'GOMP_barrier GOMP_parallel hth_dnnl_plugin omp_get_max_threads omp_get_num_threads omp_get_thread_num omp_in_parallel ' ] ||
    { echo "libhearth_dnnl.so exports: $names"; exit 1; }
[ -f "$1/libhearth_cuda.so" ] || { echo "SKIP: exports of libhearth_cuda.so: it was not built"; exit 0; }
names=$(nm -D --defined-only "$1/libhearth_cuda.so" | awk '$2 ~ /[A-Z]/ {print $3}')
[ "$names" = hth_cuda_plugin ] || { echo "libhearth_cuda.so exports: $names"; exit 1; }
