// SPDX-License-Identifier: Apache-2.0
// Whose models are, and what tenants have in a store.
#include "runtime/tenants/owner.h"

#include "base/alloc.h"
#include "tests/rig/store_rig.h"

static float values[64];

#define ALICE (&(hth_caller){"alice", false, HTH_TENANT_NEVER})
#define BOB   (&(hth_caller){"bob", false, HTH_TENANT_NEVER})
#define ADMIN (&(hth_caller){"root", true, HTH_TENANT_NEVER})
#define CAROL (&(hth_caller){"carol", false, 1000})

static hth_put_tensor tensor(int seed, size_t n)
{
    values[0] = (float)seed;
    return (hth_put_tensor){.name = "t",
                            .dtype = HTH_DT_F32,
                            .shape = {1, {(int64_t)n}},
                            .data = values,
                            .bytes = 4 * n};
}

// put makes a version whose one tensor has n elements, as `owner`'s.
static hth_err put(const char *name, const char *owner, int seed, size_t n)
{
    hth_put_result r;
    const hth_put_tensor t = tensor(seed, n);
    char *meta = hth_owner_meta("{\"max_batch\":4}", owner);
    if (meta == NULL) {
        return HTH_ENOMEM;
    }
    hth_err err = hth_store_put(store, name, "", 0, meta, &t, 1, NULL, NULL, &r);
    hth_free(meta);
    return err;
}

static hth_err room(const char *tenant, int64_t most, const char *but, int seed, size_t n)
{
    const hth_put_tensor t = tensor(seed, n);
    const hth_owner_put put = {.graph = "", .tensors = &t, .n = 1};
    return hth_owner_room(store, tenant, most, but, &put);
}

static void names_have_owners(void **state)
{
    char owner[HTH_TENANT];
    assert_ok(hth_owner_new(store, "a", ALICE, owner));
    assert_string_equal(owner, "alice");
    assert_ok(hth_owner_new(store, "a", ADMIN, owner));
    assert_string_equal(owner, "");
    assert_ok(hth_owner_new(store, "a", NULL, owner));
    assert_string_equal(owner, "");
    assert_ok(put("a", "alice", 1, 8));
    assert_ok(hth_owner_get(store, "a", owner));
    assert_string_equal(owner, "alice");
    assert_err(hth_owner_new(store, "a", BOB, owner), HTH_EDENIED, "belongs to another tenant");
    assert_ok(hth_owner_new(store, "a", ADMIN, owner)); // .. and it stays hers
    assert_string_equal(owner, "alice");
    assert_ok(hth_owner_may(store, "a:1", ALICE, "export"));
    assert_ok(hth_owner_may(store, "a", ADMIN, "export"));
    assert_ok(hth_owner_may(store, "a", NULL, "export"));
    assert_err(hth_owner_may(store, "a", BOB, "export"), HTH_EDENIED,
               "the role 'admin' may export");
    assert_err(hth_owner_may(store, "a:1", BOB, "remove"), HTH_EDENIED, "model 'a' belongs");
    const hth_store_alias alias = {.alias = "b", .name = "a"};
    hth_store_alias before;
    assert_ok(hth_store_alias_set(store, &alias, &before));
    assert_err(hth_owner_may(store, "b", BOB, "export"), HTH_EDENIED, "model 'a' belongs");
    assert_ok(hth_store_alias_rm(store, "b"));
    assert_ok(hth_owner_may(store, "nobody", BOB, "export")); // who asks the store learns that
    assert_ok(hth_owner_may(store, "a:b:c", BOB, "export"));
    assert_ok(hth_store_rm(store, "a", 0));
    assert_ok(hth_owner_new(store, "a", BOB, owner)); // it is free again
    assert_string_equal(owner, "bob");
}

