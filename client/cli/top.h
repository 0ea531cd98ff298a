// SPDX-License-Identifier: Apache-2.0
// client/cli/top.h - what `hearth top` shows: one sample of a server, from the answers to the
// questions "devices", "stats", "latency", "jobs" and "job", and how it is written for people.
#ifndef HTH_CLIENT_CLI_TOP_H
#define HTH_CLIENT_CLI_TOP_H

#include <jansson.h>

#include <stdint.h>

typedef struct hth_top_answers {
    const json_t *devices, *stats, *latency, *jobs;
    const json_t *job; // of jobs that run: their documents by their names
} hth_top_answers;

// hth_top_sample makes the document of a sample at `now_ns`. `last` is the sample before, or NULL:
// requests per second and the samples of a batch are those in between, and without it what the
// server knows of the last minute, and of the time since a model was loaded. The caller owns it.
// NULL: no memory.
json_t *hth_top_sample(const hth_top_answers *answers, const json_t *last, uint64_t now_ns);
// The parts of a device's memory in the order in which a bar has them: what the ledger calls them,
// what a sample does (NAME_bytes), and the letter.
typedef struct hth_top_part {
    const char *ledger, *name;
    char letter;
} hth_top_part;
#define HTH_TOP_PARTS 7
extern const hth_top_part hth_top_parts[HTH_TOP_PARTS];

// hth_top_text writes a sample: devices with a bar of their memory, jobs, models, tenants.
// `columns` is the width of a bar. With `lines` (else INT_MAX) the text has so many at most and
// columns as wide: tables lose the columns that say least, then rows from their end, and say how
// many. The caller frees it with free(). NULL: no memory.
char *hth_top_text(const json_t *sample, int lines, int columns);
// hth_top_cut shortens a text to `lines` lines of `columns` columns; what a terminal would obey
// becomes '?'. `text` is changed.
void hth_top_cut(char *text, int lines, int columns);

#endif
