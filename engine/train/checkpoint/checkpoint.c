// SPDX-License-Identifier: Apache-2.0
#include "engine/train/checkpoint/checkpoint.h"

#include "base/alloc.h"
#include "runtime/catalog.h"
#include "runtime/content/dataset_index.h"
#include "runtime/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char checkpoint_skeleton[] = "hearth checkpoint"; // it is no model that can run

hth_err hth_checkpoint_name(const hth_train_spec *spec, char out[HTH_CHECKPOINT_NAME])
{
    char name[208];
    int version;
    HTH_TRY(hth_catalog_parse(spec->save_as != NULL ? spec->save_as : spec->model, name, &version));
    snprintf(out, HTH_CHECKPOINT_NAME, "%s" HTH_CHECKPOINT_TAIL, name);
    return HTH_OK;
}

json_t *hth_checkpoint_doc(const hth_checkpoint *checkpoint)
{
    return json_pack("{s:O, s:I, s:I, s:O, s:O, s:I, s:O*}", "job", checkpoint->args, "step",
                     (json_int_t)checkpoint->step, "steps", (json_int_t)checkpoint->steps,
                     "history", checkpoint->history, "held_out", checkpoint->held_out, "ran_ms",
                     (json_int_t)checkpoint->ran_ms, "shards", checkpoint->shards);
}

hth_err hth_checkpoint_put(hth_store *store, const char *name, const char *meta,
                           const hth_put_tensor *put, int count)
{
    hth_put_result result;
    return hth_store_put(store, name, checkpoint_skeleton, sizeof checkpoint_skeleton, meta, put,
                         count, NULL, NULL, &result);
}

hth_err hth_checkpoint_accept(hth_store *store, const char *job, const json_t *args)
{
    char name[HTH_CHECKPOINT_NAME];
    snprintf(name, sizeof name, "%s" HTH_CHECKPOINT_TAIL, job);
    json_t *doc = json_pack("{s:O, s:i, s:i, s:[], s:[]}", "job", args, "step", 0, "steps", 0,
                            "history", "held_out");
    char *meta = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    hth_err err =
        meta != NULL ? hth_checkpoint_put(store, name, meta, NULL, 0) : hth_no_memory("a job");
    free(meta);
    HTH_TRY(err);
    hth_checkpoint_note_set(store, job, "");
    return hth_checkpoint_trim(store, name);
}

hth_err hth_checkpoint_trim(hth_store *store, const char *name)
{
    int *versions, n;
    hth_err err = HTH_OK;
    HTH_TRY(hth_store_versions(store, name, &versions, &n));
    for (int i = n - 2; i >= 0 && err == HTH_OK; i--) {
        err = hth_checkpoint_forget(store, name, versions[i]);
        err = err == HTH_ENOENT ? HTH_OK : err;
    }
    hth_free(versions);
    return err;
}

hth_err hth_checkpoint_back(hth_store *store, const char *name, int64_t *step)
{
    hth_manifest before;
    int *versions, n;
    HTH_TRY(hth_store_versions(store, name, &versions, &n));
    if (n < 2) {
        hth_free(versions);
        return HTH_OK;
    }
    int version = versions[n - 1], earlier = versions[n - 2];
    hth_free(versions);
    HTH_TRY(hth_store_get(store, name, earlier, &before));
    json_t *doc = json_loads(before.meta, 0, NULL);
    hth_manifest_fini(&before);
    if (doc == NULL) {
        return hth_fail(HTH_ECORRUPT, "'%s' is not a checkpoint", name);
    }
    *step = json_integer_value(json_object_get(doc, "step"));
    json_decref(doc);
    return hth_checkpoint_forget(store, name, version);
}

// checkpoint_result_name checks the name `as` of a result, and that of its checkpoints.
static hth_err checkpoint_result_name(const char *as, bool chosen)
{
    char name[HTH_CHECKPOINT_JOB], checkpoint[HTH_CHECKPOINT_NAME];
    int version;
    HTH_TRY(hth_catalog_parse(as, name, &version));
    HTH_TRY(hth_store_check_new(name));
    HTH_TRY(hth_dataset_model(name));
    HTH_TRY(hth_checkpoint_model(name));
    size_t n = strlen(name);
    if (chosen && version > 0) {
        return hth_fail(HTH_EINVAL,
                        "'%s': the result becomes the next version of '%s', do not name one", as,
                        name);
    }
    snprintf(checkpoint, sizeof checkpoint, "%s" HTH_CHECKPOINT_TAIL, name);
    if (hth_store_check_name(checkpoint) != HTH_OK) {
        return hth_fail(HTH_EINVAL,
                        "'%.32s..' has %zu bytes: with the '%s' of a job's "
                        "checkpoints it is too long for a model's name",
                        name, n, HTH_CHECKPOINT_TAIL);
    }
    return HTH_OK;
}

