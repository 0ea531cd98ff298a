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

static inline void server_rig_make(server_rig *rig)
{
    strcpy(rig->dir, "/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    snprintf(rig->store, sizeof rig->store, "%s/store", rig->dir);
    snprintf(rig->ipc, sizeof rig->ipc, "ipc://%s/sock", rig->dir);
}

// server_rig_end closes the server and removes the folder.
static inline void server_rig_end(server_rig *rig)
{
    hth_server_close(rig->server);
    assert_int_equal(test_remove(rig->dir), 0);
}

#endif
