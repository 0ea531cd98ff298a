// SPDX-License-Identifier: Apache-2.0
// One table for all questions: an argument means the same in each of them. Files ("data", "eval")
// and documents ("problem", "profile", "out", ..) are objects as often as texts, and are checked
// where they are read.
#include "runtime/arguments.h"

#include <stdbool.h>
#include <string.h>

enum { TEXT = 1, NUMBER = 2, SWITCH = 4, TEXTS = 8 };

static const struct {
    const char *key;
    int types;
} table[] = {
    {"accumulate", TEXT | NUMBER},
    {"again", SWITCH},
    {"batch", NUMBER},
    {"budget", TEXT},
    {"freeze", TEXTS},
    {"job", TEXT},
    {"keep", SWITCH},
    {"loss", TEXT},
    {"model", TEXT},
    {"nesterov", SWITCH},
    {"no-shuffle", SWITCH},
    {"no-wait", SWITCH},
    {"on", TEXT},
    {"optimizer", TEXT},
    {"pin", SWITCH},
    {"plan-ms", NUMBER},
    {"points", NUMBER},
    {"policy", TEXT},
    {"precision", TEXT},
    {"read", SWITCH},
    {"replan", TEXT},
    {"resume", SWITCH},
    {"save-as", TEXT},
    {"schedule", TEXT},
    {"seconds", NUMBER},
    {"seed", NUMBER},
    {"spill", TEXT},
    {"steps", NUMBER},
    {"train", SWITCH},
    {"unpin", SWITCH},
    {"wait", SWITCH},
};

static bool is_texts(const json_t *v)
{
    const json_t *each;
    size_t i;
    json_array_foreach(v, i, each)
    {
        if (!json_is_string(each)) {
            return false;
        }
    }
    return json_is_array(v);
}

static const char *type_name(const json_t *v)
{
    return json_is_string(v)    ? "a string"
           : json_is_number(v)  ? "a number"
           : json_is_boolean(v) ? "true or false"
           : json_is_object(v)  ? "an object"
                                : "a list";
}

static hth_err argument_check(const char *key, int types, const json_t *v)
{
    static const char *const wanted[] = {[TEXT] = "a string",
                                         [NUMBER] = "a number",
                                         [TEXT | NUMBER] = "a string or a number",
                                         [SWITCH] = "true or false",
                                         [TEXTS] = "a list of strings"};
    bool right = v == NULL || json_is_null(v) || ((types & TEXT) != 0 && json_is_string(v)) ||
                 ((types & NUMBER) != 0 && json_is_number(v)) ||
                 ((types & SWITCH) != 0 && json_is_boolean(v)) ||
                 ((types & TEXTS) != 0 && is_texts(v));
    const char *is = types == TEXTS && json_is_array(v) ? "a list of others" : type_name(v);
    return right ? HTH_OK : hth_fail(HTH_EINVAL, "'%s' must be %s, not %s", key, wanted[types], is);
}

hth_err hth_arguments_read(const char *query, const char *text, json_t **out)
{
    json_error_t why = {.text = ""};
    *out = json_loads(text[0] != 0 ? text : "{}", 0, &why);
    if (json_is_object(*out)) {
        return HTH_OK;
    }
    json_decref(*out);
    *out = NULL;
    return hth_fail(HTH_EINVAL, "the arguments of '%.32s' are not a JSON object%s%s", query,
                    why.text[0] != 0 ? ": " : "", hth_err_json(why.text));
}

hth_err hth_arguments_check(const char *query, const json_t *args)
{
    static const char *const of_a_job[] = {"job", "pause", "resume", "cancel"};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        HTH_TRY(argument_check(table[i].key, table[i].types, json_object_get(args, table[i].key)));
    }
    const char *job = json_string_value(json_object_get(args, "job"));
    for (size_t i = 0; i < sizeof of_a_job / sizeof *of_a_job; i++) {
        if (strcmp(of_a_job[i], query) == 0 && (job == NULL || job[0] == 0)) {
            return hth_fail(HTH_EINVAL, "which job? the argument 'job' is missing");
        }
    }
    return HTH_OK;
}
