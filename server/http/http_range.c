// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_range.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

// range_number reads digits, and returns where they end; NULL: there are none, or too many.
static const char *range_number(const char *text, uint64_t *out)
{
    const char *p = text;
    *out = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (*out > (UINT64_MAX - digit) / 10) {
            return NULL;
        }
        *out = *out * 10 + digit;
    }
    return p > text ? p : NULL;
}

bool hth_http_content_range(const char *text, hth_http_range *out)
{
    uint64_t last = 0;
    const char *p = strncasecmp(text, "bytes ", 6) == 0 ? range_number(text + 6, &out->from) : NULL;
    p = p != NULL && *p == '-' ? range_number(p + 1, &last) : NULL;
    p = p != NULL && *p == '/' ? range_number(p + 1, &out->total) : NULL;
    if (p == NULL || *p != 0 || last < out->from || last >= out->total) {
        return false;
    }
    out->end = last + 1;
    return true;
}

// range_tail is "-5": the last five bytes.
static hth_http_ranged range_tail(const char *text, hth_http_range *out)
{
    uint64_t n;
    const char *p = range_number(text, &n);
    if (p == NULL || *p != 0) {
        return HTH_HTTP_WHOLE;
    }
    out->from = n < out->total ? out->total - n : 0;
    out->end = out->total;
    return out->from < out->end ? HTH_HTTP_PART : HTH_HTTP_OUTSIDE;
}

hth_http_ranged hth_http_range_read(const char *text, uint64_t total, hth_http_range *out)
{
    uint64_t last = UINT64_MAX;
    *out = (hth_http_range){0, total, total};
    if (text == NULL || strncasecmp(text, "bytes=", 6) != 0) {
        return HTH_HTTP_WHOLE;
    }
    if (text[6] == '-') {
        return range_tail(text + 7, out);
    }
    uint64_t from;
    const char *p = range_number(text + 6, &from);
    if (p == NULL || *p != '-') {
        return HTH_HTTP_WHOLE;
    }
    if (p[1] != 0) {
        p = range_number(p + 1, &last);
        if (p == NULL || *p != 0 || last < from) {
            return HTH_HTTP_WHOLE;
        }
    }
    if (from >= total) {
        return HTH_HTTP_OUTSIDE;
    }
    out->from = from;
    out->end = last < total ? last + 1 : total;
    return HTH_HTTP_PART;
}
