// SPDX-License-Identifier: Apache-2.0
// client/cli/infer/infer_pictures.h - pictures as a model wants them: as the options of
// `hearth infer` say, else its metadata, else so that bytes become 0 to 1.
//
// Keys of the metadata, in any case: those of ONNX's MetadataProps.md (Image.NominalPixelRange,
// Image.BitmapPixelFormat for the order of colours, Image.ColorSpaceGamma, of which Linear is
// refused), imgsz as Ultralytics writes it, where the input leaves its size open, and before them
// hearth.scale, hearth.mean, hearth.std and hearth.size, which are like the options.
#ifndef HTH_CLIENT_CLI_INFER_INFER_PICTURES_H
#define HTH_CLIENT_CLI_INFER_INFER_PICTURES_H

#include "client/cli/infer/infer_inputs.h"
#include "client/cli/infer/infer_model.h"
#include "client/data/picture.h"

// hth_infer_pictures makes in->t of those inputs that are pictures, `model` being the model's
// document. Several pictures of one input are a batch, in order. An exit code; errors are printed.
int hth_infer_pictures(const hth_cli *cli, const json_t *model, hth_infer_inputs *in);
// hth_infer_form tells how pictures lie in `input`, one of the model's document: the options'
// values and the metadata's are in it. height or width 0: nobody says it. HTH_EINVAL, HTH_ENOTSUP.
hth_err hth_infer_form(const json_t *options, const json_t *model, const json_t *input,
                       hth_picture_form *out);

#endif
