// SPDX-License-Identifier: Apache-2.0
// Training jobs, aliases and lists of datasets: commands, whose answers are sent as they are.
#include "server/http/remote/exchange.h"

#include "server/http/http_url.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define JOBS_LINES 1000000 // of a log, that may be asked for

// About a job: whatever it is, it stays as it was.
static const hth_exchange_rule job_status[] = {{HTH_EEXIST, 409}, {HTH_EINVAL, 409}, {HTH_OK, 0}};
static const hth_exchange_rule submit_status[] = {{HTH_EEXIST, 409}, {HTH_OK, 0}};
static const hth_exchange_rule dataset_status[] = {{HTH_EBUSY, 409}, {HTH_OK, 0}};

typedef struct jobs_call {
    hth_exchange base;
    hth_command_id command;
    json_t *args;
    char location[HTH_SETTING_TEXT + 64];
} jobs_call;

static void jobs_end(hth_exchange *exchange)
{
    json_decref(((jobs_call *)exchange)->args);
}

static jobs_call *jobs_new(hth_http *http, hth_http_req *req, const hth_http_args *args,
                           hth_command_id command, void (*answered)(hth_exchange *exchange))
{
    jobs_call *call = hth_exchange_new(http, req, args, sizeof *call, answered);
    if (call != NULL) {
        call->base.end = jobs_end;
        call->command = command;
    }
    return call;
}

// jobs_send asks with call->args, which have the job that the path names.
static void jobs_send(hth_exchange *exchange)
{
    jobs_call *call = (jobs_call *)exchange;
    json_t *args = call->args;
    call->args = NULL;
    hth_exchange_query(exchange, call->command, args);
}

// jobs_ask sends a command about the job in the path.
static void jobs_ask(hth_http *http, hth_http_req *req, const hth_http_args *args,
                     hth_command_id command, json_t *more, void (*answered)(hth_exchange *exchange))
{
    jobs_call *call = jobs_new(http, req, args, command, answered);
    if (call == NULL) {
        json_decref(more);
        return;
    }
    call->base.statuses = (hth_command_get(command)->need == HTH_NEED_JOB) ? job_status : NULL;
    json_object_set_new(more, "job", json_string(args->name));
    hth_exchange_query(&call->base, command, more);
}

// ---- submit

// jobs_dataset makes a stored dataset's name what the command takes: over HTTP a file is never
// meant.
static void jobs_dataset(json_t *args, const char *key)
{
    json_t *name = json_object_get(args, key);
    if (json_is_string(name)) {
        json_object_set_new(args, key, json_pack("{s:O}", "dataset", name));
    }
}

static hth_err submit_read(hth_exchange *exchange, json_t *doc)
{
    if (!json_is_object(doc)) {
        return hth_fail(HTH_EINVAL, "a job is a JSON object: \"model\", \"data\", \"loss\", ..");
    }
    ((jobs_call *)exchange)->args = json_incref(doc);
    jobs_dataset(doc, "data");
    jobs_dataset(doc, "eval");
    jobs_dataset(doc, "start");
    json_object_set_new(doc, "detach", json_true()); // it is the server's
    return HTH_OK;
}

static void submit_answered(hth_exchange *exchange)
{
    jobs_call *call = (jobs_call *)exchange;
    hth_http *http = exchange->call.h;
    json_t *doc = hth_exchange_json(exchange);
    if (doc != NULL) {
        snprintf(call->location, sizeof call->location, "%s/v2/hearth/jobs/%" JSON_INTEGER_FORMAT,
                 http->prefix, json_integer_value(json_object_get(doc, "id")));
        hth_http_add(exchange->call.req, "Location", call->location);
        hth_http_send_doc(http, exchange->call.req, 201, doc);
    }
}

void hth_http_job_submit(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_call *call = jobs_new(http, req, args, HTH_COMMAND_TRAIN, submit_answered);
    if (call != NULL) {
        call->base.statuses = submit_status;
        hth_exchange_read(&call->base, submit_read, jobs_send);
    }
}

// ---- lists

// jobs_listed answers as the page's requests are: one form for all lists of jobs.
static void jobs_listed(hth_exchange *exchange)
{
    json_t *rows = hth_exchange_json(exchange);
    if (rows != NULL) {
        hth_http_add(exchange->call.req, "Cache-Control", "no-store");
        hth_http_send_json(
            exchange->call.h, exchange->call.req,
            json_pack("{s:s, s:i, s:o}", "state", "ready", "age_ms", 0, "data", rows));
    }
}

void hth_http_job_list(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    bool mine, all;
    if (!hth_exchange_switch(http, req, "mine", &mine) ||
        !hth_exchange_switch(http, req, "all", &all)) {
        return;
    }
    if (!mine && !all) {
        hth_http_dashboard_jobs(http, req, args);
        return;
    }
    jobs_call *call = jobs_new(http, req, args, HTH_COMMAND_JOBS, jobs_listed);
    if (call != NULL) {
        hth_exchange_query(&call->base, HTH_COMMAND_JOBS,
                           json_pack("{s:b, s:b}", "mine", mine, "all", all));
    }
}