// What was stored before versions had owners is nobody's, and stays so.
static void old_ones_have_none(void **state)
{
    char owner[HTH_TENANT];
    assert_ok(put("old", "", 2, 8));
    assert_ok(hth_owner_new(store, "old", BOB, owner));
    assert_string_equal(owner, "");
    assert_ok(hth_owner_may(store, "old", BOB, "remove"));
    assert_true(hth_owner_is("{}", BOB) && hth_owner_is("", BOB) && hth_owner_is("no JSON", BOB));
    assert_false(hth_owner_is("{\"owner\":\"alice\"}", BOB));
    assert_true(hth_owner_is("{\"owner\":\"bob\"}", BOB));
    // a checkpoint belongs to its job's tenant, not to the owner of the result
    assert_false(
        hth_owner_is("{\"job\":{\"tenant\":\"alice\",\"owner\":\"bob\"},\"owner\":\"bob\"}", BOB));
    assert_false(hth_owner_is("{\"job\":{\"tenant\":\"alice\"}}", BOB)); // of a model of nobody's
    assert_true(hth_owner_is("{\"job\":{\"tenant\":\"alice\"}}", ALICE));
    assert_true(hth_owner_is("{\"job\":{\"tenant\":\"alice\"}}", ADMIN));
    assert_false(hth_owner_is("{\"job\":{}}", BOB)); // of before: the administrators'
    assert_ok(hth_store_rm(store, "old", 0));
}

// Whoever has a limit adds nothing that counts for nobody.
static void limits_are_of_somebody(void **state)
{
    char owner[HTH_TENANT];
    assert_ok(put("old", "", 2, 8));
    assert_err(hth_owner_new(store, "old", CAROL, owner), HTH_EDENIED,
               "model 'old' is nobody's, so that what is added to it counts for nobody, and tenant "
               "'carol' has a limit");
    assert_ok(hth_owner_new(store, "old", &(hth_caller){"carol", true, 1000}, owner));
    assert_ok(hth_owner_may(store, "old", CAROL, "train"));
    assert_ok(hth_owner_may(store, "old", CAROL, "remove"));
    assert_ok(hth_owner_new(store, "new", CAROL, owner));
    assert_string_equal(owner, "carol");
    assert_ok(put("new", owner, 2, 8));
    assert_ok(hth_owner_new(store, "new", CAROL, owner));
    assert_string_equal(owner, "carol");
    assert_ok(hth_store_rm(store, "old", 0));
    assert_ok(hth_store_rm(store, "new", 0));
}

static void room_has_numbers(void **state)
{
    // 32 bytes of the tensor; 64 (HTH_OWNER_TENSOR) and its name in the record
    assert_ok(room("alice", 97, NULL, 1, 8));
    assert_err(room("alice", 96, NULL, 1, 8), HTH_EDENIED,
               "tenant 'alice' has 0 B of models and datasets in the store and may have 96 B "
               "(store=, tenant.file): 97 B more do not fit");
    assert_ok(put("a", "alice", 1, 8));
    assert_ok(put("b", "alice", 1, 8)); // the same content
    assert_ok(put("c", "bob", 3, 16));
    assert_ok(room("alice", 128, NULL, 1, 8)); // .. and the meta's 31
    assert_err(room("alice", 224, NULL, 2, 8), HTH_EDENIED, "has 128 B of models");
    assert_ok(room("alice", 225, NULL, 2, 8));
    assert_ok(room("bob", 97, "c", 2, 8)); // in its place
    assert_ok(room("bob", HTH_TENANT_NEVER, NULL, 2, 8));
    // a graph and a text count, too
    const hth_put_tensor t = tensor(2, 8);
    const hth_owner_put more = {
        .graph = "graph", .graph_bytes = 5, .meta_bytes = 7, .tensors = &t, .n = 1};
    assert_ok(hth_owner_room(store, "bob", 109, "c", &more));
    assert_err(hth_owner_room(store, "bob", 108, "c", &more), HTH_EDENIED, "109 B more do not fit");
    assert_ok(room("", 1, NULL, 2, 8)); // nobody's
    assert_ok(hth_store_rm(store, "a", 0));
    assert_ok(hth_store_rm(store, "b", 0));
    assert_ok(hth_store_rm(store, "c", 0));
}

static hth_err all_once(void)
{
    char owner[HTH_TENANT];
    HTH_TRY(hth_owner_new(store, "kept", ALICE, owner));
    return room("alice", 1000, NULL, 5, 8);
}

static void allocations_fail_cleanly(void **state)
{
    assert_ok(put("kept", "alice", 4, 8));
    FAULT_LOOP(all_once());
    assert_ok(hth_store_rm(store, "kept", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_owners), cmocka_unit_test(old_ones_have_none),
        cmocka_unit_test(limits_are_of_somebody), cmocka_unit_test(room_has_numbers),
        cmocka_unit_test(allocations_fail_cleanly)};
    return cmocka_run_group_tests(tests, store_rig_open, store_rig_close);
}
