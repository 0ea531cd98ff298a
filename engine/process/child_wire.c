// SPDX-License-Identifier: Apache-2.0
#include "engine/process/child_wire.h"

#include "base/alloc.h"

#include <string.h>

#define WIRE_MAX_TENSORS 65536u

static size_t text_bytes(const char *text)
{
    return text != NULL ? strlen(text) + 1 : 0;
}

// text_put copies a text to *at of the record and returns its offset, 0: there is none.
static uint64_t text_put(hth_child_record *r, uint64_t *at, const char *text)
{
    uint64_t start = *at;
    size_t n = text_bytes(text);
    if (n == 0) {
        return 0;
    }
    memcpy((char *)r + start, text, n);
    *at += n;
    return start;
}

hth_err hth_child_record_new(const char *const text[HTH_CHILD_TEXTS], const hth_request_tensor *t,
                             int n, void *(*take)(void *ctx, size_t bytes), void *ctx,
                             hth_child_record **out)
{
    uint64_t at = sizeof **out + (size_t)n * sizeof(hth_child_tensor);
    size_t bytes = at + 1; // the last one is zero, whatever the texts
    for (int i = 0; i < HTH_CHILD_TEXTS; i++) {
        bytes += text_bytes(text[i]);
    }
    for (int i = 0; i < n; i++) {
        bytes += text_bytes(t[i].name);
    }
    hth_child_record *r = take(ctx, bytes);
    *out = r;
    if (r == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a message of %zu bytes", bytes);
    }
    memset(r, 0, at);
    r->bytes = bytes;
    r->n_tensors = (uint32_t)n;
    for (int i = 0; i < HTH_CHILD_TEXTS; i++) {
        r->text[i] = text_put(r, &at, text[i]);
    }
    for (int i = 0; i < n; i++) {
        hth_child_tensor *w = &r->tensor[i];
        w->name = text_put(r, &at, t[i].name);
        w->bytes = t[i].t.bytes;
        w->dtype = (uint16_t)t[i].t.dtype;
        w->rank = (uint16_t)t[i].t.shape.rank;
        memcpy(w->dim, t[i].t.shape.dim, sizeof w->dim);
    }
    ((char *)r)[at] = 0;
    return HTH_OK;
}

static hth_err wire_wrong(const char *what)
{
    return hth_fail(HTH_ECORRUPT, "a message between hearthd and its engine's process: %s", what);
}

hth_err hth_child_record_check(const hth_child_record *r, uint64_t bytes)
{
    if (bytes < sizeof *r + 1 || r->bytes != bytes || r->n_tensors > WIRE_MAX_TENSORS ||
        (bytes - sizeof *r) / sizeof r->tensor[0] < r->n_tensors || r->n_known > r->n_tensors) {
        return wire_wrong("its size is not what it says");
    }
    uint64_t first = sizeof *r + r->n_tensors * sizeof r->tensor[0];
    if (((const char *)r)[bytes - 1] != 0) { // hence every text ends inside
        return wire_wrong("a text has no end");
    }
    for (int i = 0; i < HTH_CHILD_TEXTS; i++) {
        if (r->text[i] != 0 && (r->text[i] < first || r->text[i] >= bytes)) {
            return wire_wrong("a text lies outside");
        }
    }
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const hth_child_tensor *t = &r->tensor[i];
        if (t->name != 0 && (t->name < first || t->name >= bytes)) {
            return wire_wrong("a name lies outside");
        }
        if (t->rank > HTH_MAX_RANK) {
            return wire_wrong("a tensor has too many dimensions");
        }
    }
    if (r->n_files > HTH_REQUEST_FILES) {
        return wire_wrong("it has too many files");
    }
    if ((unsigned)r->err >= HTH_N_ERR) {
        return wire_wrong("there is no such error");
    }
    return HTH_OK;
}

const char *hth_child_record_text(const hth_child_record *r, int which)
{
    return r->text[which] != 0 ? (const char *)r + r->text[which] : NULL;
}

hth_request_tensor hth_child_record_tensor(const hth_child_record *r, int i)
{
    const hth_child_tensor *w = &r->tensor[i];
    hth_request_tensor t = {.name = w->name != 0 ? (const char *)r + w->name : NULL,
                            .t = {.dtype = (hth_dtype)w->dtype,
                                  .layout = HTH_LAYOUT_PLAIN,
                                  .shape = {.rank = w->rank},
                                  .bytes = w->bytes}};
    memcpy(t.t.shape.dim, w->dim, sizeof w->dim);
    return t;
}
