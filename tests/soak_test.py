#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A minute of honest and hostile clients at once (tests/tools/soak.py; HEARTH_SOAK_SECONDS for longer). Speaks TAP.
usage: tests/soak_test.py BUILD_DIR, from the root."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE + '/tools')
import tap  # noqa: E402

tap.need_numpy()
BUILD = sys.argv[1] if len(sys.argv) > 1 else 'build'


class Mixed(unittest.TestCase):
    def test_minute(self):
        import soak  # pylint: disable=import-outside-toplevel
        self.assertEqual(soak.soak(BUILD, float(os.environ.get('HEARTH_SOAK_SECONDS', '60')), 1), [])


if __name__ == '__main__':
    sys.exit(tap.run((Mixed,)))
