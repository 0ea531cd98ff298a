// SPDX-License-Identifier: Apache-2.0
// An inference request's parameters: those that mean something here, and the form of all others,
// which have no effect. Models have no state between requests: a sequence's name, start and end are
// checked and otherwise ignored.
#include "server/http/http_infer.h"

#include "server/http/http_field.h"

#include <string.h>

static hth_err check_parameter(const json_t *all, const char *key, const json_t *v)
{
    static const char *const switches[] = {"sequence_start", "sequence_end", "binary_data_output"};
    uint64_t count;
    bool yes;
    if (strncmp(key, "triton_", 7) == 0) {
        return hth_fail(HTH_EINVAL, "parameter keys starting with 'triton_' are reserved: '%.80s'",
                        key);
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (strcmp(key, switches[i]) == 0) {
            return hth_field_bool(all, key, &yes);
        }
    }
    if (strcmp(key, "sequence_id") == 0 && !json_is_string(v)) {
        return hth_field_count(all, key, &count, &yes);
    }
    return json_is_object(v) || json_is_array(v) || json_is_null(v)
               ? hth_fail(HTH_EINVAL,
                          "parameter '%.80s' is not a string, a number, or a truth value", key)
               : HTH_OK;
}

// read_queueing reads where and how long the request may wait.
static hth_err read_queueing(hth_infer_call *c, const json_t *all)
{
    uint64_t priority;
    bool given;
    HTH_TRY(hth_field_count(all, "priority", &priority, &given));
    HTH_TRY(hth_field_count(all, "timeout", &c->c.r.timeout_us, &given));
    c->c.r.priority = (uint32_t)priority;
    return priority <= UINT32_MAX
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "Unable to parse 'priority': it is larger than %lld",
                          (long long)UINT32_MAX);
}

hth_err hth_infer_read_parameters(hth_infer_call *c)
{
    json_t *all, *v;
    const char *key;
    HTH_TRY(hth_field(c->head, "parameters", JSON_OBJECT, "an object", &all));
    json_object_foreach(all, key, v)
    {
        HTH_TRY(check_parameter(all, key, v));
    }
    HTH_TRY(read_queueing(c, all));
    return hth_field_bool(all, "binary_data_output", &c->all_binary);
}