hth_err hth_checkpoint_result(const hth_train_spec *spec)
{
    bool chosen = spec->save_as != NULL;
    hth_err err = checkpoint_result_name(chosen ? spec->save_as : spec->model, chosen);
    return hth_err_prefix(err, chosen ? "--save-as" : "the model trained, without --save-as");
}

bool hth_checkpoint_free_key(const char *key)
{
    static const char *const names[] = {
        "budget",      "policy",          "plan-ms", "checkpoint-every", "threads", "resume",
        "trace",       "replan",          "parts",   "profile",          "tenant",  "id",
        "detach",      "after",           "retries", "time-limit",       "named",   "priority",
        HTH_TRAIN_HAD, HTH_TRAIN_MEMBERS, "on",      "shards",           "reduce",  HTH_RANK_KEY};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(key, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// A file is the same by whatever it is opened (hth_train_file).
static const json_t *job_value(const json_t *args, const char *key)
{
    const json_t *v = json_object_get(args, key), *file = json_object_get(v, "file");
    return file != NULL ? file : v;
}

// The first key of `a` that `b` says differently, or NULL.
static const char *job_differs(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)a, key, v)
    {
        if (!hth_checkpoint_free_key(key) && !json_equal(job_value(a, key), job_value(b, key))) {
            return key;
        }
    }
    return NULL;
}

static hth_err checkpoint_read(hth_store *store, const hth_manifest *manifest, hth_trainer *trainer,
                               hth_checkpoint *checkpoint)
{
    json_t *doc = json_loads(manifest->meta, 0, NULL);
    json_t *job = json_object_get(doc, "job"), *history = json_object_get(doc, "history");
    json_int_t step = json_integer_value(json_object_get(doc, "step"));
    const char *key = job_differs(job, checkpoint->args);
    key = key != NULL ? key : job_differs(checkpoint->args, job);
    hth_err err = HTH_OK;
    bool accepted = step == 0 && manifest->n_tensors == 0; // and nothing else: it begins
    if (json_is_object(job) && accepted) {
        checkpoint->step = 0;
        json_decref(doc);
        return HTH_OK;
    }
    if (!json_is_object(job) || step < 0 || json_array_size(history) != (size_t)step) {
        err = hth_fail(HTH_ECORRUPT, "'%s' is not a checkpoint", manifest->name);
    } else if (key != NULL) {
        err = hth_fail(HTH_EINVAL, "'%s' belongs to another job: '%s' is not the same",
                       manifest->name, key);
    } else if (json_integer_value(json_object_get(doc, "steps")) != checkpoint->steps) {
        err = hth_fail(HTH_EINVAL, "'%s' belongs to another job: its data has another size",
                       manifest->name);
    } else {
        err = hth_trainer_restore(trainer, store, manifest, (uint64_t)step);
    }
    if (err == HTH_OK) {
        checkpoint->step = step;
        checkpoint->ran_ms = (uint64_t)json_integer_value(json_object_get(doc, "ran_ms"));
        json_array_extend(checkpoint->held_out,
                          json_object_get(doc, "held_out")); // -1: there is none
        json_array_extend(checkpoint->shards, json_object_get(doc, "shards"));
        err = json_array_extend(checkpoint->history, history) == 0 ? HTH_OK
                                                                   : hth_no_memory("a checkpoint");
    }
    json_decref(doc);
    return err;
}

hth_err hth_checkpoint_load(hth_store *store, const hth_train_spec *spec, hth_trainer *trainer,
                            hth_checkpoint *checkpoint)
{
    char name[HTH_CHECKPOINT_NAME];
    hth_manifest m;
    HTH_TRY(hth_checkpoint_name(spec, name));
    hth_err err = hth_store_get(store, name, 0, &m);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    err = checkpoint_read(store, &m, trainer, checkpoint);
    hth_manifest_fini(&m);
    return err;
}

hth_err hth_checkpoint_drop(hth_store *store, const hth_train_spec *spec)
{
    char name[HTH_CHECKPOINT_NAME];
    HTH_TRY(hth_checkpoint_name(spec, name));
    hth_err err = hth_checkpoint_forget(store, name, 0);
    return err == HTH_ENOENT ? HTH_OK : err;
}
