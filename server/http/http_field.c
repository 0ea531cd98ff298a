// SPDX-License-Identifier: Apache-2.0
#include "server/http/http_field.h"

hth_err hth_field(const json_t *obj, const char *key, json_type type, const char *what,
                  json_t **out)
{
    *out = json_object_get(obj, key);
    return *out == NULL || json_typeof(*out) == type
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "Unable to parse '%s': it is not %s", key, what);
}

hth_err hth_field_needed(const json_t *obj, const char *key, json_type type, const char *what,
                         json_t **out)
{
    HTH_TRY(hth_field(obj, key, type, what, out));
    return *out != NULL ? HTH_OK : hth_fail(HTH_EINVAL, "Unable to parse '%s': it is missing", key);
}

hth_err hth_field_count(const json_t *obj, const char *key, uint64_t *out, bool *given)
{
    json_t *v;
    HTH_TRY(hth_field(obj, key, JSON_INTEGER, "a whole number", &v));
    *given = v != NULL;
    *out = v != NULL ? (uint64_t)json_integer_value(v) : 0;
    return v == NULL || json_integer_value(v) >= 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "Unable to parse '%s': it is negative", key);
}

hth_err hth_field_bool(const json_t *obj, const char *key, bool *out)
{
    json_t *v = json_object_get(obj, key);
    if (v != NULL && !json_is_boolean(v)) {
        return hth_fail(HTH_EINVAL, "Unable to parse '%s': it is neither true nor false", key);
    }
    *out = json_is_true(v);
    return HTH_OK;
}
