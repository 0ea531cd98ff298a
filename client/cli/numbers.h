// SPDX-License-Identifier: Apache-2.0
// client/cli/numbers.h - a list of numbers that an option has: written out, or in a file.
#ifndef HTH_CLIENT_CLI_NUMBERS_H
#define HTH_CLIENT_CLI_NUMBERS_H

#include "base/err.h"

#include <jansson.h>

// hth_cli_numbers reads "1,0.5,2", or else the file of that name: numbers parted by commas or white
// space, or a .npy file of floats. HTH_EINVAL, HTH_EIO and others name the text and what is wrong.
hth_err hth_cli_numbers(const char *text, json_t **out);

#endif
