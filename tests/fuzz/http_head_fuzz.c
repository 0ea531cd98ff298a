// SPDX-License-Identifier: Apache-2.0
// A request's head: the first byte says in what pieces it comes. Its end is found where it is found
// at once, and what is accepted has texts that end within it and no byte that ends lines.
#include "server/http/http_head.h"

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
        must(d.host == NULL || (d.host >= text && d.host + d.host_bytes <= text + end));
        must(d.host_bytes <= HTH_HTTP_HOST_BYTES && (d.host != NULL || d.minor == 0));
        must(!(d.sized && (d.chunked || d.coded)));
        must(d.verb != HTH_VERB_HEAD || (d.length == 0 && !d.chunked && !d.coded));
    }
    free(text);
    return 0;
}
