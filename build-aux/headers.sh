#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each header compiles alone. usage: [CUDA_HOME=DIR] build-aux/headers.sh BUILD_DIR [CC]
set -eu
cuda=${CUDA_HOME:-/usr/local/cuda}/include
skip='^$'
[ -f "$cuda/cuda.h" ] && [ -f "$cuda/cudnn.h" ] && [ -f "$cuda/cublasLt.h" ] || { skip=/cuda/; echo "SKIP: headers below cuda/: no CUDA 13 and cuDNN 9 in $cuda"; }
flags="-isystem $cuda -std=c11 -D_GNU_SOURCE -I. -I$1/gen -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function -fsyntax-only -x c"
# shellcheck disable=SC2016
git ls-files '*.h' | grep -v "$skip" | xargs -P "$(nproc)" -I{} sh -c 'echo "#include \"$1\"" | $2 - || { echo "$1 does not compile alone"; exit 1; }' - {} "${2:-cc} $flags"
