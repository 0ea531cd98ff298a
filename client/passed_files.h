// SPDX-License-Identifier: Apache-2.0
// client/passed_files.h - files that the client opens and the server reads or writes: their
// descriptors are passed (descriptor.h), so that a server of another user needs no rights to them,
// and opens nothing by its name.
#ifndef HTH_CLIENT_PASSED_FILES_H
#define HTH_CLIENT_PASSED_FILES_H

#include "client/exchange.h"

// hth_passed_path makes a path absolute: the server's working directory is another one. The caller
// frees *out with hth_free.
hth_err hth_passed_path(const char *path, char **out);
// hth_passed_data does so for a dataset; what is neither a file here nor looks like a path is the
// name of a stored one, and stays as it is.
hth_err hth_passed_data(const char *data, char **out);
// hth_passed_to tells whether files are passed to this server: it is reached through a socket of
// this machine, and accepts descriptors.
bool hth_passed_to(hearth *handle);

// hth_passed_import imports the model at `path` by descriptors, body->path being its name: the
// model's, then those that the server wants, which have to lie below the model's folder. *reply
// gets the reply `imported`.
hth_err hth_passed_import(hearth *handle, Hearth__Import *body, const char *path,
                          const hth_watch *watch, hth_reply *reply);
// hth_passed_export has a version written to the file at `path`, which appears whole.
hth_err hth_passed_export(hearth *handle, Hearth__Export *body, const char *path,
                          const hth_watch *watch);
// hth_passed_query passes the files that arguments "data", "eval" and "start" name; where the
// server may open them as well, it also gets their paths, for a job that goes on without its
// client. Datasets of other formats than safetensors (client/data/data.h) are read here, by the
// arguments "label" and "size", and passed as such a file; a name is one of a stored dataset. A
// server that is elsewhere is sent them by content: as datasets that end
// with the job, or (the question "dataset_put") as the one that is named, whose answer *answer
// gets; else that is NULL. `what`: the question. *changed gets the arguments, hth_alloc'd, and
// handles[0 .. *n) what was passed; NULL: they stay as they are. The socket that "exchange" names
// by its number here (runtime/arguments.h) is passed, too.
#define HTH_PASSED_FILES 3
hth_err hth_passed_query(hearth *handle, const char *what, const char *arguments,
                         const hth_watch *watch, char **changed, uint64_t handles[HTH_PASSED_FILES],
                         size_t *count, char **answer);
// hth_passed_undo removes what was sent for a job that the server has refused, by its changed
// arguments (NULL: nothing was); the error's sentence stays.
void hth_passed_undo(hearth *handle, const char *changed);
void hth_passed_fini(hearth *handle); // closes what an embedded engine was given

#endif
