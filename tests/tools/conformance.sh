#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The onnx package's backend node tests through libhearth.so. Uses $PYTHON if it has onnx, else a virtual environment in the
# build folder. usage: tests/tools/conformance.sh BUILD_DIR [ARGUMENTS OF conformance.py]
set -eu
build=$1
shift
python=${PYTHON:-python3}
if ! "$python" -c 'import onnx, numpy' 2>/dev/null; then
    python=$build/venv/bin/python
    if [ ! -x "$python" ]; then
        python3 -m venv "$build/venv" 2>/dev/null || {
            [ "$(id -u)" = 0 ] || { echo "conformance: needs python3-venv: apt-get install python3-venv" >&2; exit 1; }
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
            python3 -m venv "$build/venv"
        }
    fi
    "$python" -c 'import onnx, numpy, ml_dtypes' 2>/dev/null || "$python" -m pip install -q onnx numpy ml_dtypes
fi
exec "$python" tests/tools/conformance.py "$build/libhearth.so" "$@"
