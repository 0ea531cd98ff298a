// SPDX-License-Identifier: Apache-2.0
// server/http/http_url.h - names in a path, and what stands after its '?'. Pure.
#ifndef HTH_SERVER_HTTP_HTTP_URL_H
#define HTH_SERVER_HTTP_HTTP_URL_H

#include <stdbool.h>
#include <stddef.h>

// hth_http_decode undoes the percent-encoding of `bytes` bytes at `text`. false: it is malformed,
// decodes to a NUL, or has no room in `cap` bytes with the one that ends it.
bool hth_http_decode(const char *text, size_t bytes, char *out, size_t cap);

typedef enum hth_http_found {
    HTH_HTTP_ABSENT,
    HTH_HTTP_FOUND,
    HTH_HTTP_BAD, // as hth_http_decode's false, or it is there twice
} hth_http_found;

// hth_http_query_get looks for `name` in a query ("after=3&mine", NULL: there is none) and stores
// its decoded value; "" where it has none. Other names are not looked at.
hth_http_found hth_http_query_get(const char *query, const char *name, char *out, size_t cap);

#endif
