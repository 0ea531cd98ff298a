// SPDX-License-Identifier: Apache-2.0
#include "server/checkpoint.h"

#include "base/alloc.h"
#include "server/catalog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECKPOINT_NAME 240

static const char checkpoint_skeleton[] = "hearth checkpoint"; // it is no model that can run

static hth_err checkpoint_name(const hth_train_spec *spec, char out[CHECKPOINT_NAME])
{
    char name[208];
    int version;
    HTH_TRY(hth_catalog_parse(spec->save_as != NULL ? spec->save_as : spec->model, name, &version));
    snprintf(out, CHECKPOINT_NAME, "%s.checkpoint", name);
    return HTH_OK;
}

// Removes a version (0: all), and what only that version needed.
static hth_err checkpoint_rm(hth_store *store, const char *name, int version)
{
    uint64_t files, bytes;
    HTH_TRY(hth_store_rm(store, name, version));
    return hth_store_gc(store, &files, &bytes);
}

hth_err hth_checkpoint_save(hth_store *store, const hth_train_spec *spec, hth_trainer *t,
                            const hth_checkpoint *c)
{
    char name[CHECKPOINT_NAME];
    hth_put_tensor *put;
    hth_put_result result;
    int n;
    HTH_TRY(checkpoint_name(spec, name));
    HTH_TRY(hth_trainer_state(t, &put, &n));
    json_t *doc = json_pack("{s:O, s:I, s:I, s:O}", "job", c->args, "step", (json_int_t)c->step,
                            "steps", (json_int_t)c->steps, "history", c->history);
    char *meta = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(17));
    hth_err err = meta != NULL
                      ? hth_store_put(store, name, checkpoint_skeleton, sizeof checkpoint_skeleton,
                                      meta, put, n, NULL, NULL, &result)
                      : hth_fail(HTH_ENOMEM, "no memory for a checkpoint");
    if (err == HTH_OK && !result.unchanged && result.version > 1) {
        err = checkpoint_rm(store, name, result.version - 1);
        err = err == HTH_ENOENT ? HTH_OK : err;
    }
    free(meta);
    json_decref(doc);
    hth_free(put);
    return err;
}

// The losses of a job do not depend on these.
static bool key_is_free(const char *key)
{
    static const char *const names[] = {"budget",  "policy", "plan-ms", "checkpoint-every",
                                        "threads", "resume", "trace"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(key, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// The first key of `a` that `b` says differently, or NULL.
static const char *job_differs(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)a, key, v)
    {
        if (!key_is_free(key) && !json_equal(v, json_object_get(b, key))) {
            return key;
        }
    }
    return NULL;
}

static hth_err checkpoint_read(hth_store *store, const hth_manifest *m, hth_trainer *t,
                               hth_checkpoint *c)
{
    json_t *doc = json_loads(m->meta, 0, NULL);
    json_t *job = json_object_get(doc, "job"), *history = json_object_get(doc, "history");
    json_int_t step = json_integer_value(json_object_get(doc, "step"));
    const char *key = job_differs(job, c->args);
    key = key != NULL ? key : job_differs(c->args, job);
    hth_err err = HTH_OK;
    if (!json_is_object(job) || step < 1 || json_array_size(history) != (size_t)step) {
        err = hth_fail(HTH_ECORRUPT, "'%s' is no checkpoint", m->name);
    } else if (key != NULL) {
        err = hth_fail(HTH_EINVAL, "'%s' is of another job: '%s' is not the same", m->name, key);
    } else if (json_integer_value(json_object_get(doc, "steps")) != c->steps) {
        err = hth_fail(HTH_EINVAL, "'%s' is of another job: its data has another size", m->name);
    } else {
        err = hth_trainer_restore(t, store, m, (uint64_t)step);
    }
    if (err == HTH_OK) {
        c->step = step;
        err = json_array_extend(c->history, history) == 0
                  ? HTH_OK
                  : hth_fail(HTH_ENOMEM, "no memory for a checkpoint");
    }
    json_decref(doc);
    return err;
}

hth_err hth_checkpoint_load(hth_store *store, const hth_train_spec *spec, hth_trainer *t,
                            hth_checkpoint *c)
{
    char name[CHECKPOINT_NAME];
    hth_manifest m;
    HTH_TRY(checkpoint_name(spec, name));
    hth_err err = hth_store_get(store, name, 0, &m);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    err = checkpoint_read(store, &m, t, c);
    hth_manifest_fini(&m);
    return err;
}

hth_err hth_checkpoint_drop(hth_store *store, const hth_train_spec *spec)
{
    char name[CHECKPOINT_NAME];
    HTH_TRY(checkpoint_name(spec, name));
    hth_err err = checkpoint_rm(store, name, 0);
    return err == HTH_ENOENT ? HTH_OK : err;
}
