// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top/keys.h"

#include <stdbool.h>

#define KEYS_ESCAPE   27
#define KEYS_SEQUENCE 32 // bytes; what goes on for longer is no key

// By the last byte of CSI or SS3, whatever modifiers came before it.
static int keys_letter(char last)
{
    switch (last) {
    case 'A':
        return HTH_KEY_UP;
    case 'B':
        return HTH_KEY_DOWN;
    case 'H':
        return HTH_KEY_HOME;
    case 'F':
        return HTH_KEY_END;
    default:
        return HTH_KEY_OTHER;
    }
}

// By the number of CSI NUMBER ~.
static int keys_number(const char *in, size_t n)
{
    int number = 0;
    for (size_t i = 0; i < n && in[i] >= '0' && in[i] <= '9' && number < 100; i++) {
        number = 10 * number + (in[i] - '0');
    }
    switch (number) {
    case 1:
    case 7:
        return HTH_KEY_HOME;
    case 4:
    case 8:
        return HTH_KEY_END;
    case 5:
        return HTH_KEY_PAGE_UP;
    case 6:
        return HTH_KEY_PAGE_DOWN;
    default:
        return HTH_KEY_OTHER;
    }
}

static size_t keys_csi(const char *in, size_t n, int *key)
{
    for (size_t i = 2; i < n; i++) {
        if (in[i] >= 0x40 && in[i] <= 0x7e) {
            *key = in[i] == '~' ? keys_number(in + 2, i - 2) : keys_letter(in[i]);
            return i + 1;
        }
    }
    *key = HTH_KEY_OTHER;
    return n >= KEYS_SEQUENCE ? n : 0;
}

size_t hth_key_next(const char *in, size_t n, int *key)
{
    *key = HTH_KEY_OTHER;
    if (n == 0) {
        return 0;
    }
    if (in[0] != KEYS_ESCAPE) {
        *key = (signed char)in[0] >= 0 ? in[0] : HTH_KEY_OTHER;
        return 1;
    }
    if (n >= 2 && in[1] == '[') {
        return keys_csi(in, n, key);
    }
    if (n >= 2 && in[1] == 'O') {
        *key = n >= 3 ? keys_letter(in[2]) : HTH_KEY_OTHER;
        return n >= 3 ? 3 : 0;
    }
    return n >= 2 ? 1 : 0; // the key Esc by itself: what follows is the next key
}
