// SPDX-License-Identifier: Apache-2.0
// tests/rig/http_rig.h - a server with the real engine, HTTP, and the identity models of
// tests/data/http.
#ifndef HTH_TESTS_RIG_HTTP_RIG_H
#define HTH_TESTS_RIG_HTTP_RIG_H

#include "base/settings.h"
#include "base/test.h"
#include "runtime/catalog.h"
#include "tests/rig/http_client.h"
#include "tests/rig/server_rig.h"

#include <unistd.h>

// shared_prefix is how the names of the shared memory begin that these tests make: this process's
// own, as long as SHARED, by which data calls it.
#define SHARED "hearth_test_"

static inline const char *shared_prefix(void)
{
    static char name[sizeof SHARED];
    int n = snprintf(name, sizeof name, "hth%08d_", (int)getpid());
    assert_int_equal(n, sizeof SHARED - 1);
    return name;
}

static inline void rig_import(hth_store *store, const char *name, const char *file, int max_batch)
{
    char path[96];
    hth_put_result r;
    snprintf(path, sizeof path, "tests/data/http/%s.onnx", file);
    assert_ok(hth_catalog_import(store, name, path, max_batch, NULL, NULL, NULL, &r));
}

// rig_setup_with has `more` put more into the store before the server opens it; NULL: nothing.
static inline int rig_setup_with(void **state, void (*more)(hth_store *store))
{
    static const char *const plain[] = {"ident", "fixed", "two",  "i8",   "u8",  "i32",
                                        "i64",   "u64",   "bool", "fp16", "fp64"};
    server_rig *f = calloc(1, sizeof *f);
    hth_store *store;
    server_rig_make(f);
    assert_ok(hth_store_open(f->store, true, false, &store));
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        rig_import(store, plain[i], plain[i], 0);
    }
    rig_import(store, "batch", "batch", 4);
    rig_import(store, "batch2", "batch2", 4);
    rig_import(store, "m", "m", 8);
    rig_import(store, "lm", "ident", 0);
    if (more != NULL) {
        more(store);
    }
    hth_store_close(store);
    assert_ok(hth_setting_set("limits.message_bytes", "128MiB"));
    hth_server_config config = {.store = f->store,
                                .device = "cpu:mem=1GiB,threads=2",
                                .http = "127.0.0.1:0",
                                .metrics = "127.0.0.1:0",
                                .client_shm = true};
    assert_ok(hth_server_open(&config, &f->server));
    f->port = hth_server_http_port(f->server);
    f->metrics_port = hth_server_metrics_port(f->server);
    *state = f;
    return 0;
}

static inline int rig_setup(void **state)
{
    return rig_setup_with(state, NULL);
}

static inline int rig_teardown(void **state)
{
    server_rig *f = *state;
    server_rig_end(f);
    free(f);
    char command[64];
    snprintf(command, sizeof command, "rm -f /dev/shm/%s*", shared_prefix());
    return system(command);
}

static inline int port_of(void **state)
{
    return ((server_rig *)*state)->port;
}

#endif
