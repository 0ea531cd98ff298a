// SPDX-License-Identifier: Apache-2.0
// The command "watch". Without "after", or about a job of which no events are kept, the engine is
// asked where the job stands ("job"), which also says whether there is one and whose it is; from
// then on its events are kept. With "after" the table answers, at once or later (job_watch.h).
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_MOST_MS 60000 // that a request waits

static hth_rpc_slot *watch_slot(hth_job_waiter *waiter)
{
    return (hth_rpc_slot *)((char *)waiter - offsetof(hth_rpc_slot, watch));
}

// watch_answer looks at the token again: it may have been revoked while its request waited.
static void watch_answer(hth_job_waiter *waiter, hth_err err, char *json)
{
    hth_rpc_slot *s = watch_slot(waiter);
    if (err == HTH_OK) {
        err = hth_auth_check(s->d->auth, hth_conn_peer(s->conn), s->q->token,
                             hth_auth_need(s->q, s->command), NULL);
    }
    if (err != HTH_OK) {
        hth_free(json);
        hth_rpc_slot_fail(s, err, hth_err_detail());
        return;
    }
    hth_rpc_slot_told(s, json, true);
}

// ---- where the job stands

// watch_goes_on: something may happen to a job in this state.
static bool watch_goes_on(const json_t *row)
{
    static const char *const ended[] = {"finished", "failed", "canceled"};
    const char *state = json_string_value(json_object_get(row, "state"));
    bool on = state != NULL;
    for (size_t i = 0; i < sizeof ended / sizeof *ended && on; i++) {
        on = strcmp(state, ended[i]) != 0;
    }
    return on;
}

// watch_known notes which job the row is about, so that its events are kept.
static void watch_known(hth_rpc_slot *slot, const json_t *row)
{
    const char *name = json_string_value(json_object_get(row, "job"));
    const char *tenant = json_string_value(json_object_get(row, "tenant"));
    json_int_t id = json_integer_value(json_object_get(row, "id"));
    bool same = name != NULL && strcmp(name, slot->job_name) == 0 && tenant != NULL && id > 0;
    uint64_t known = same && watch_goes_on(row) ? (uint64_t)id : 0;
    hth_job_watches_end(slot->d->watches, slot->job_name, known, tenant != NULL ? tenant : "");
}

static void watch_done(hth_request *req)
{
    hth_rpc_slot *s = req->ctx;
    char *row = req->json;
    json_t *doc = req->err == HTH_OK && row != NULL ? json_loads(row, 0, NULL) : NULL;
    watch_known(s, doc);
    json_decref(doc);
    if (req->err != HTH_OK) {
        hth_rpc_slot_refused(s, req->err, req->detail);
    } else {
        bool missed = s->watch.after > 0; // whatever has come after it is in the row
        char *text = hth_job_watches_text(row, NULL, s->watch_last, missed);
        watch_answer(&s->watch, text != NULL ? HTH_OK : hth_no_memory("an answer"), text);
    }
    hth_free(row);
}

// watch_ask has the engine say where the job stands; its row needs no losses.
static hth_err watch_ask(hth_rpc_slot *slot, json_t *args)
{
    json_object_del(args, "after");
    json_object_del(args, "wait_ms");
    json_object_set_new(args, "points", json_integer(1));
    free(slot->changed);
    slot->changed = json_dumps(args, JSON_COMPACT);
    if (slot->changed == NULL) {
        return hth_no_memory("a question");
    }
    slot->r.command = HTH_COMMAND_JOB;
    slot->r.arguments = slot->changed;
    slot->r.done = watch_done;
    hth_job_watches_begin(slot->d->watches, slot->job_name, &slot->watch_last);
    hth_err err = hth_engine_submit(slot->d->engine, &slot->r);
    if (err != HTH_OK) {
        hth_job_watches_end(slot->d->watches, slot->job_name, 0, "");
    }
    return err;
}

// ---- what happens to it

static hth_err watch_count(const json_t *args, const char *key, uint64_t most, uint64_t *out)
{
    double v = json_number_value(json_object_get(args, key));
    *out = 0;
    if (!(v >= 0 && v < 9007199254740992.0)) {
        return hth_fail(HTH_EINVAL, "'%s' must be a number from 0", key);
    }
    *out = v < (double)most ? (uint64_t)v : most;
    return HTH_OK;
}

// watch_begin answers, or has the slot wait for an event or the engine; on error it has not.
static hth_err watch_begin(hth_rpc_slot *slot, json_t *args)
{
    uint64_t wait_ms;
    char *json = NULL;
    hth_job_waiter *w = &slot->watch;
    HTH_TRY(watch_count(args, "after", UINT64_MAX, &w->after));
    HTH_TRY(watch_count(args, "wait_ms", WATCH_MOST_MS, &wait_ms));
    snprintf(slot->job_name, sizeof slot->job_name, "%s",
             json_string_value(json_object_get(args, "job")));
    w->id = (uint64_t)json_integer_value(json_object_get(args, "id"));
    w->tenant = slot->r.admin ? NULL : slot->tenant;
    w->asks = slot->tenant;
    w->end_ns = hth_now_ns() + wait_ms * 1000000;
    w->canceled = &slot->r.canceled;
    w->answer = watch_answer;
    hth_err err = w->after > 0 ? hth_job_watches_wait(slot->d->watches, w, &json) : HTH_ENOENT;
    if (err == HTH_ENOENT) {
        return watch_ask(slot, args);
    }
    if (json != NULL) {
        watch_answer(w, HTH_OK, json);
    }
    return err;
}

void hth_rpc_slot_watch(hth_rpc_slot *slot)
{
    json_t *args = NULL;
    hth_err err = hth_rpc_slot_read(slot);
    if (err == HTH_OK) {
        args = json_loads(slot->changed, 0, NULL);
        err = args != NULL ? watch_begin(slot, args) : hth_no_memory("a question");
    }
    json_decref(args);
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
    }
}
