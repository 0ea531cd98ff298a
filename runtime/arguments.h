// SPDX-License-Identifier: Apache-2.0
// runtime/arguments.h - the arguments of a command as a client sends them: a JSON object, checked
// against the command's row (runtime/command.h). One of another type would not be found, and the
// command would run as if it had not been given.
#ifndef HTH_RUNTIME_ARGUMENTS_H
#define HTH_RUNTIME_ARGUMENTS_H

#include "runtime/command.h"

#include <jansson.h>

// hth_arguments_read parses `text` ("": no arguments) to *out, which the caller owns. HTH_EINVAL:
// it is not a JSON object; *out is NULL.
hth_err hth_arguments_read(hth_command_id command, const char *text, json_t **out);
// hth_arguments_check: HTH_EINVAL names an argument that the command takes and that has a wrong
// type, or one that it requires and that is missing or empty. null is like no argument. Ranges are
// checked by who reads them; arguments that the command does not take are ignored.
hth_err hth_arguments_check(hth_command_id command, const json_t *args);
// hth_arguments_known: HTH_EINVAL names an argument that the command does not take, and one that
// may be meant. null is like no argument.
hth_err hth_arguments_known(hth_command_id command, const json_t *args);

// The argument "exchange" of a training job: that it is one rank of a group whose other ranks are
// jobs of other servers, and by which socket its client sums for it (base/ipc/sum_link.h):
// {"rank": 0, "ranks": 4, "descriptor": 1}, the descriptor being one that came with the request. An
// embedded engine's caller says "fd", a number of its own process.
#define HTH_RANK_KEY "exchange"

typedef struct hth_rank {
    int rank, ranks;    // ranks 0: the job is no rank
    int descriptor, fd; // -1: not given
} hth_rank;

// hth_rank_read reads the argument; where there is none, or null, out->ranks is 0. HTH_EINVAL.
hth_err hth_rank_read(const json_t *args, hth_rank *out);

#endif
