// SPDX-License-Identifier: Apache-2.0
// Models on the device.
#include "client/query.h"

#include "client/jobs/job_document.h"

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
    hth_err err = hth_query_document(h, "load", args, &doc);
    if (err == HTH_OK && out != NULL) {
        *out = (hearth_load_result){.version = (int)hth_query_count(doc, "version"),
                                    .pinned = json_is_true(json_object_get(doc, "pinned")),
                                    .moved_bytes = hth_query_count(doc, "moved_bytes")};
    }
    json_decref(doc);
    return (hearth_status)err;
}

hearth_status hearth_unload(hearth *h, const char *model, uint64_t *freed_bytes)
{
    json_t *doc;
    hth_err err = hth_query_document(h, "unload", json_pack("{s:s}", "model", model), &doc);
    if (err == HTH_OK && freed_bytes != NULL) {
        *freed_bytes = hth_query_count(doc, "freed_bytes");
    }
    json_decref(doc);
    return (hearth_status)err;
}
