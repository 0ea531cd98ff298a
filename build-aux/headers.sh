#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each header compiles alone. usage: build-aux/headers.sh BUILD_DIR [CC]
set -eu
bad=0
for h in $(git ls-files '*.h'); do
    echo "#include \"$h\"" | ${2:-cc} -std=c11 -D_GNU_SOURCE -I. -I"$1/gen" -Wall -Wextra -Werror -fsyntax-only -x c - || { echo "$h does not compile alone"; bad=1; }
done
exit $bad
