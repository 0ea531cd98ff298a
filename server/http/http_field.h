// SPDX-License-Identifier: Apache-2.0
// server/http/http_field.h - members of a JSON object, checked: the sentence of an error names the
// key.
#ifndef HTH_SERVER_HTTP_HTTP_FIELD_H
#define HTH_SERVER_HTTP_HTTP_FIELD_H

#include "base/err.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

// hth_field stores obj[key], borrowed, or NULL when there is none. HTH_EINVAL: it is not `what`.
hth_err hth_field(const json_t *obj, const char *key, json_type type, const char *what,
                  json_t **out);
hth_err hth_field_needed(const json_t *obj, const char *key, json_type type, const char *what,
                         json_t **out); // HTH_EINVAL also when there is none
// hth_field_count stores a whole number that is not negative; *given tells whether it is there.
hth_err hth_field_count(const json_t *obj, const char *key, uint64_t *out, bool *given);
hth_err hth_field_bool(const json_t *obj, const char *key, bool *out); // false when there is none

#endif
