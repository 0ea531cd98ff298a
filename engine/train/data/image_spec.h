// SPDX-License-Identifier: Apache-2.0
// engine/train/data/image_spec.h - what a job's specification says about the values of its images.
#ifndef HTH_ENGINE_TRAIN_DATA_IMAGE_SPEC_H
#define HTH_ENGINE_TRAIN_DATA_IMAGE_SPEC_H

#include "engine/train/data/augment.h"
#include "graph/autodiff/train_scale.h"

#include <jansson.h>

// hth_image_spec_scale reads "scale", "mean", "std" and "normalize" into *scale, all zero so far;
// hth_image_spec_augment "flip" and "crop". HTH_EINVAL says which is wrong.
hth_err hth_image_spec_scale(const json_t *args, hth_train_scale *scale);
hth_err hth_image_spec_augment(const json_t *args, hth_augment *augment);

#endif
