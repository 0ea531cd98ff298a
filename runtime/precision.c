// SPDX-License-Identifier: Apache-2.0
// The store's text "precision/NAME" is the name of a precision; it outlives versions, like the
// name. A text that is none counts as nothing.
#include "runtime/precision.h"

#include "base/settings.h"

#include <stdio.h>
#include <string.h>

#define PRECISION_KEY 256

static void precision_key(const char *name, char key[PRECISION_KEY])
{
    snprintf(key, PRECISION_KEY, "precision/%.*s", (int)strcspn(name, ":"), name);
}

void hth_precision_get(hth_store *store, const char *name, char out[HTH_PRECISION_TEXT])
{
    char key[PRECISION_KEY];
    hth_precision p;
    precision_key(name, key);
    if (hth_store_text_get(store, key, out, HTH_PRECISION_TEXT) != HTH_OK ||
        hth_precision_find(out, &p) != HTH_OK) {
        out[0] = 0;
    }
}

hth_precision hth_precision_of(hth_store *store, const char *name)
{
    char text[HTH_SETTING_TEXT];
    hth_precision p = HTH_PRECISION_FP32;
    hth_precision_get(store, name, text);
    (void)hth_precision_find(text[0] ? text : hth_setting_text(HTH_SET_PRECISION, text), &p);
    return p;
}

hth_err hth_precision_set(hth_store *store, const char *name, const char *text)
{
    char key[PRECISION_KEY];
    hth_precision p;
    if (text[0]) {
        HTH_TRY(hth_precision_find(text, &p));
    }
    precision_key(name, key);
    return hth_store_text_put(store, key, text);
}

void hth_precision_fill(hth_store *store, json_t *args)
{
    const char *model = json_string_value(json_object_get(args, "model"));
    const char *given = json_string_value(json_object_get(args, "precision"));
    const char *fp32 = hth_precision_name(HTH_PRECISION_FP32);
    if (model != NULL && json_object_get(args, "precision") == NULL) {
        given = hth_precision_name(hth_precision_of(store, model));
        json_object_set_new(args, "precision", json_string(given));
    }
    if (given != NULL && strcmp(given, fp32) == 0) {
        json_object_del(args, "precision");
    }
}

hth_err hth_precision_of_config(const json_t *config, const char **out)
{
    const json_t *p = json_object_get(json_object_get(config, "parameters"), "precision");
    hth_precision known;
    *out = json_string_value(json_object_get(p, "string_value"));
    if (p == NULL) {
        return HTH_OK;
    }
    if (*out == NULL) {
        return hth_fail(HTH_EINVAL, "the model configuration's parameter 'precision' has no "
                                    "'string_value'");
    }
    return (*out)[0] ? hth_precision_find(*out, &known) : HTH_OK;
}
