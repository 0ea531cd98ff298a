// SPDX-License-Identifier: Apache-2.0
// The calls of hearth.h about training jobs: queries, whose documents job_document.h reads.
// job_watch.c follows a job.
#include "client/jobs/job_document.h"
#include "client/jobs/job_exchange.h"
#include "client/query.h"

#include "base/alloc.h"
#include "client/exchange.h"
#include "client/passed_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    return hth_query_document(h, what, args, doc);
}

// job_taken reads which job a document is about.
static hth_err job_taken(const json_t *doc, hearth_job *out)
{
    out->id = hth_query_count(doc, "id");
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
    hth_err err;
    out->id = 0;
    HTH_GOTO(hth_passed_data(data, &path), done);
    if (options != NULL) {
        HTH_GOTO(
            hth_options_read(options, &o, sizeof o, offsetof(hearth_train_options, class_axis)),
            done);
    }
    if (o.eval != NULL) {
        HTH_GOTO(hth_passed_data(o.eval, &eval), done);
        o.eval = eval;
    }
    HTH_GOTO(hth_job_arguments(model, path, &o, &arguments), done);
    HTH_GOTO((hth_err)hearth_query(h, "train", arguments, NULL, NULL, &json), done);
    doc = json_loads(json, 0, NULL);
    err = hth_exchange_follows(o.exchange) ? HTH_OK : job_taken(doc, out);
done:
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
    hth_err err =
        hth_query_document(h, "job", json_pack("{s:s, s:i}", "job", name, "points", 1), &doc);
    if (err == HTH_OK) {
        err = job_taken(doc, out);
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_list(hearth *h, hearth_job_info **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = hth_query_document(h, "jobs", json_object(), &doc);
    if (err == HTH_OK) {
        err = hth_job_rows(doc, out);
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_job_status(hearth *h, hearth_job job, hearth_job_info **out)
{
    json_t *doc;
    *out = NULL;
    hth_err err = job_question(h, "job", job, 1, NULL, &doc);
    if (err == HTH_OK) {
        err = hth_job_row(doc, NULL, out);
    }
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
    if (err == HTH_OK) {
        err = hth_job_result(doc, out);
    }
    json_decref(doc);
    return (hearth_status)err;
}
