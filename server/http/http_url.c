// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_url.h"

#include <string.h>

static int hex_digit(char c)
{
    int low = c | 32;
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

bool hth_http_decode(const char *text, size_t bytes, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (c == '%') {
            int high = bytes - i > 2 ? hex_digit(text[i + 1]) : -1;
            int low = bytes - i > 2 ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0 || high + low == 0) {
                return false;
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (n + 1 >= cap) {
            return false;
        }
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

hth_http_found hth_http_query_get(const char *query, const char *name, char *out, size_t cap)
{
    size_t want = strlen(name);
    hth_http_found found = HTH_HTTP_ABSENT;
    out[0] = 0;
    for (const char *p = query; p != NULL && *p != 0;) {
        size_t n = strcspn(p, "&"), key = strcspn(p, "=&");
        if (key == want && memcmp(p, name, want) == 0) {
            size_t value = key < n ? key + 1 : n;
            if (found != HTH_HTTP_ABSENT || !hth_http_decode(p + value, n - value, out, cap)) {
                return HTH_HTTP_BAD;
            }
            found = HTH_HTTP_FOUND;
        }
        p += n + (p[n] == '&');
    }
    return found;
}
