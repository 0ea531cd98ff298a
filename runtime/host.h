// SPDX-License-Identifier: Apache-2.0
// runtime/host.h - host memory that requests have an engine take outside of its device. Engine's
// thread only.
//
// Design notes
// A plan accounts for every byte of the device. What lies outside of it is as large as a request
// makes it: outputs whose size is computed, what one stage of a model hands to the next, contents
// that a program was made of. All of that is counted here before it is allocated, and together
// stays below one limit: memory.host_bytes, or as much as the device has, at most a quarter of the
// machine's memory. The request that would exceed it is refused, with both numbers, or waits until
// others have given theirs back (memory_wait.h).
#ifndef HTH_RUNTIME_HOST_H
#define HTH_RUNTIME_HOST_H

#include "runtime/request.h"
#include "runtime/site.h"

uint64_t hth_host_limit(hth_site *site);
uint64_t hth_host_used(const hth_site *site); // all uses together

// hth_host_take counts `bytes` that are about to be allocated for what `fmt` names ("output 'y'",
// printf style; only an error is formatted). Programs that nobody uses now and that hold such
// memory are let go of first. HTH_ETOOBIG: more than there may ever be; HTH_ENODEVMEM: not now. On
// error nothing is counted.
hth_err hth_host_take(hth_site *site, hth_host_use use, uint64_t bytes, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void hth_host_give(hth_site *site, hth_host_use use, uint64_t bytes);

// hth_host_answers checks the n outputs (names, bytes) of a request against limits.message_bytes;
// those for which the client has brought memory (`request`, which may be NULL, says so) are left
// out. *bytes: of the others. HTH_EINVAL: they are more than an answer may have.
hth_err hth_host_answers(const hth_request *request, const hth_request_tensor *out, int n,
                         uint64_t *bytes);
// hth_host_sizes looks at what the nodes of program->graph make before anything is prepared for it:
// no single result is larger than all memory that it could be in. `request`: the request that
// program is made for, NULL: several, or a training step. HTH_EINVAL: its outputs are more than an
// answer may have; HTH_ETOOBIG: the sentence names node and sizes.
hth_err hth_host_sizes(hth_site *site, const hth_program *program, const hth_request *request);

#endif
