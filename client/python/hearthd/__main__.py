# SPDX-License-Identifier: Apache-2.0
"""`python -m hearthd`: the server, with its own options."""
from _hearthd_programs import hearthd

if __name__ == '__main__':
    hearthd()
