#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that reads the code without running it. usage: build-aux/lint.sh BUILD_DIR, from the root, after a build.
set -u
bad=0
step() { printf '  %-8s %s\n' LINT "$*"; }
step layers
sh build-aux/layers.sh || bad=1
step 'layers: each kind of violation is refused'
sh build-aux/layers_test.sh || bad=1
step 'headers compile alone'
sh build-aux/headers.sh "$1" || bad=1
step 'names in the CUDA table'
sh build-aux/cuda_symbols.sh cc "${CUDA_HOME:-/usr/local/cuda}" || bad=1
step 'exports of the libraries'
sh build-aux/exports.sh "$1" || bad=1
step 'documentation: length, lines, links, files'
python3 build-aux/docs.py || bad=1
step 'chains and ladders of errors, two ?: in one statement, 100 columns'
python3 build-aux/idiom.py || bad=1
step 'SPDX lines'
git ls-files '*.c' '*.h' '*.proto' '*.sh' '*.py' '*.js' '*.css' '*.html' Makefile '*.mk' | xargs grep -L 'SPDX-License-Identifier: Apache-2.0' | grep . && bad=1
step 'format (clang-format 14)'
case $(clang-format --version 2>/dev/null) in
*version\ 14.*)
    git ls-files '*.c' '*.h' | xargs -P 2 -n 40 clang-format --dry-run -Werror --ferror-limit=1 || { echo 'make format changes these'; bad=1; } ;;
*) echo "SKIP: format check: clang-format 14 (Debian 12) is not here" ;;
esac
step 'manual pages (mandoc)'
mandoc -T lint -W warning "$1"/man/*.[138] || bad=1
step "the Python client's types (mypy)"
mypy --strict --allow-any-generics --no-warn-return-any --ignore-missing-imports --cache-dir="$1/mypy" client/python/hearthd client/python/_hearthd_programs.py client/python/examples || bad=1
step cppcheck
mkdir -p "$1/cppcheck" # what it found last time, for files that did not change
# ctuuninitvar: does not see that a callee writes through its argument.
git ls-files '*.c' | grep -v _test.c | xargs cppcheck -q -j2 --cppcheck-build-dir="$1/cppcheck" --std=c11 \
    --enable=warning,portability --inline-suppr --error-exitcode=1 --max-configs=2 --suppress=missingIncludeSystem \
    --suppress=nullPointerArithmeticOutOfMemory --suppress=ctuuninitvar '--suppress=preprocessorErrorDirective:*.pb-c.h' \
    -D__x86_64__ -I. -I"$1/gen" || bad=1
exit $bad
