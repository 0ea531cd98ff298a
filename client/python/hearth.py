# SPDX-License-Identifier: Apache-2.0
"""The package's name in this tree until 0.1.0, for programs that have the tree on their path. On PyPI it is another project's."""
import sys

import hearthd

sys.modules[__name__] = hearthd
