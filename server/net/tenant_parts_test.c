// SPDX-License-Identifier: Apache-2.0
// One tenant takes half of what there is, two a third each, and the next one always finds some.
#include "server/net/tenant_parts.h"

#include "base/alloc.h"
#include "base/test.h"

#include <string.h>

#define MANY 64

static hth_tenant_parts parts;
static hth_tenant_part *taken[MANY];
static int n_taken;

static hth_err take(const char *tenant, int64_t most)
{
    const hth_tenant_limited limited = {"things", "limits.things", most};
    hth_tenant_part *part;
    hth_err err = hth_tenant_part_take(&parts, tenant, &limited, &part);
    assert_int_equal(part != NULL, err == HTH_OK);
    if (err == HTH_OK) {
        taken[n_taken++] = part;
    }
    return err;
}

static void give(int n)
{
    for (int i = 0; i < n; i++) {
        hth_tenant_part_give(taken[--n_taken]);
    }
}

// all has a tenant take whatever it can, and returns how many that were.
static int all(const char *tenant, int64_t most)
{
    int n = 0;
    while (take(tenant, most) == HTH_OK) {
        n++;
    }
    return n;
}

static void there_is_some_for_the_next(void **state)
{
    assert_int_equal(all("alice", 32), 16);
    assert_err(take("alice", 32), HTH_EBUSY,
               "tenant 'alice' has 16 things, and 16 are free (limits.things = 32): it may have "
               "as many as it leaves free");
    assert_int_equal(all("bob", 32), 8);
    assert_int_equal(all("carol", 32), 4);
    assert_int_equal(all("dave", 32), 2);
    assert_int_equal(all("alice", 32), 0); // who has more than is free, gets no more
    give(2 + 4 + 8);
    assert_int_equal(all("alice", 32), 0);
    give(16);
    assert_int_equal(parts.n, 0);
    assert_null(parts.by_name);
}

// By turns, each of two gets a third.
static void those_who_ask_get_the_same(void **state)
{
    int n[2] = {0, 0};
    for (int i = 0; i < MANY; i++) {
        n[i % 2] += take(i % 2 == 0 ? "alice" : "bob", 30) == HTH_OK;
    }
    assert_int_equal(n[0], 10);
    assert_int_equal(n[1], 10);
    give(20);
    assert_null(parts.by_name);
}

static void small_limits(void **state)
{
    assert_int_equal(all("alice", 0), 0);
    assert_int_equal(all("alice", 1), 1);
    assert_err(take("bob", 1), HTH_EBUSY, "has 0 things, and 0 are free");
    assert_err(take("bob", 0), HTH_EBUSY, "has 0 things, and 0 are free"); // it was lowered
    assert_int_equal(all("bob", 2), 1);
    give(2);
    hth_tenant_part_give(NULL);
    assert_null(parts.by_name);
}

static void without_memory(void **state)
{
    FAULT_LOOP(take("alice", 8));
    give(n_taken);
    assert_null(parts.by_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_is_some_for_the_next), cmocka_unit_test(those_who_ask_get_the_same),
        cmocka_unit_test(small_limits), cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