void hth_http_dataset_list(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_call *call = jobs_new(http, req, args, HTH_COMMAND_DATASETS, hth_exchange_document);
    if (call != NULL) {
        hth_exchange_query(&call->base, HTH_COMMAND_DATASETS, json_object());
    }
}

void hth_http_dataset_remove(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    char tenant[HTH_TENANT];
    hth_http_found found = hth_http_query_get(req->head.query, "tenant", tenant, sizeof tenant);
    if (found == HTH_HTTP_BAD) {
        hth_http_fail(http, req, 400, "'tenant' in the URL is no tenant's name");
        return;
    }
    jobs_call *call = jobs_new(http, req, args, HTH_COMMAND_DATASET_RM, hth_exchange_document);
    if (call != NULL) {
        call->base.statuses = dataset_status;
        hth_exchange_query(&call->base, HTH_COMMAND_DATASET_RM,
                           json_pack("{s:s, s:s*}", "name", args->name, "tenant",
                                     found == HTH_HTTP_FOUND ? tenant : NULL));
    }
}

// ---- one job

void hth_http_job_logs(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    uint64_t after, most;
    bool given, limited;
    if (!hth_exchange_count(http, req, "after", INT64_MAX, &after, &given) ||
        !hth_exchange_count(http, req, "max", JOBS_LINES, &most, &limited)) {
        return;
    }
    json_t *more = json_pack("{s:I}", "after", (json_int_t)after);
    if (limited) {
        json_object_set_new(more, "max", json_integer((json_int_t)most));
    }
    jobs_ask(http, req, args, HTH_COMMAND_LOGS, more, hth_exchange_document);
}

void hth_http_job_pause(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_ask(http, req, args, HTH_COMMAND_PAUSE, json_object(), hth_exchange_document);
}

void hth_http_job_cancel(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_ask(http, req, args, HTH_COMMAND_CANCEL, json_object(), hth_exchange_document);
}

static hth_err resume_read(hth_exchange *exchange, json_t *doc)
{
    jobs_call *call = (jobs_call *)exchange;
    if (doc != NULL && !json_is_object(doc)) {
        return hth_fail(HTH_EINVAL,
                        "what changes of a job is a JSON object, as {\"budget\":\"60%%\"}");
    }
    call->args = doc != NULL ? json_incref(doc) : json_object();
    if (json_object_size(call->args) > 0) { // one of these may be wrong
        exchange->statuses = NULL;
    }
    json_object_set_new(call->args, "job", json_string(exchange->call.args.name));
    return HTH_OK;
}

void hth_http_job_resume(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_call *call = jobs_new(http, req, args, HTH_COMMAND_RESUME, hth_exchange_document);
    if (call != NULL) {
        call->base.statuses = job_status;
        hth_exchange_read(&call->base, resume_read, jobs_send);
    }
}

// result_answered sends what of a finished job's row is its result.
static void result_answered(hth_exchange *exchange)
{
    static const char *const same[] = {"id", "version", "every", "history", "held_out"};
    json_t *row = hth_exchange_json(exchange), *doc = json_object();
    const char *state = json_string_value(json_object_get(row, "state"));
    bool finished = state != NULL && strcmp(state, "finished") == 0;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        json_t *v = json_object_get(row, same[i]);
        json_object_set(doc, same[i], v);
    }
    json_object_set(doc, "model", json_object_get(row, "job"));
    json_object_set(doc, "steps", json_object_get(row, "step"));
    if (finished) {
        hth_http_send_json(exchange->call.h, exchange->call.req, json_incref(doc));
    } else if (row != NULL) {
        hth_http_fail(exchange->call.h, exchange->call.req, 409, "job '%s' has no result: it is %s",
                      exchange->call.args.name, state != NULL ? state : "unknown");
    }
    json_decref(doc);
    json_decref(row);
}

void hth_http_job_result(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_ask(http, req, args, HTH_COMMAND_JOB, json_object(), result_answered);
}

// ---- aliases

static hth_err alias_read(hth_exchange *exchange, json_t *doc)
{
    if (!json_is_object(doc)) {
        return hth_fail(HTH_EINVAL,
                        "what an alias means is a JSON object: {\"model\":\"digits:2\"}");
    }
    json_object_set_new(doc, "alias", json_string(exchange->call.args.name));
    json_object_del(doc, "remove");
    ((jobs_call *)exchange)->args = json_incref(doc);
    return HTH_OK;
}

void hth_http_alias_put(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_call *call = jobs_new(http, req, args, HTH_COMMAND_ALIAS, hth_exchange_document);
    if (call != NULL) {
        call->base.statuses = submit_status;
        hth_exchange_read(&call->base, alias_read, jobs_send);
    }
}

void hth_http_alias_remove(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    jobs_call *call = jobs_new(http, req, args, HTH_COMMAND_ALIAS, hth_exchange_document);
    if (call != NULL) {
        hth_exchange_query(&call->base, HTH_COMMAND_ALIAS,
                           json_pack("{s:s, s:b}", "alias", args->name, "remove", 1));
    }
}
