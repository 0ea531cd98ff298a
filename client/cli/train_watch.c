// SPDX-License-Identifier: Apache-2.0
// The summary is made from the job's record, so every client prints the same one at any time.
#include "client/cli/train_watch.h"

#include "client/cli/cmd.h"
#include "client/cli/follow.h"
#include "client/exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_ANSWER_MS 120000 // that anything asked about the job may take: a step, at most
#define TRAIN_HOW       1200
#define TRAIN_SIGNAL    128 // and the number of the signal: how shells say what ended a program

typedef struct train_shown {
    hth_detach *detach;
    hth_follow follow;
} train_shown;

static int train_show(void *ctx, const hearth_job_info *at)
{
    train_shown *s = ctx;
    if (hth_detach_left(s->detach) != 0) {
        return 1;
    }
    if (at->event[0] != 0) {
        hth_follow_event(&s->follow, at->event, at->step, at->steps);
    }
    return 0;
}

// ---- the result

// The losses as one line each (--json), or the first and the last one; then the summary without
// them.
static int train_print(const hth_cli *cli, const json_t *history, json_int_t every, json_t *summary)
{
    size_t i, n = json_array_size(history);
    json_int_t last = json_integer_value(json_object_get(summary, "steps"));
    json_t *v;
    json_array_foreach((json_t *)history, i, v)
    {
        double loss = json_number_value(json_array_get(v, 0));
        json_int_t step = i + 1 < n ? 1 + (json_int_t)i * every : last;
        if (hth_cli_json(cli)) {
            printf("{\"step\":%lld,\"loss\":%.9g,\"ms\":%.3f}\n", (long long)step, loss,
                   json_number_value(json_array_get(v, 1)));
        } else if (i == 0 || i == n - 1) {
            json_object_set_new(summary, i == 0 ? "first_loss" : "last_loss", json_real(loss));
        }
    }
    if (!hth_cli_json(cli)) {
        hth_cmd_held_out(summary);
    }
    char *text = json_dumps(summary, JSON_COMPACT);
    int rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
    free(text);
    return rv;
}

static json_t *train_mean_ms(const json_t *history)
{
    double sum = 0;
    size_t i, n = json_array_size(history);
    for (i = 0; i < n; i++) {
        sum += json_number_value(json_array_get(json_array_get(history, i), 1));
    }
    return json_real(n > 0 ? sum / (double)n : 0);
}

// train_summary is a finished job's: its memory, and what it has made.
static int train_summary(const hth_cli *cli, const json_t *doc)
{
    static const char *const same[] = {"held_out",      "best_step",       "best_epoch",
                                       "stopped_early", "steps_per_epoch", "shards"};
    const json_t *history = json_object_get(doc, "history");
    json_int_t every = json_integer_value(json_object_get(doc, "every"));
    json_t *summary = json_copy(json_object_get(doc, "memory"));
    summary = summary != NULL ? summary : json_object();
    json_t *saved_as = json_object_get(doc, "saved_as");
    json_object_set(summary, "saved_as",
                    json_is_string(saved_as) ? saved_as : json_object_get(doc, "job"));
    json_object_set(summary, "version", json_object_get(doc, "version"));
    json_object_set(summary, "steps", json_object_get(doc, "step"));
    json_object_set_new(summary, "mean_ms", train_mean_ms(history));
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        json_object_set(summary, same[i], json_object_get(doc, same[i]));
    }
    int rv = train_print(cli, history, every > 0 ? every : 1, summary);
    json_decref(summary);
    return rv;
}

