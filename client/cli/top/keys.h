// SPDX-License-Identifier: Apache-2.0
// client/cli/top/keys.h - what a terminal sends for a key: a byte, or an escape sequence.
#ifndef HTH_CLIENT_CLI_TOP_KEYS_H
#define HTH_CLIENT_CLI_TOP_KEYS_H

#include <stddef.h>

// A key that is a byte is that byte.
enum {
    HTH_KEY_UP = 256,
    HTH_KEY_DOWN,
    HTH_KEY_PAGE_UP,
    HTH_KEY_PAGE_DOWN,
    HTH_KEY_HOME,
    HTH_KEY_END,
    HTH_KEY_OTHER, // none of these
};

// hth_key_next takes the first key of the n bytes at `in` and returns how many bytes it has. 0:
// what is there may go on. A sequence (ECMA-48's CSI and SS3, as xterm, rxvt and the Linux console
// send them) that is not known is one key, so that none of its bytes is taken for a key.
size_t hth_key_next(const char *in, size_t n, int *key);

#endif
