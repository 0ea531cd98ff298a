#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each header compiles alone. usage: build-aux/headers.sh BUILD_DIR [CC]
set -eu
flags="-std=c11 -D_GNU_SOURCE -I. -I$1/gen -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function -fsyntax-only -x c"
# shellcheck disable=SC2016
git ls-files '*.h' | xargs -P "$(nproc)" -I{} sh -c 'echo "#include \"$1\"" | $2 - || { echo "$1 does not compile alone"; exit 1; }' - {} "${2:-cc} $flags"
