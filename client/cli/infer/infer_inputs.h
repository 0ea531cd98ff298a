// SPDX-License-Identifier: Apache-2.0
// client/cli/infer/infer_inputs.h - the inputs of `hearth infer`: arrays and pictures, out of
// files, folders and standard input.
//
// Arrays are read at once, for they say themselves what they are. Of pictures only the names are
// kept (of one from a stream its bytes), until it is known how the model wants them.
#ifndef HTH_CLIENT_CLI_INFER_INFER_INPUTS_H
#define HTH_CLIENT_CLI_INFER_INFER_INPUTS_H

#include "client/cli/cli.h"

#include <stddef.h>

#define HTH_INFER_INPUTS 64

typedef struct hth_infer_picture {
    int input;   // whose it is
    char *shown; // what a person calls it, and where it is read from, unless there are bytes
    void *data;
    size_t bytes;
} hth_infer_picture;

typedef struct hth_infer_inputs {
    int n;
    hearth_tensor t[HTH_INFER_INPUTS]; // names are those below, data hth_alloc'd
    char *name[HTH_INFER_INPUTS];      // NULL: of the model's only input
    bool pictures[HTH_INFER_INPUTS];   // it is made of pictures: t has no data yet
    hth_infer_picture *picture;        // in the order of the command line
    int n_pictures, cap;
    bool streamed; // standard input is one of them
} hth_infer_inputs;

// hth_infer_inputs_read reads --input, each "[NAME=]FILE", "[NAME=]FILE.npz:ARRAY" or
// "[NAME=]FOLDER", to a zeroed *in. What a file is its bytes say: .npy, .npz (each array an input
// of its name), PNG or JPEG; "-" is standard input. An exit code; errors are printed.
// hth_infer_inputs_free frees what there is.
int hth_infer_inputs_read(const hth_cli *cli, hth_infer_inputs *in);
void hth_infer_inputs_free(hth_infer_inputs *in);

#endif
