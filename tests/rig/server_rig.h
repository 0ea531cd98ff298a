// SPDX-License-Identifier: Apache-2.0
// tests/rig/server_rig.h - a server for a test, in a folder of its own under /tmp.
#ifndef HTH_TESTS_RIG_SERVER_RIG_H
#define HTH_TESTS_RIG_SERVER_RIG_H

#include "base/test.h"
#include "server/server.h"

#include <stdio.h>

typedef struct server_rig {
    char dir[64], store[96], ipc[96];
    hth_server *server;
    int port, metrics_port; // HTTP's
} server_rig;

static inline void server_rig_make(server_rig *r)
{
    strcpy(r->dir, "/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(r->store, sizeof r->store, "%s/store", r->dir);
    snprintf(r->ipc, sizeof r->ipc, "ipc://%s/sock", r->dir);
}

// server_rig_end closes the server and removes the folder.
static inline void server_rig_end(server_rig *r)
{
    hth_server_close(r->server);
    assert_int_equal(test_remove(r->dir), 0);
}

#endif
