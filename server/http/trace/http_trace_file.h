// SPDX-License-Identifier: Apache-2.0
// server/http/trace/http_trace_file.h - the file of traces: a JSON array that is whole after each
// write. With a log frequency N, each N traces get a file of their own, FILE.0, FILE.1, ..
#ifndef HTH_SERVER_HTTP_TRACE_HTTP_TRACE_FILE_H
#define HTH_SERVER_HTTP_TRACE_HTTP_TRACE_FILE_H

#include "server/http/trace/http_trace.h"

#define HTH_TRACE_PATH 1024

typedef struct hth_trace_file hth_trace_file;

// hth_trace_file_open makes `path` an empty file. HTH_EINVAL, HTH_EIO, HTH_EDENIED.
hth_err hth_trace_file_open(const char *path, hth_trace_file **out);
void hth_trace_file_close(hth_trace_file *file); // writes what is left; NULL is allowed
void hth_trace_file_add(hth_trace_file *file, const hth_trace *trace);
// hth_trace_file_flush writes what was added. What cannot be written is dropped, and logged once.
void hth_trace_file_flush(hth_trace_file *file);

#endif
