// SPDX-License-Identifier: Apache-2.0
// tests/rig/pass_fd.h - passes descriptors as the client does, for tests that make requests
// themselves.
#ifndef HTH_TESTS_RIG_PASS_FD_H
#define HTH_TESTS_RIG_PASS_FD_H

#include "client/descriptor.h"

// A connection for descriptors; pass_end closes it.
typedef struct pass_fd {
    hearth h;
} pass_fd;

static inline void pass_begin(pass_fd *fd, const char *url)
{
    *fd = (pass_fd){.h = {.url = (char *)url, .passing_fd = -1}};
    pthread_mutex_init(&fd->h.passing, NULL);
}

// pass_one returns the handle of `fd`; 0: it was not taken.
static inline uint64_t pass_one(pass_fd *p, int fd)
{
    uint64_t handle = 0;
    return hth_descriptor_pass(&p->h, fd, &handle) == HTH_OK ? handle : 0;
}

static inline void pass_end(pass_fd *fd)
{
    hth_descriptor_fini(&fd->h);
    pthread_mutex_destroy(&fd->h.passing);
}

#endif
