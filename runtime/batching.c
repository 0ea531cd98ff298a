// SPDX-License-Identifier: Apache-2.0
// The store's text "batching/NAME" is a JSON object of those numbers that were set for the model;
// it outlives versions, like the name.
#include "runtime/batching.h"

#include "base/settings.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOW_OWED_NS 1e9 // of other runs, that one is delayed for what its tenant computed

#define BATCHING_TEXT 1024
#define BATCHING_KEY  256

// The numbers, with their ranges.
static const struct {
    const char *name;
    size_t at;
    int64_t least, most;
} batching_table[] = {
    {"max", offsetof(hth_batching, max), 1, 65536},
    {"delay_us", offsetof(hth_batching, delay_us), 0, 1000000},
    {"timeout_us", offsetof(hth_batching, timeout_us), 0, 3600000000},
    {"queue", offsetof(hth_batching, queue), 0, INT_MAX},
    {"priority", offsetof(hth_batching, priority), 1, UINT32_MAX},
};
#define BATCHING_NUMBERS (sizeof batching_table / sizeof batching_table[0])

static int64_t *number_of(hth_batching *batching, size_t i)
{
    return (int64_t *)((char *)batching + batching_table[i].at);
}

static void batching_clear(hth_batching *batching)
{
    *batching = (hth_batching){.n_preferred = 0};
    for (size_t i = 0; i < BATCHING_NUMBERS; i++) {
        *number_of(batching, i) = -1;
    }
}

static hth_err read_number(const json_t *json, size_t i, int64_t *out)
{
    int64_t n = json_is_integer(json) ? json_integer_value(json) : -1;
    if (json_is_null(json)) {
        *out = -1;
        return HTH_OK;
    }
    if (!json_is_integer(json) || n < batching_table[i].least || n > batching_table[i].most) {
        return hth_fail(HTH_EINVAL, "%s is a whole number from %lld to %lld",
                        batching_table[i].name, (long long)batching_table[i].least,
                        (long long)batching_table[i].most);
    }
    *out = n;
    return HTH_OK;
}

static hth_err read_preferred(const json_t *json, hth_batching *batching)
{
    size_t n = json_array_size(json);
    if (!(json_is_array(json) || json_is_null(json)) || n > HTH_BATCH_PREFERRED) {
        return hth_fail(HTH_EINVAL, "preferred is a list of at most %d batch sizes",
                        HTH_BATCH_PREFERRED);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(json, i);
        if (!json_is_integer(e) || json_integer_value(e) < 1 || json_integer_value(e) > 65536) {
            return hth_fail(HTH_EINVAL, "a preferred batch size is a whole number from 1 to 65536");
        }
        batching->preferred[i] = json_integer_value(e);
    }
    batching->n_preferred = (int)n;
    return HTH_OK;
}

// batching_read takes what `doc` names over into batching.
static hth_err batching_read(const json_t *doc, hth_batching *batching)
{
    const json_t *v;
    for (size_t i = 0; i < BATCHING_NUMBERS; i++) {
        if ((v = json_object_get(doc, batching_table[i].name)) != NULL) {
            HTH_TRY(read_number(v, i, number_of(batching, i)));
        }
    }
    v = json_object_get(doc, "preferred");
    return v != NULL ? read_preferred(v, batching) : HTH_OK;
}

static json_t *preferred_json(const int64_t *preferred, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(preferred[i]));
    }
    return list;
}

void hth_batching_load(hth_store *store, const char *name, hth_batching *out)
{
    char key[BATCHING_KEY], text[BATCHING_TEXT];
    batching_clear(out);
    snprintf(key, sizeof key, "batching/%s", name);
    if (hth_store_text_get(store, key, text, sizeof text) == HTH_OK) {
        json_t *doc = json_loads(text, 0, NULL);
        if (batching_read(doc, out) != HTH_OK) {
            batching_clear(out);
        }
        json_decref(doc);
    }
}

hth_err hth_batching_change(hth_store *store, const char *name, const json_t *doc,
                            hth_batching *batching)
{
    char key[BATCHING_KEY];
    hth_batching next = *batching;
    HTH_TRY(batching_read(doc, &next));
    json_t *kept = json_object();
    for (size_t i = 0; i < BATCHING_NUMBERS; i++) {
        if (*number_of(&next, i) >= 0) {
            json_object_set_new(kept, batching_table[i].name, json_integer(*number_of(&next, i)));
        }
    }
    if (next.n_preferred > 0) {
        json_object_set_new(kept, "preferred", preferred_json(next.preferred, next.n_preferred));
    }
    char *text = json_dumps(kept, JSON_COMPACT);
    snprintf(key, sizeof key, "batching/%s", name);
    hth_err err =
        text != NULL ? hth_store_text_put(store, key, text) : hth_no_memory("a model's settings");
    free(text);
    json_decref(kept);
    if (err == HTH_OK) {
        *batching = next;
    }
    return err;
}

// A ModelConfig's words for the numbers, and in which object they are.
static const struct {
    const char *name, *word;
    bool policy;
} config_table[] = {{"delay_us", "max_queue_delay_microseconds", false},
                    {"priority", "default_priority_level", false},
                    {"timeout_us", "default_timeout_microseconds", true},
                    {"queue", "max_queue_size", true}};

