// SPDX-License-Identifier: Apache-2.0
#include "engine/train/data/image_spec.h"

#include "base/text/numbers.h"

#include <math.h>
#include <string.h>

#define IMAGE_MOST_CROP 65536

// A number, or a quotient as text: 1/255.
static hth_err spec_scale(const json_t *args, float *out)
{
    const json_t *v = json_object_get(args, "scale");
    const char *text = json_string_value(v);
    double scale = json_number_value(v);
    bool is = text == NULL || hth_number_of(text, &scale);
    *out = is ? (float)scale : 0;
    return isnormal(*out)
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "scale is a number other than 0, like 1/255 or 0.5");
}

static hth_err spec_channel(const char *key, double v, bool zero, float *list, int *n)
{
    if (*n == HTH_SCALE_CHANNELS) {
        return hth_fail(HTH_EINVAL, "%s has more than %d values", key, HTH_SCALE_CHANNELS);
    }
    list[(*n)++] = (float)v;
    if (!isfinite((float)v) || (!zero && (float)v == 0)) {
        return hth_fail(HTH_EINVAL, "value %d of %s is %g, which is no %s", *n, key, v,
                        zero ? "number" : "deviation");
    }
    return HTH_OK;
}

// A list as text: 0.48,0.46,0.41.
static hth_err spec_listed(const char *key, const char *text, bool zero, float *list, int *n)
{
    double v[HTH_SCALE_CHANNELS + 1]; // the last one is refused
    int found = hth_numbers_of(text, HTH_SCALE_CHANNELS + 1, v);
    if (found <= 0) {
        return hth_fail(HTH_EINVAL, "%s '%.40s' is not a list of numbers like 0.5,0.5,0.5", key,
                        text);
    }
    for (int i = 0; i < found; i++) {
        HTH_TRY(spec_channel(key, v[i], zero, list, n));
    }
    return HTH_OK;
}

// A number, a list of them, or a list as text.
static hth_err spec_channels(const json_t *args, const char *key, bool zero, float *list, int *n)
{
    const json_t *v = json_object_get(args, key), *e;
    size_t i;
    if (json_is_number(v)) {
        return spec_channel(key, json_number_value(v), zero, list, n);
    }
    if (json_is_string(v)) {
        return spec_listed(key, json_string_value(v), zero, list, n);
    }
    json_array_foreach(v, i, e)
    {
        HTH_TRY(spec_channel(key, json_is_number(e) ? json_number_value(e) : NAN, zero, list, n));
    }
    return v == NULL || *n > 0 ? HTH_OK : hth_fail(HTH_EINVAL, "%s has no values", key);
}

static hth_err spec_means(const json_t *args, hth_train_scale *scale)
{
    HTH_TRY(spec_channels(args, "mean", true, scale->mean, &scale->n_mean));
    return spec_channels(args, "std", false, scale->std, &scale->n_std);
}

// spec_normal makes of the text mean=M,..,std=D,.. (in either order) an object, the caller's; NULL:
// it is none.
static json_t *spec_normal(const char *text)
{
    static const char *const heads[][2] = {{"mean=", ",std="}, {"std=", ",mean="}};
    static const char *const keys[][2] = {{"mean", "std"}, {"std", "mean"}};
    int i = strncmp(text, heads[0][0], strlen(heads[0][0])) == 0 ? 0 : 1;
    size_t head = strlen(heads[i][0]);
    const char *next = strstr(text, heads[i][1]);
    if (strncmp(text, heads[i][0], head) != 0 || next == NULL) {
        return NULL;
    }
    return json_pack("{s:s%, s:s}", keys[i][0], text + head, (size_t)(next - text) - head,
                     keys[i][1], next + strlen(heads[i][1]));
}

// {"mean": .., "std": ..}, or that as text.
static hth_err spec_normalize(const json_t *v, hth_train_scale *scale)
{
    const char *text = json_string_value(v);
    json_t *both = text != NULL ? spec_normal(text) : json_incref((json_t *)v);
    bool whole = json_object_size(both) == 2 && json_object_get(both, "mean") != NULL &&
                 json_object_get(both, "std") != NULL;
    hth_err err = whole ? hth_err_prefix(spec_means(both, scale), "normalize")
                        : hth_fail(HTH_EINVAL, "normalize is mean=M,..,std=D,.. with one value, or "
                                               "one of each channel: mean=0.5,std=0.25");
    json_decref(both);
    return err;
}

hth_err hth_image_spec_scale(const json_t *args, hth_train_scale *scale)
{
    const json_t *normalize = json_object_get(args, "normalize");
    const char *other = json_object_get(args, "std") != NULL ? "std" : NULL;
    other = json_object_get(args, "mean") != NULL ? "mean" : other;
    scale->scale = 1;
    scale->images = normalize != NULL && !json_is_null(normalize);
    if (scale->images && other != NULL) {
        return hth_fail(HTH_EINVAL, "normalize and %s: say it once", other);
    }
    if (json_object_get(args, "scale") == NULL && other != NULL) {
        return hth_fail(HTH_EINVAL,
                        "%s without scale: bytes become (x * scale - mean) / std; "
                        "--scale 1/255 makes them 0 to 1, --scale 1 keeps them; of floats "
                        "--normalize has both",
                        other);
    }
    if (json_object_get(args, "scale") != NULL) {
        scale->on = true;
        HTH_TRY(spec_scale(args, &scale->scale));
    }
    return scale->images ? spec_normalize(normalize, scale) : spec_means(args, scale);
}

hth_err hth_image_spec_augment(const json_t *args, hth_augment *augment)
{
    const json_t *crop = json_object_get(args, "crop"), *flip = json_object_get(args, "flip");
    double v = json_number_value(crop);
    augment->flip = json_is_true(flip);
    if (flip != NULL && !json_is_boolean(flip) && !json_is_null(flip)) {
        return hth_fail(HTH_EINVAL, "flip is true or false");
    }
    if (crop == NULL || json_is_null(crop)) {
        return HTH_OK;
    }
    if (!(v >= 1 && v <= IMAGE_MOST_CROP) || v != floor(v)) { // also of what is no number
        return hth_fail(HTH_EINVAL, "crop is a whole number of pixels from 1 to %d",
                        IMAGE_MOST_CROP);
    }
    augment->crop = (int64_t)v;
    return HTH_OK;
}
