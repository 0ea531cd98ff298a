// SPDX-License-Identifier: Apache-2.0
// A version goes from one server to another through the client, a piece at a time: what the other
// one lacks. What either sends is checked by the server that gets it.
#include "client/content/fetch.h"
#include "client/content/send.h"

#include <string.h>

typedef struct push_from {
    hearth *h;
    const hth_content_made *made;
} push_from;

static hth_err push_read(void *ctx, int i, uint64_t at, void *dst, size_t n)
{
    const push_from *p = ctx;
    return hth_content_piece(p->h, p->made, i, at, dst, n);
}

static hth_err push_check(hearth *from, hearth *to)
{
    HTH_TRY(hth_exchange_check(from));
    return hth_exchange_check(to);
}

// push_named refuses another name than the caller's: it would be taken, or replaced, at the other
// server.
static hth_err push_named(const hearth *from, const char *model, const hth_content_made *made)
{
    size_t n = strcspn(model, ":");
    return strncmp(made->name, model, n) == 0 && made->name[n] == 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'%.*s' at %s is '%s': push that", (int)n, model, from->url,
                          made->name);
}

hearth_status hearth_push(hearth *h, const char *model, hearth *to, int no_wait,
                          hearth_progress progress, void *ctx, hearth_import_report *out)
{
    hth_content_made made;
    hearth_import_report report;
    hth_watch watch = {.fn = progress, .ctx = ctx};
    hth_err err = push_check(h, to);
    if (err != HTH_OK) {
        return (hearth_status)err;
    }
    HTH_GOTO(hth_content_made_get(h, model, &made), done);
    HTH_GOTO(push_named(h, model, &made), done);
    push_from from = {h, &made};
    hth_content_source source = {
        .objects = made.objects, .n = made.n, .read = push_read, .ctx = &from};
    const hth_content_version v = {.name = made.name,
                                   .meta = made.meta,
                                   .max_batch = -1,
                                   .no_wait = no_wait != 0,
                                   .skeleton = made.skeleton,
                                   .skeleton_bytes = made.skeleton_bytes};
    err = hth_content_send_version(to, &source, &v, &watch, &report);
done:
    hth_content_made_fini(&made);
    if (err == HTH_OK && out != NULL) {
        *out = report;
    }
    return (hearth_status)err;
}
