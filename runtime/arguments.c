// SPDX-License-Identifier: Apache-2.0
#include "runtime/arguments.h"

#include "base/spelling.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static bool is_texts(const json_t *json)
{
    const json_t *each;
    size_t i;
    json_array_foreach(json, i, each)
    {
        if (!json_is_string(each)) {
            return false;
        }
    }
    return json_is_array(json);
}

static const char *type_name(const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_OBJECT:
        return "an object";
    default:
        return "a list";
    }
}

static hth_err argument_check(hth_argument argument, const json_t *json)
{
    static const char *const wanted[] = {
        [HTH_ARGUMENT_TEXT] = "a string",
        [HTH_ARGUMENT_NUMBER] = "a number",
        [HTH_ARGUMENT_TEXT | HTH_ARGUMENT_NUMBER] = "a string or a number",
        [HTH_ARGUMENT_SWITCH] = "true or false",
        [HTH_ARGUMENT_TEXT | HTH_ARGUMENT_SWITCH] = "a string, or true or false",
        [HTH_ARGUMENT_TEXTS] = "a list of strings"};
    unsigned types = hth_argument_types(argument);
    bool right = types == HTH_ARGUMENT_ANY || json == NULL || json_is_null(json) ||
                 ((types & HTH_ARGUMENT_TEXT) != 0 && json_is_string(json)) ||
                 ((types & HTH_ARGUMENT_NUMBER) != 0 && json_is_number(json)) ||
                 ((types & HTH_ARGUMENT_SWITCH) != 0 && json_is_boolean(json)) ||
                 ((types & HTH_ARGUMENT_TEXTS) != 0 && is_texts(json));
    if (right) {
        return HTH_OK;
    }
    bool list = types == HTH_ARGUMENT_TEXTS && json_is_array(json);
    return hth_fail(HTH_EINVAL, "'%s' must be %s, not %s", hth_argument_name(argument),
                    wanted[types], list ? "a list of others" : type_name(json));
}

static bool is_missing(const json_t *json)
{
    return json == NULL || json_is_null(json) ||
           (json_is_string(json) && json_string_length(json) == 0);
}

hth_err hth_arguments_read(hth_command_id command, const char *text, json_t **out)
{
    json_error_t why = {.text = ""};
    *out = json_loads(text[0] != 0 ? text : "{}", 0, &why);
    if (json_is_object(*out)) {
        return HTH_OK;
    }
    json_decref(*out);
    *out = NULL;
    return hth_fail(HTH_EINVAL, "the arguments of '%s' are not a JSON object%s%s",
                    hth_command_name(command), why.text[0] != 0 ? ": " : "",
                    hth_err_json(why.text));
}

hth_err hth_arguments_check(hth_command_id command, const json_t *args)
{
    const hth_command_row *row = hth_command_get(command);
    for (int i = 0; i < HTH_ARGUMENTS; i++) {
        if ((row->takes >> i & 1) != 0) {
            const char *name = hth_argument_name((hth_argument)i);
            HTH_TRY(argument_check((hth_argument)i, json_object_get(args, name)));
        }
    }
    for (int i = 0; i < HTH_ARGUMENTS; i++) {
        const char *name = hth_argument_name((hth_argument)i);
        if ((row->required >> i & 1) != 0 && is_missing(json_object_get(args, name))) {
            return hth_fail(HTH_EINVAL, "the argument '%s' is missing", name);
        }
    }
    return HTH_OK;
}

// ---- names

#define KNOWN_FAR 3 // letters that are another word

// known_nearest is what `name` may be a misspelling of; NULL: of nothing that the command takes.
// taken: it takes just that.
static const char *known_nearest(hth_command_id command, const char *name, bool *taken)
{
    const hth_command_row *row = hth_command_get(command);
    const char *best = NULL;
    int distance = KNOWN_FAR;
    *taken = false;
    for (int i = 0; i < HTH_ARGUMENTS; i++) {
        const char *argument = hth_argument_name((hth_argument)i);
        if ((row->takes >> i & 1) != 0) {
            *taken = *taken || strcmp(argument, name) == 0;
            bool same = hth_spelling_same(argument, name);
            best = same ? argument : best;
            distance = same ? 0 : distance;
            hth_spelling_closer(name, argument, &distance, &best);
        }
    }
    return best;
}

hth_err hth_arguments_known(hth_command_id command, const json_t *args)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)args, name, v)
    {
        bool taken;
        const char *best = known_nearest(command, name, &taken);
        const char *of = hth_command_name(command);
        if (taken || json_is_null(v)) {
            continue;
        }
        return best != NULL
                   ? hth_fail(HTH_EINVAL, "'%s' has no argument '%.40s'; did you mean '%s'?", of,
                              name, best)
                   : hth_fail(HTH_EINVAL,
                              "'%s' has no argument '%.40s'; `hearth help "
                              "%s` lists them without their dashes",
                              of, name, of);
    }
    return HTH_OK;
}

// ---- a rank

// rank_number reads a number of the object, at least `least`; -1: it is not there, or no such one.
static int rank_number(const json_t *object, const char *key, int least)
{
    const json_t *v = json_object_get(object, key);
    json_int_t n = json_integer_value(v);
    return json_is_integer(v) && n >= least && n <= INT32_MAX ? (int)n : -1;
}

hth_err hth_rank_read(const json_t *args, hth_rank *out)
{
    const json_t *v = json_object_get(args, HTH_RANK_KEY);
    *out = (hth_rank){.descriptor = -1, .fd = -1};
    if (v == NULL || json_is_null(v)) {
        return HTH_OK;
    }
    int rank = rank_number(v, "rank", 0), ranks = rank_number(v, "ranks", 1);
    out->descriptor = rank_number(v, "descriptor", 0);
    out->fd = rank_number(v, "fd", 0);
    if (rank < 0 || ranks < 0 || rank >= ranks || (out->descriptor < 0) == (out->fd < 0)) {
        return hth_fail(HTH_EINVAL, "'" HTH_RANK_KEY "' must be {\"rank\": R, \"ranks\": N, "
                                    "\"descriptor\": D}, R less than N");
    }
    out->rank = rank;
    out->ranks = ranks;
    return HTH_OK;
}