// Its other words, with the only value that they may have; NULL: they change nothing. Levels of
// priority are always 1 to 2^32 - 1, and a request's own timeout always counts.
static const struct {
    const char *word, *only;
    bool policy;
} config_others[] = {{"preferred_batch_size", NULL, false},  {"default_queue_policy", NULL, false},
                     {"priority_levels", NULL, false},       {"preserve_ordering", "false", false},
                     {"priority_queue_policy", "{}", false}, {"allow_timeout_override", NULL, true},
                     {"timeout_action", "\"REJECT\"", true}};

static bool config_knows(const char *word, bool policy, const char **only)
{
    *only = NULL;
    for (size_t i = 0; i < sizeof config_table / sizeof config_table[0]; i++) {
        if (config_table[i].policy == policy && strcmp(config_table[i].word, word) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof config_others / sizeof config_others[0]; i++) {
        if (config_others[i].policy == policy && strcmp(config_others[i].word, word) == 0) {
            *only = config_others[i].only;
            return true;
        }
    }
    return false;
}

static hth_err config_words(const json_t *json, bool policy)
{
    const char *word, *only, *at = policy ? "default_queue_policy" : "dynamic_batching";
    json_t *v;
    json_object_foreach((json_t *)json, word, v)
    {
        if (!config_knows(word, policy, &only)) {
            return hth_fail(HTH_EINVAL, "a model configuration's '%s' has no field '%.80s'", at,
                            word);
        }
        json_t *may = only != NULL ? json_loads(only, JSON_DECODE_ANY, NULL) : NULL;
        bool same = only == NULL || json_equal(v, may);
        json_decref(may);
        if (!same) {
            return hth_fail(HTH_ENOTSUP,
                            "the model configuration's '%s': '%s' is always %s here: requests "
                            "wait by priority and arrival, and late ones are refused",
                            at, word, only);
        }
    }
    return HTH_OK;
}

hth_err hth_batching_of_config(const json_t *config, json_t **out)
{
    const json_t *d = json_object_get(config, "dynamic_batching");
    const json_t *policy = json_object_get(d, "default_queue_policy");
    hth_batching checked;
    *out = NULL;
    batching_clear(&checked);
    if (d == NULL) {
        return HTH_OK;
    }
    if (!json_is_object(d) || (policy != NULL && !json_is_object(policy))) {
        return hth_fail(HTH_EINVAL,
                        "the model configuration's 'dynamic_batching' is not an object");
    }
    HTH_TRY(config_words(d, false));
    HTH_TRY(config_words(policy, true));
    *out = json_object();
    for (size_t i = 0; i < sizeof config_table / sizeof config_table[0]; i++) {
        json_t *v = json_object_get(config_table[i].policy ? policy : d, config_table[i].word);
        bool none = json_is_integer(v) && json_integer_value(v) == 0;
        if (v != NULL) {
            json_object_set(*out, config_table[i].name, none ? json_null() : v);
        }
    }
    if (json_object_get(d, "preferred_batch_size") != NULL) {
        json_object_set(*out, "preferred", json_object_get(d, "preferred_batch_size"));
    }
    hth_err err = batching_read(*out, &checked);
    if (err != HTH_OK) {
        json_decref(*out);
        *out = NULL;
        return hth_err_prefix(err, "the model configuration's 'dynamic_batching'");
    }
    return HTH_OK;
}

static int64_t setting_unless(int64_t given, hth_setting setting)
{
    return given >= 0 ? given : hth_setting_int(setting);
}

hth_batch_policy hth_batching_policy(const hth_batching *batching, int64_t model_max, bool joins)
{
    hth_batch_policy p = {
        .max_samples = joins ? setting_unless(batching->max, HTH_SET_BATCH_MAX) : 1,
        .delay_ns = (uint64_t)setting_unless(batching->delay_us, HTH_SET_BATCH_DELAY_US) * 1000u,
        .timeout_ns =
            (uint64_t)setting_unless(batching->timeout_us, HTH_SET_QUEUE_TIMEOUT_US) * 1000u,
        .max_queue = batching->queue > 0 ? (uint32_t)batching->queue : 0,
        .priority = (uint32_t)setting_unless(batching->priority, HTH_SET_QUEUE_PRIORITY)};
    p.max_samples = model_max > 0 && model_max < p.max_samples ? model_max : p.max_samples;
    for (int i = 0; i < batching->n_preferred; i++) {
        if (batching->preferred[i] <= p.max_samples) {
            p.preferred[p.n_preferred++] = batching->preferred[i];
        }
    }
    return p;
}

json_t *hth_batching_json(const hth_batch_policy *policy)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "max", (json_int_t)policy->max_samples,
                     "delay_us", (json_int_t)(policy->delay_ns / 1000), "timeout_us",
                     (json_int_t)(policy->timeout_ns / 1000), "queue",
                     (json_int_t)policy->max_queue, "priority", (json_int_t)policy->priority,
                     "preferred", preferred_json(policy->preferred, policy->n_preferred));
}

void hth_batch_flow_charge(hth_batch_flow *flow, uint64_t took_ns)
{
    double more = (double)took_ns / flow->weight, room = FLOW_OWED_NS / flow->weight - flow->owed;
    more = more < room ? more : room;
    if (flow->n > 0 && more > 0) {
        flow->at += more;
        flow->owed += more;
    }
}
