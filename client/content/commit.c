// SPDX-License-Identifier: Apache-2.0
// A commit that got lost is sent again: what it made already is found unchanged.
#include "client/content/send.h"

#include "base/alloc.h"

#include <string.h>
#include <time.h>

#define COMMIT_TRIES   5
#define COMMIT_WAIT_MS 200 // before the second one; each other one takes twice as long

// commit_section makes the data section: the list, the skeleton, and what comes along.
static hth_err commit_section(const hth_content_source *source, const hth_content_version *version,
                              hearth_tensor *section, uint64_t *list_bytes, uint64_t *here)
{
    *here = 0;
    for (int i = 0; i < source->n; i++) {
        *here += source->objects[i].here ? source->objects[i].bytes : 0;
    }
    HTH_TRY(hth_content_list(source->objects, source->n, version->skeleton_bytes + (size_t)*here,
                             section, list_bytes));
    uint8_t *at = (uint8_t *)section->data + *list_bytes;
    memcpy(at, version->skeleton, version->skeleton_bytes);
    at += version->skeleton_bytes;
    hth_err err = HTH_OK;
    for (int i = 0; i < source->n && err == HTH_OK; i++) {
        if (source->objects[i].here && source->objects[i].bytes > 0) {
            err = source->read(source->ctx, i, 0, at, (size_t)source->objects[i].bytes);
            at += source->objects[i].bytes;
        }
    }
    if (err != HTH_OK) {
        hth_free(section->data);
    }
    return err;
}

static hth_err commit_once(hearth *h, const hth_content_source *source,
                           const hth_content_version *version, const hth_watch *watch,
                           uint64_t *moved, hth_reply *reply)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Commit body = HEARTH__COMMIT__INIT;
    hearth_tensor section;
    uint64_t here;
    HTH_TRY(commit_section(source, version, &section, &body.list_bytes, &here));
    body.kind = (char *)(version->kind != NULL ? version->kind : "model");
    body.name = (char *)version->name;
    body.meta = (char *)(version->meta != NULL ? version->meta : "");
    body.max_batch = version->max_batch;
    body.no_wait = version->no_wait;
    body.objects = (uint32_t)source->n;
    body.skeleton_bytes = version->skeleton_bytes;
    q.body_case = HEARTH__REQUEST__BODY_COMMIT;
    q.commit = &body;
    *moved += here;
    hth_err err = hth_exchange(h, &q, &section, watch, reply);
    hth_free(section.data);
    HTH_TRY(err);
    if (reply->head->body_case != HEARTH__REPLY__BODY_IMPORTED) {
        hth_reply_fini(reply);
        return hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", h->url);
    }
    return HTH_OK;
}

static void commit_pause(int tries)
{
    uint64_t ms = (uint64_t)COMMIT_WAIT_MS << tries;
    const struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

void hth_content_report(const Hearth__Imported *imported, uint64_t moved, hearth_import_report *out)
{
    const Hearth__Imported *i = imported;
    *out = (hearth_import_report){.result = {.version = i->version,
                                             .unchanged = i->unchanged,
                                             .tensors_new = i->tensors_new,
                                             .tensors_shared = i->tensors_shared,
                                             .bytes_new = i->bytes_new,
                                             .bytes_shared = i->bytes_shared},
                                  .tensors_repaired = i->tensors_repaired,
                                  .bytes_repaired = i->bytes_repaired,
                                  .record_repaired = i->record_repaired,
                                  .bytes_moved = moved};
}

hth_err hth_content_send_version(hearth *handle, hth_content_source *source,
                                 const hth_content_version *version, const hth_watch *watch,
                                 hearth_import_report *out)
{
    uint64_t moved = 0;
    hth_reply r;
    hth_err err = HTH_OK;
    for (int tries = 0;; tries++) {
        err = hth_content_send(handle, source, watch, &moved);
        if (err == HTH_OK) {
            err = commit_once(handle, source, version, watch, &moved, &r);
        }
        // ENOENT: what was there has expired, or went with the last version that had it
        bool again = (err == HTH_EIO && !source->refused) || err == HTH_ENOENT;
        if (!again || tries == COMMIT_TRIES) {
            break;
        }
        commit_pause(tries);
    }
    if (err != HTH_OK) {
        char sentence[1024];
        strncpy(sentence, hth_err_detail(), sizeof sentence - 1);
        sentence[sizeof sentence - 1] = 0;
        if (source->refused || !hth_content_lost(err)) {
            hth_content_discard_sent(handle, source);
        }
        return hth_fail(err, "%s", sentence);
    }
    hth_content_report(r.head->imported, moved, out);
    hth_reply_fini(&r);
    return HTH_OK;
}
