// SPDX-License-Identifier: Apache-2.0
// The command "alias". A moved alias gets requests at once, so the engine loads the new target
// first: no request waits for the load, or fails because of it.
//
//     store thread (is it moved?) --> engine ("load") --> store thread (moved)
//                  \--------------------------------------^
#include "server/rpc/rpc_slot_impl.h"

#include "base/alloc.h"
#include "runtime/content/alias.h"

#include <stdio.h>
#include <stdlib.h>

static void alias_fail(hth_rpc_slot *slot, hth_err err, const char *why)
{
    char sentence[800];
    snprintf(sentence, sizeof sentence, "the alias was not moved: %s", why);
    hth_rpc_slot_fail(slot, err, sentence);
}

static void alias_move(hth_rpc_slot *slot)
{
    hth_alias_change change;
    char *json = NULL;
    hth_err err = slot->r.canceled ? hth_fail(HTH_ECANCELED, "canceled before it was done")
                                   : hth_alias_read(slot->q->query->arguments, &change);
    if (err == HTH_OK) {
        err = hth_alias_answer(slot->d->store, &change, &json);
    }
    if (err != HTH_OK) {
        hth_rpc_slot_fail(slot, err, hth_err_detail());
    } else {
        hth_rpc_slot_told(slot, json, true);
    }
}

static void alias_move_task(hth_store_task *task)
{
    alias_move((hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job)));
}

static void alias_loaded(hth_request *request)
{
    hth_rpc_slot *s = request->ctx;
    hth_free(request->json);
    request->json = NULL;
    hth_free(s->arguments);
    s->arguments = NULL;
    if (request->err != HTH_OK) {
        alias_fail(s, request->err, request->detail);
        return;
    }
    s->job.run = alias_move_task; // not here: the engine's thread waits for no disk
    hth_store_worker_submit(s->d->lists, &s->job);
}

// alias_load has the engine load the new target.
static hth_err alias_load(hth_rpc_slot *slot, const hth_alias_change *change)
{
    char target[HTH_STORE_TARGET];
    hth_store_alias_target(&change->alias, target);
    json_t *args = json_pack("{s:s, s:b}", "model", target, "wait", 0);
    char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
    slot->arguments = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(args);
    if (slot->arguments == NULL) {
        return hth_no_memory("an alias");
    }
    hth_rpc_slot_set_progress(slot, "loading", 0, 0);
    hth_auth_tenant(slot->d->auth, slot->q->token, hth_conn_tenant(slot->conn), slot->tenant,
                    sizeof slot->tenant);
    slot->r.tenant = slot->tenant;
    slot->r.command = HTH_COMMAND_LOAD;
    slot->r.arguments = slot->arguments;
    slot->r.done = alias_loaded;
    slot->r.ctx = slot;
    hth_err err = hth_engine_submit(slot->d->engine, &slot->r);
    if (err != HTH_OK) {
        hth_free(slot->arguments);
        slot->arguments = NULL;
    }
    return err;
}

// alias_allowed: what the alias stands for, and what it is to stand for, are the caller's.
static hth_err alias_allowed(hth_rpc_slot *slot, const hth_alias_change *change)
{
    const hth_caller caller = hth_rpc_slot_caller(slot);
    const hth_store_alias *a = &change->alias;
    HTH_TRY(hth_owner_may(slot->d->store, a->alias, &caller, "move an alias of"));
    return a->name[0] != 0 ? hth_owner_may(slot->d->store, a->name, &caller, "make an alias of")
                           : HTH_OK;
}

static void alias_begin(hth_store_task *task)
{
    hth_rpc_slot *s = (hth_rpc_slot *)((char *)task - offsetof(hth_rpc_slot, job));
    hth_alias_change change;
    hth_err err = hth_alias_read(s->q->query->arguments, &change);
    if (err == HTH_OK) {
        err = alias_allowed(s, &change);
    }
    if (err != HTH_OK) {
        hth_rpc_slot_fail(s, err, hth_err_detail());
    } else if (!change.ready || !hth_alias_moves(s->d->store, &change)) {
        alias_move(s);
    } else if ((err = alias_load(s, &change)) != HTH_OK) {
        alias_fail(s, err, hth_err_detail());
    }
}

void hth_rpc_slot_alias(hth_rpc_slot *slot)
{
    slot->job.run = alias_begin;
    hth_store_worker_submit(slot->d->lists, &slot->job);
}
