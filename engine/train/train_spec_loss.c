// SPDX-License-Identifier: Apache-2.0
// Options of the loss, and of what held-out data decide: which parameters are the result, and when
// a job ends early. An option of another loss would change nothing, so it is refused.
#include "engine/train/train_spec.h"

#include <string.h>

static hth_err loss_fitting(const json_t *args, const char *loss)
{
    static const struct {
        const char *key, *of;
    } settings[] = {{"class-axis", "softmax-xent and bce"},
                    {"class-weights", "softmax-xent"},
                    {"label-smoothing", "softmax-xent"},
                    {"pos-weight", "bce"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const json_t *v = json_object_get(args, settings[i].key);
        if (v != NULL && !json_is_null(v) && strstr(settings[i].of, loss) == NULL) {
            return hth_fail(HTH_EINVAL, "%s is a setting of the loss %s, not of %s",
                            settings[i].key, settings[i].of, loss);
        }
    }
    return HTH_OK;
}

// A number, or a list of them, none negative and not all 0.
static hth_err loss_weights(const json_t *args, const char *key, const json_t **out)
{
    const json_t *list = json_object_get(args, key), *v;
    size_t i;
    double sum = 0;
    *out = json_is_null(list) ? NULL : list;
    if (*out == NULL ||
        (json_is_number(list) && json_number_value(list) > 0 && json_number_value(list) <= 1e30)) {
        return HTH_OK;
    }
    json_array_foreach(list, i, v)
    {
        double w = json_number_value(v);
        if (!json_is_number(v) || !(w >= 0 && w <= 1e30)) {
            return hth_fail(HTH_EINVAL, "%s: weight %zu is not a number from 0 to 1e30", key,
                            i + 1);
        }
        sum += w;
    }
    return sum > 0
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "%s is a list of numbers, at least one of them above 0", key);
}

hth_err hth_train_spec_loss(const json_t *args, bool bench, hth_train_spec *spec)
{
    static const char *const losses[] = {
        [HTH_LOSS_SOFTMAX_XENT] = "softmax-xent", [HTH_LOSS_MSE] = "mse", [HTH_LOSS_BCE] = "bce"};
    int loss;
    double smoothing, axis;
    HTH_TRY(hth_spec_choice(args, "loss", bench ? "softmax-xent" : NULL, losses, 3, &loss));
    spec->options.loss = (hth_train_loss)loss;
    HTH_TRY(loss_fitting(args, losses[loss]));
    HTH_TRY(hth_spec_number(args, "label-smoothing", 0, 0, 1, &smoothing));
    if (smoothing >= 1) {
        return hth_fail(HTH_EINVAL, "label-smoothing is a number from 0 to less than 1");
    }
    spec->options.label_smoothing = (float)smoothing;
    HTH_TRY(hth_spec_number(args, "class-axis", 0, -1, 1, &axis));
    if (json_object_get(args, "class-axis") != NULL && axis != 1 && axis != -1) {
        return hth_fail(HTH_EINVAL, "class-axis is 1 or -1");
    }
    spec->options.class_axis = (int)axis;
    return loss_weights(args, loss == HTH_LOSS_BCE ? "pos-weight" : "class-weights",
                        &spec->weights);
}

hth_err hth_train_spec_keep(const json_t *args, hth_train_spec *spec)
{
    static const char *const words[] = {[HTH_KEEP_LAST] = "last",
                                        [HTH_KEEP_BEST] = "best",
                                        [HTH_KEEP_BEST_ACCURACY] = "best:accuracy"};
    int keep;
    double patience;
    bool waits = json_object_get(args, "patience") != NULL;
    if (json_is_boolean(json_object_get(args, "keep"))) { // of another command
        return hth_fail(HTH_EINVAL, "keep is last, best or best:accuracy");
    }
    HTH_TRY(hth_spec_choice(args, "keep", words[HTH_KEEP_LAST], words, 3, &keep));
    HTH_TRY(hth_spec_number(args, "patience", 1, 1, 1e9, &patience));
    spec->keep = (hth_train_keep)keep;
    spec->patience = waits ? (int64_t)patience : 0;
    if ((keep != HTH_KEEP_LAST || waits) && spec->hold_out <= 0 && spec->eval.name == NULL) {
        return hth_fail(HTH_EINVAL,
                        "%s needs held-out data to compare epochs by: --hold-out SHARE or --eval "
                        "FILE",
                        keep != HTH_KEEP_LAST ? "keep" : "patience");
    }
    if (keep == HTH_KEEP_BEST_ACCURACY && spec->options.loss == HTH_LOSS_MSE) {
        return hth_fail(HTH_EINVAL, "keep is best:accuracy, but the loss mse has no accuracy");
    }
    return HTH_OK;
}
