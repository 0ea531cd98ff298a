// SPDX-License-Identifier: Apache-2.0
// client/cli/tfevents.h - TensorBoard's event files, as far as scalars need them: TFRecords
// (length, masked CRC-32C of it, bytes, masked CRC-32C of them) of the protobuf message Event
// (wall_time = 1, step = 2, file_version = 3, summary = 5 with values {tag = 1, simple_value = 2}).
#ifndef HTH_CLIENT_CLI_TFEVENTS_H
#define HTH_CLIENT_CLI_TFEVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct hth_scalar {
    const char *tag; // less than 60 bytes
    double value;    // NAN: left out
} hth_scalar;

// hth_tfevents_begin writes the record that a file starts with; hth_tfevents_scalars one with at
// most 8 values of a step, none where all are NAN. `wall`: seconds since 1970. false: errno says
// why.
bool hth_tfevents_begin(FILE *file, double wall);
bool hth_tfevents_scalars(FILE *file, double wall, int64_t step, const hth_scalar *values, int n);

// hth_crc32c is Castagnoli's CRC-32.
uint32_t hth_crc32c(const void *data, size_t bytes);

#endif
