// SPDX-License-Identifier: Apache-2.0
// What the requests of hearth's own clients need. A question that is in no row needs all roles: a
// new one is closed until somebody opens it.
#include "server/net/auth.h"

#include <jansson.h>

#include <string.h>

static const struct {
    const char *word;
    hth_need need;
} query_needs[] = {
    {"models", HTH_NEED_ANY},     {"model", HTH_NEED_ANY},       {"devices", HTH_NEED_ANY},
    {"stats", HTH_NEED_ANY},      {"jobs", HTH_NEED_ANY},        {"job", HTH_NEED_ANY},
    {"latency", HTH_NEED_ANY},    {"timeline", HTH_NEED_ANY},    {"loaded", HTH_NEED_ANY},
    {"verify", HTH_NEED_MODEL},   {"load", HTH_NEED_MODEL},      {"unload", HTH_NEED_MODEL},
    {"batching", HTH_NEED_MODEL}, {"precision", HTH_NEED_MODEL}, {"train", HTH_NEED_JOB},
    {"pause", HTH_NEED_JOB},      {"resume", HTH_NEED_JOB},      {"cancel", HTH_NEED_JOB},
    {"plan", HTH_NEED_JOB},       {"curve", HTH_NEED_JOB},       {"bench", HTH_NEED_JOB},
    {"convsel", HTH_NEED_JOB},
};

// query_changes tells of the question "job" that it gives the job another budget.
static bool query_changes(const char *arguments)
{
    json_t *args = json_loads(arguments, 0, NULL); // as the engine reads them
    bool changes = json_object_get(args, "budget") != NULL;
    json_decref(args);
    return changes;
}

static hth_need query_need(const char *word, const char *arguments)
{
    if (strcmp(word, "job") == 0 && query_changes(arguments)) {
        return HTH_NEED_JOB;
    }
    for (size_t i = 0; i < sizeof query_needs / sizeof query_needs[0]; i++) {
        if (strcmp(query_needs[i].word, word) == 0) {
            return query_needs[i].need;
        }
    }
    return HTH_NEED_ADMIN;
}

hth_need hth_auth_need(const Hearth__Request *q)
{
    switch (q->body_case) {
    case HEARTH__REQUEST__BODY_INFER:
    case HEARTH__REQUEST__BODY_MAP:
    case HEARTH__REQUEST__BODY_ATTACH:
        return HTH_NEED_INFER;
    case HEARTH__REQUEST__BODY_QUERY:
        return query_need(q->query->what, q->query->arguments);
    case HEARTH__REQUEST__BODY_CANCEL: // of the connection's own requests
    case HEARTH__REQUEST__BODY_PROGRESS:
    case HEARTH__REQUEST__BODY_UNMAP:
    case HEARTH__REQUEST__BODY_FETCH:
        return HTH_NEED_NOTHING;
    case HEARTH__REQUEST__BODY_IMPORT_MODEL:
    case HEARTH__REQUEST__BODY_EXPORT_MODEL:
    case HEARTH__REQUEST__BODY_REMOVE:
    case HEARTH__REQUEST__BODY_GC:
        return HTH_NEED_MODEL;
    default:
        return HTH_NEED_ADMIN;
    }
}
