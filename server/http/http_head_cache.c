// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_head_cache.h"

#include "base/alloc.h"

#include <string.h>

// seen_recurs tells whether a head is of a kind that comes again as it is.
static bool seen_recurs(const json_t *doc, const hth_json_span *data, int max)
{
    const json_t *id = json_object_get(doc, "id");
    if (!json_is_object(doc) || (id != NULL && json_string_length(id) > 0)) {
        return false;
    }
    for (int i = 0; i < max; i++) {
        if (data[i].p != NULL) { // stands in the text
            return false;
        }
    }
    return true;
}

static void seen_keep(hth_head_cache *s, const char *text, size_t n, json_t *doc)
{
    hth_head_cache_head *h = &s->head[s->next++ % HTH_HEAD_CACHE_HEADS];
    char *copy = hth_memdup(text, n);
    if (copy == NULL) {
        return; // it is parsed again
    }
    hth_free(h->text);
    json_decref(h->doc);
    *h = (hth_head_cache_head){copy, n, json_incref(doc)};
}

hth_err hth_head_cache_request(hth_head_cache *s, const char *text, size_t n, hth_json_span *data,
                               int max, uint64_t *counted, json_t **out)
{
    for (const hth_head_cache_head *h = s->head; h < s->head + HTH_HEAD_CACHE_HEADS; h++) {
        if (h->n == n && h->text != NULL && memcmp(h->text, text, n) == 0) {
            *out = json_incref(h->doc);
            return HTH_OK;
        }
    }
    HTH_TRY(hth_json_request(text, n, data, max, counted, out));
    if (n <= HTH_HEAD_CACHE_BYTES && seen_recurs(*out, data, max)) {
        seen_keep(s, text, n, *out);
    }
    return HTH_OK;
}

void hth_head_cache_fini(hth_head_cache *s)
{
    for (hth_head_cache_head *h = s->head; h < s->head + HTH_HEAD_CACHE_HEADS; h++) {
        hth_free(h->text);
        json_decref(h->doc);
    }
    memset(s, 0, sizeof *s);
}
