// SPDX-License-Identifier: Apache-2.0
// runtime/redact.h - sentences and documents without paths and addresses of this machine, for peers
// that are elsewhere.
#ifndef HTH_RUNTIME_REDACT_H
#define HTH_RUNTIME_REDACT_H

#include <stddef.h>

// hth_redact copies a sentence, with paths and addresses left out of it. cap: bytes of `out`, more
// than 16; what has no room is cut.
void hth_redact(const char *sentence, char *out, size_t cap);
// hth_redact_jobs is a document about training jobs likewise: their files, and why they ended.
// Freed by hth_free; NULL: out of memory, or no JSON.
char *hth_redact_jobs(const char *json);

#endif
