// SPDX-License-Identifier: Apache-2.0
// The calls of hearth.h about models on the device and about training jobs: questions
// (hearth_query), whose documents job_document.h reads. job_watch.c follows a job.
#include "client/job_impl.h"

#include "base/alloc.h"
#include "client/exchange.h"
#include "client/passed_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- questions

hth_err hth_job_ask(hearth *h, const char *what, json_t *args, json_t **doc)
{
    char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL, *json = NULL;
    json_decref(args);
    *doc = NULL;
    if (text == NULL) {
        return hth_fail(HTH_EINVAL, "an argument of '%s' is not UTF-8", what);
    }
    hth_err err = (hth_err)hearth_query(h, what, text, NULL, NULL, &json);
    free(text);
    HTH_TRY(err);
    *doc = json_loads(json, 0, NULL);
    hth_free(json);
    return *doc != NULL ? HTH_OK
                        : hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", h->url);
}

// job_question asks about a job by its number; points: so many of its losses, 0: all.
static hth_err job_question(hearth *h, const char *what, hearth_job job, int points,
                            const char *budget, json_t **doc)
{
    json_t *args = json_pack("{s:I}", "id", (json_int_t)job.id);
    if (args != NULL && points > 0) {
        json_object_set_new(args, "points", json_integer(points));
    }
    if (args != NULL && budget != NULL) {
        json_object_set_new(args, "budget", json_string(budget));
    }
    return hth_job_ask(h, what, args, doc);
}

static uint64_t doc_count(const json_t *doc, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(doc, key));
    return v > 0 ? (uint64_t)v : 0;
}

// ---- models on the device

hearth_status hearth_load(hearth *h, const char *model, const hearth_load_options *options,
                          hearth_load_result *out)
{
    hearth_load_options o = {.size = sizeof o};
    json_t *doc;
    if (options != NULL && hth_options_read(options, &o, sizeof o, sizeof o) != HTH_OK) {
        return HEARTH_ENOTSUP;
    }
    if (o.pin != 0 && o.unpin != 0) {
        return (hearth_status)hth_fail(HTH_EINVAL, "pin or unpin '%s', not both", model);
    }
    json_t *args = json_pack("{s:s}", "model", model);
    const struct {
        const char *key;
        int set;
    } switches[] = {{"pin", o.pin}, {"unpin", o.unpin}, {"no-wait", o.no_wait}};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (switches[i].set != 0) { // false is not the same as not said
            json_object_set_new(args, switches[i].key, json_true());
        }
    }
    if (o.on != NULL) {
        json_object_set_new(args, "on", json_string(o.on));
    }
    hth_err err = hth_job_ask(h, "load", args, &doc);
    if (err == HTH_OK && out != NULL) {
        *out = (hearth_load_result){.version = (int)doc_count(doc, "version"),
                                    .pinned = json_is_true(json_object_get(doc, "pinned")),
                                    .moved_bytes = doc_count(doc, "moved_bytes")};
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_unload(hearth *h, const char *model, uint64_t *freed_bytes)
{
    json_t *doc;
    hth_err err = hth_job_ask(h, "unload", json_pack("{s:s}", "model", model), &doc);
    if (err == HTH_OK && freed_bytes != NULL) {
        *freed_bytes = doc_count(doc, "freed_bytes");
    }
    json_decref(doc);
    return (hearth_status)err;
}

// ---- datasets of the store

hearth_status hearth_data_put(hearth *h, const char *name, const char *path,
                              const hearth_data_options *options, hearth_data_result *out)
{
    hearth_data_options o = {.size = sizeof o};
    json_t *doc = NULL;
    char *whole;
    if (options != NULL && hth_options_read(options, &o, sizeof o, sizeof o) != HTH_OK) {
        return HEARTH_ENOTSUP;
    }
    hth_err err = hth_passed_path(path, &whole);
    if (err != HTH_OK) {
        return (hearth_status)err;
    }
    json_t *args = json_pack("{s:s, s:s, s:s*, s:s*}", "name", name, "data", whole, "label",
                             o.label, "size", o.image_size);
    hth_free(whole);
    err = hth_job_ask(h, "dataset_put", args, &doc);
    if (err == HTH_OK && out != NULL) {
        *out = (hearth_data_result){doc_count(doc, "bytes"), doc_count(doc, "moved")};
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_data_remove(hearth *h, const char *name)
{
    json_t *doc;
    hth_err err = hth_job_ask(h, "dataset_rm", json_pack("{s:s}", "name", name), &doc);
    json_decref(doc);
    return (hearth_status)err;
}

// ---- jobs

// job_taken reads which job a document is about.
static hth_err job_taken(const json_t *doc, hearth_job *out)
{
    out->id = doc_count(doc, "id");
    return out->id > 0
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, "an older hearth gave this job no number; a job that "
                                       "it stopped has one once it is resumed");
}

hearth_status hearth_train_submit(hearth *h, const char *model, const char *data,
                                  const hearth_train_options *options, hearth_job *out)
{
    hearth_train_options o = {.size = 0};
    char *path = NULL, *eval = NULL, *arguments = NULL, *json = NULL;
    json_t *doc = NULL;
    out->id = 0;
    hth_err err = hth_passed_data(data, &path);
    if (err == HTH_OK && options != NULL) {
        err = hth_options_read(options, &o, sizeof o, offsetof(hearth_train_options, class_axis));
    }
    if (err == HTH_OK && o.eval != NULL) {
        err = hth_passed_data(o.eval, &eval);
        o.eval = eval;
    }
    err = err == HTH_OK ? hth_job_arguments(model, path, &o, &arguments) : err;
    if (err == HTH_OK) {
        err = (hth_err)hearth_query(h, "train", arguments, NULL, NULL, &json);
    }
    if (err == HTH_OK) {
        doc = json_loads(json, 0, NULL);
        err = job_taken(doc, out);
    }
    json_decref(doc);
    hth_free(json);
    hth_free(arguments);
    hth_free(eval);
    hth_free(path);
    return (hearth_status)err;
}

hearth_status hearth_job_find(hearth *h, const char *name, hearth_job *out)
{
    json_t *doc;
    out->id = 0;
    hth_err err = hth_job_ask(h, "job", json_pack("{s:s, s:i}", "job", name, "points", 1), &doc);
    err = err == HTH_OK ? job_taken(doc, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_list(hearth *h, hearth_job_info **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = hth_job_ask(h, "jobs", json_object(), &doc);
    err = err == HTH_OK ? hth_job_rows(doc, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_status(hearth *h, hearth_job job, hearth_job_info **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = job_question(h, "job", job, 1, NULL, &doc);
    err = err == HTH_OK ? hth_job_row(doc, NULL, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}

static hearth_status job_change(hearth *h, const char *what, hearth_job job, const char *budget)
{
    json_t *doc;
    hth_err err = job_question(h, what, job, 0, budget, &doc);
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_pause(hearth *h, hearth_job job)
{
    return job_change(h, "pause", job, NULL);
}

hearth_status hearth_job_resume(hearth *h, hearth_job job, const char *budget)
{
    return job_change(h, "resume", job, budget);
}

hearth_status hearth_job_cancel(hearth *h, hearth_job job)
{
    return job_change(h, "cancel", job, NULL);
}

hearth_status hearth_job_result(hearth *h, hearth_job job, hearth_train_result **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = job_question(h, "job", job, 0, NULL, &doc);
    err = err == HTH_OK ? hth_job_result(doc, out) : err;
    json_decref(doc);
    return (hearth_status)err;
}
