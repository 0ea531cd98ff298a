// SPDX-License-Identifier: Apache-2.0
#include "client/cli/infer/infer_model.h"

#include "base/spelling.h"
#include "base/utf8.h"
#include "client/cli/cmd.h"

#include <string.h>
#include <strings.h>

#define INPUT_FAR 3 // letters that are another word

int hth_infer_describe(hth_cli *cli, const char *model, json_t **out)
{
    char *json;
    json_t *q = json_pack("{s:s, s:b}", "model", model, "metadata", 1);
    *out = NULL;
    if (q == NULL) {
        (void)hth_fail(HTH_EINVAL, "the model's name is not UTF-8");
        return HTH_CLI_ERROR;
    }
    int rv = hth_cmd_request_shown(cli, "model", q, NULL, NULL, &json);
    if (rv != HTH_CLI_OK) {
        return rv;
    }
    *out = json_loads(json, 0, NULL);
    hearth_free(json);
    return *out != NULL ? HTH_CLI_OK : HTH_CLI_ERROR;
}

static const char *input_name(const json_t *input)
{
    const char *name = json_string_value(json_object_get(input, "name"));
    return name != NULL ? name : "";
}

const json_t *hth_infer_find(const json_t *model, const char *name)
{
    size_t i;
    const json_t *v, *list = json_object_get(model, "inputs");
    if (name == NULL) {
        return json_array_size(list) == 1 ? json_array_get(list, 0) : NULL;
    }
    json_array_foreach(list, i, v)
    {
        if (strcmp(input_name(v), name) == 0) {
            return v;
        }
    }
    return NULL;
}

const char *hth_infer_nearest(const json_t *model, const char *name)
{
    size_t i;
    const json_t *v;
    const char *best = NULL;
    int distance = INPUT_FAR;
    json_array_foreach(json_object_get(model, "inputs"), i, v)
    {
        hth_spelling_closer(name, input_name(v), &distance, &best);
    }
    return best;
}

const char *hth_infer_signature(const json_t *input, char *out, size_t cap)
{
    size_t i, n;
    const json_t *v;
    const char *type = json_string_value(json_object_get(input, "datatype"));
    n = (size_t)snprintf(out, cap, "'%s' %s [", input_name(input), type != NULL ? type : "");
    json_array_foreach(json_object_get(input, "shape"), i, v)
    {
        const char *comma = i > 0 ? "," : "";
        if (n < cap) {
            n += (size_t)snprintf(out + n, cap - n, "%s%lld", comma,
                                  (long long)json_integer_value(v));
        }
    }
    if (n < cap) {
        snprintf(out + n, cap - n, "]");
    }
    hth_utf8_plain(out);
    return out;
}

int hth_infer_unknown(const json_t *model, const char *name)
{
    char list[600] = "", one[200];
    size_t i, n = 0;
    const json_t *v;
    const char *model_name = json_string_value(json_object_get(model, "name"));
    const char *nearest = name != NULL ? hth_infer_nearest(model, name) : NULL;
    model_name = model_name != NULL ? model_name : "";
    json_array_foreach(json_object_get(model, "inputs"), i, v)
    {
        const char *comma = i > 0 ? ", " : "";
        if (n < sizeof list) {
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", comma,
                                  hth_infer_signature(v, one, sizeof one));
        }
    }
    if (nearest != NULL) {
        fprintf(stderr, "hearth: model '%s' has no input '%s'; did you mean '%s'?\n", model_name,
                name, nearest);
    } else if (name != NULL) {
        fprintf(stderr, "hearth: model '%s' has no input '%s'; it has %s\n", model_name, name,
                list);
    } else {
        fprintf(stderr,
                "hearth: model '%s' has the inputs %s; --input NAME=FILE says whose a picture is\n",
                model_name, list);
    }
    return HTH_CLI_ERROR;
}

const char *hth_infer_metadata(const json_t *model, const char *key)
{
    const char *k;
    json_t *v;
    json_object_foreach(json_object_get(model, "metadata"), k, v)
    {
        if (strcasecmp(k, key) == 0) {
            return json_string_value(v);
        }
    }
    return NULL;
}
