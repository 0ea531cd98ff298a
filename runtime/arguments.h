// SPDX-License-Identifier: Apache-2.0
// runtime/arguments.h - the arguments of a question as a client sends them: a JSON object whose
// members have the types that are read from them. What is of another type would not be found, and
// the question answered as if nobody had given it.
#ifndef HTH_RUNTIME_ARGUMENTS_H
#define HTH_RUNTIME_ARGUMENTS_H

#include "base/err.h"

#include <jansson.h>

// hth_arguments_read parses `text` ("": no arguments) to *out, which the caller owns. HTH_EINVAL:
// it is not a JSON object; *out is NULL.
hth_err hth_arguments_read(const char *query, const char *text, json_t **out);
// hth_arguments_check: HTH_EINVAL names an argument of a wrong type, or says that a question about
// a job names none. null is like no argument; ranges, and what is no argument, are left to who
// reads them.
hth_err hth_arguments_check(const char *query, const json_t *args);

#endif
