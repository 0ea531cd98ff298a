// SPDX-License-Identifier: Apache-2.0
// tests/rig/store_rig.h - one store for all tests of a program, in a folder of its own: the set-up
// and the end of their group.
#ifndef HTH_TESTS_RIG_STORE_RIG_H
#define HTH_TESTS_RIG_STORE_RIG_H

#include "base/test.h"
#include "modelstore/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hth_store *store;
static char store_rig_dir[64];  // the test's, for other files
static char store_rig_path[80]; // where the store is

static inline int store_rig_open(void **state)
{
    strcpy(store_rig_dir, "/tmp/hearth-store-XXXXXX");
    if (mkdtemp(store_rig_dir) == NULL) {
        return 1;
    }
    snprintf(store_rig_path, sizeof store_rig_path, "%s/s", store_rig_dir);
    return hth_store_open(store_rig_path, true, false, &store) != HTH_OK;
}

static inline int store_rig_close(void **state)
{
    hth_store_close(store);
    return test_remove(store_rig_dir);
}

#endif
