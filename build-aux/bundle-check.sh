#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `check` in the bundle (make bundle): gpu-check there, with the programs that lie next to it.
cd "$(dirname "$0")" && exec sh tests/gpu/gpu_check.sh build gpu-check "$@"
