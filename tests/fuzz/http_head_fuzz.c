// SPDX-License-Identifier: Apache-2.0
// A request's head: the first byte says in what pieces it comes. Its end is found where it is found
// at once, and what is accepted has texts that end within it and no byte that ends lines. Ranges
// and what stands after a path's '?' are read further.
#include "server/http/http_head.h"
#include "server/http/http_range.h"
#include "server/http/http_url.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void must(bool right)
{
    if (!right) {
        abort();
    }
}

static void check_text(const char *text, const char *p, size_t n)
{
    if (p != NULL && strcmp(p, "/") != 0) { // the path of a target that has a host alone is no part
        must(p >= text && p + strlen(p) <= text + n);
        for (; *p != 0; p++) {
            must((unsigned char)*p >= ' ' || *p == '\t');
        }
    }
}

// check_query looks for a name that there may be: what is found has room, and no NUL before its
// end.
static void check_query(const char *query)
{
    static const char *const names[] = {"a", "after", "shape", "mine", ""};
    char value[16];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        memset(value, 1, sizeof value);
        hth_http_found found = hth_http_query_get(query, names[i], value, sizeof value);
        must(found == HTH_HTTP_BAD || memchr(value, 0, sizeof value) != NULL);
        must(found != HTH_HTTP_ABSENT || value[0] == 0);
    }
}

static void check_ranges(const char *range, const char *content_range)
{
    static const uint64_t totals[] = {0, 1, 100, UINT64_MAX};
    hth_http_range r;
    for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++) {
        if (hth_http_range_read(range, totals[i], &r) != HTH_HTTP_OUTSIDE) {
            must(r.from <= r.end && r.end <= r.total && r.total == totals[i]);
        }
    }
    if (content_range != NULL && hth_http_content_range(content_range, &r)) {
        must(r.from < r.end && r.end <= r.total);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n < 2) {
        return -1;
    }
    size_t piece = bytes[0] + (size_t)1, whole = 0, seen = 0, end = 0;
    const char *in = (const char *)bytes + 1;
    n--;
    whole = hth_http_head_end(in, n, &seen);
    seen = 0;
    for (size_t come = 0; come < n && end == 0;) {
        come = n - come < piece ? n : come + piece;
        end = hth_http_head_end(in, come, &seen);
    }
    must(end == whole && end <= n);
    if (end == 0) {
        return 0;
    }
    hth_http_head d;
    char *text = malloc(end + 1);
    memcpy(text, in, end);
    if (hth_http_head_read(text, end, &d) == NULL) {
        check_text(text, d.path, end);
        check_text(text, d.authorization, end);
        check_text(text, d.origin, end);
        check_text(text, d.content_encoding, end);
        check_text(text, d.accept_encoding, end);
        check_text(text, d.json_bytes, end);
        check_text(text, d.query, end);
        check_text(text, d.range, end);
        check_text(text, d.content_range, end);
        check_text(text, d.last_event, end);
        check_query(d.query);
        check_ranges(d.range, d.content_range);
        must(d.host == NULL || (d.host >= text && d.host + d.host_bytes <= text + end));
        must(d.host_bytes <= HTH_HTTP_HOST_BYTES && (d.host != NULL || d.minor == 0));
        must(!(d.sized && (d.chunked || d.coded)));
        must(d.verb != HTH_VERB_HEAD || (d.length == 0 && !d.chunked && !d.coded));
    }
    free(text);
    return 0;
}