// train_ended prints what has become of a job that goes on no more.
static int train_ended(hth_cli *cli, hearth_job job, hth_train_log *log, hth_train_print print)
{
    char arguments[60];
    char *json;
    snprintf(arguments, sizeof arguments, "{\"id\":%" PRIu64 "}", job.id);
    if (hearth_query(cli->h, "job", arguments, NULL, NULL, &json) != HEARTH_OK) {
        (void)hth_cmd_log_end(log, NULL);
        return hth_cli_error();
    }
    int logged = hth_cmd_log_end(log, json);
    json_t *doc = json_loads(json, 0, NULL);
    const char *state = json_string_value(json_object_get(doc, "state"));
    int rv = HTH_CLI_ERROR;
    hearth_free(json);
    if (state != NULL && strcmp(state, "finished") == 0) {
        rv = print != NULL ? print(cli, doc) : train_summary(cli, doc);
    } else {
        hearth_train_result *none = NULL;
        rv = hearth_job_result(cli->h, job, &none) != HEARTH_OK ? hth_cli_error() : HTH_CLI_ERROR;
        hearth_free(none);
    }
    json_decref(doc);
    return rv == HTH_CLI_OK ? logged : rv;
}

// ---- an engine in this process

// train_devices writes the devices that were given: others may compute in another order.
static void train_devices(const hth_cli *cli, char out[TRAIN_HOW])
{
    json_t *device, *devices = json_object_get(cli->options, "device");
    size_t i, n = 0;
    out[0] = 0;
    json_array_foreach(devices, i, device)
    {
        n += n < TRAIN_HOW ? (size_t)snprintf(out + n, TRAIN_HOW - n, " --device %s",
                                              json_string_value(device))
                           : 0;
    }
}

// train_stop saves the job of an engine that ends with this process. Its row after that has a step
// if there is anything to save.
static void train_stop(hth_cli *cli, hearth_job job, const char *name)
{
    char arguments[60], devices[TRAIN_HOW], threads[40] = "", *json = NULL;
    snprintf(arguments, sizeof arguments, "{\"id\":%" PRIu64 "}", job.id);
    if (hearth_query(cli->h, "pause", arguments, NULL, NULL, &json) != HEARTH_OK) {
        hth_cli_error();
        return;
    }
    json_t *doc = json_loads(json, 0, NULL);
    json_int_t step = json_integer_value(json_object_get(doc, "step"));
    hearth_free(json);
    json_decref(doc);
    if (step > 0) {
        train_devices(cli, devices);
        if (hth_cli_int(cli, "threads", 0) > 0) {
            snprintf(threads, sizeof threads, " --threads %lld",
                     (long long)hth_cli_int(cli, "threads", 0));
        }
        fprintf(stderr,
                "hearth: job '%s' is saved after step %lld; `hearth --store %s%s train --resume "
                "%s%s` continues\n",
                name, (long long)step, hth_cli_text(cli, "store"), devices, name, threads);
    } else {
        (void)hearth_job_cancel(cli->h, job);
        fprintf(stderr, "hearth: job '%s' had made no step; nothing is saved\n", name);
    }
}

int hth_train_watch(hth_cli *cli, hth_detach *detach, hth_train_log *log, const json_t *taken,
                    hth_train_print print)
{
    hearth_job job = {(uint64_t)json_integer_value(json_object_get(taken, "id"))};
    const char *name = json_string_value(json_object_get(taken, "job"));
    bool embedded = hth_cli_text(cli, "store") != NULL;
    train_shown s = {.detach = detach};
    name = name != NULL ? name : "";
    cli->h->timeout_ms = TRAIN_ANSWER_MS; // no longer that of the submission, which may take hours
    hth_detach_job(detach, cli->h, job, name, embedded);
    hth_follow_init(&s.follow, !hth_cli_json(cli));
    s.follow.log = log;
    hearth_status status = hearth_job_watch(cli->h, job, train_show, &s, NULL);
    hth_follow_fini(&s.follow);
    int left = hth_detach_left(detach);
    if (left != 0 || status != HEARTH_OK) {
        int rv = left != 0 ? TRAIN_SIGNAL + left : hth_cli_error();
        (void)hth_cmd_log_end(log, NULL);
        if (left != 0 && embedded) {
            train_stop(cli, job, name);
        }
        return rv;
    }
    return train_ended(cli, job, log, print);
}
