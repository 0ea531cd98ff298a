// SPDX-License-Identifier: Apache-2.0
// client/cli/top/top_sample.h - what `hearth top` shows: one sample of a server, from the answers
// to the questions "devices", "stats", "latency", "jobs", "job" and "shares", and how it is
// written for people.
#ifndef HTH_CLIENT_CLI_TOP_SAMPLE_H
#define HTH_CLIENT_CLI_TOP_SAMPLE_H

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_top_answers {
    const json_t *devices, *stats, *latency, *jobs;
    const json_t *job;    // of jobs that run: their documents by their names
    const json_t *shares; // NULL: the server does not know the question
} hth_top_answers;

// hth_top_sample makes the document of a sample at `now_ns`. `last` is the sample before, or NULL:
// requests per second and the samples of a batch are those in between, and without it what the
// server knows of the last minute, and of the time since a model was loaded. The caller owns it.
// NULL: no memory.
json_t *hth_top_sample(const hth_top_answers *answers, const json_t *last, uint64_t now_ns);
// hth_top_share adds to a tenant's row its "weight", "dominant_share" (0 to 1), "dominant",
// "entitlement", on the device where that share is largest, "jobs_running" and "jobs_waiting".
void hth_top_share(const json_t *shares, json_t *row);
// hth_top_waiting lists the jobs that wait: "job", "tenant", "device", "state", "memory_bytes",
// "wait_seconds", "waits_for" (a word), "why"; null is what is not known or another tenant's. The
// caller owns it.
json_t *hth_top_waiting(const json_t *shares, const json_t *jobs);
bool hth_top_waits(const json_t *job); // a row of "jobs": it waits, or is queued
// The parts of a device's memory in the order in which a bar has them: what the ledger calls them,
// what a sample does (NAME_bytes), and the letter.
typedef struct hth_top_part {
    const char *ledger, *name;
    char letter;
} hth_top_part;
#define HTH_TOP_PARTS 7
extern const hth_top_part hth_top_parts[HTH_TOP_PARTS];

// hth_top_rows makes the rows of the table `key` of a sample: "jobs" (those that do not wait),
// "waiting", "models", "tenants". The caller owns them. hth_top_rows_drop removes a column.
json_t *hth_top_rows(const json_t *sample, const char *key);
void hth_top_rows_drop(json_t *rows, const char *key);
// hth_top_text writes a whole sample where there is no terminal: devices with a bar of their
// memory of `columns` columns, jobs at work, models, jobs that wait, tenants. (On a terminal:
// top_view.h.) The caller frees it with free(). NULL: no memory.
char *hth_top_text(const json_t *sample, int columns);

#endif
