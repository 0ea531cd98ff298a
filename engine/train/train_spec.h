// SPDX-License-Identifier: Apache-2.0
// engine/train/train_spec.h - how the specification of a job is read, of whatever kind.
#ifndef HTH_ENGINE_TRAIN_TRAIN_SPEC_H
#define HTH_ENGINE_TRAIN_TRAIN_SPEC_H

#include "engine/train/train.h"

// hth_spec_text is an argument that is a text, NULL: it is none, or absent.
const char *hth_spec_text(const json_t *args, const char *key);
#define HTH_SPEC_MOST_PLAN_MS 600000
#define HTH_SPEC_MOST_SEED    4294967295.0
// hth_spec_number: HTH_EINVAL: the argument is no number from `least` to `most`.
hth_err hth_spec_number(const json_t *args, const char *key, double dflt, double least, double most,
                        double *out);
// hth_spec_choice stores which of n words an argument is; `dflt` NULL: it must be there.
// HTH_EINVAL: none of them, with what was probably meant.
hth_err hth_spec_choice(const json_t *args, const char *key, const char *dflt,
                        const char *const *names, int n, int *out);
// hth_spec_file reads which file or dataset an argument names; out->name NULL: it is absent.
hth_err hth_spec_file(const json_t *args, const char *key, hth_train_file *out);

// hth_train_spec_loss reads the loss and its options, hth_train_spec_keep what is kept and when a
// job ends early (train_spec_loss.c), hth_train_spec_rate schedule and warm-up (train_rate.c).
hth_err hth_train_spec_loss(const json_t *args, bool bench, hth_train_spec *spec);
hth_err hth_train_spec_keep(const json_t *args, hth_train_spec *spec);
hth_err hth_train_spec_rate(const json_t *args, hth_train_spec *spec);

#endif
