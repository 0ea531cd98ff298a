// SPDX-License-Identifier: Apache-2.0
#include "modelstore/store_test.h"

static hth_err set(hth_store *store, const char *alias, const char *name, int version)
{
    hth_store_alias a = {.version = version};
    assert_true(strlen(alias) < sizeof a.alias && strlen(name) < sizeof a.name);
    strcpy(a.alias, alias);
    strcpy(a.name, name);
    return hth_store_alias_set(store, &a, NULL);
}

static void assert_target(hth_store *store, const char *alias, const char *want)
{
    hth_store_alias a;
    char text[HTH_STORE_TARGET];
    assert_ok(hth_store_alias_get(store, alias, &a));
    assert_string_equal(a.alias, alias);
    hth_store_alias_target(&a, text);
    assert_string_equal(text, want);
}

// A store with m:1 and m:2.
static hth_store *two_versions(void **state)
{
    hth_put_result r;
    hth_store *s = test_open(state);
    assert_ok(test_put(s, "m", 1, &r));
    assert_ok(test_put(s, "m", 2, &r));
    assert_int_equal(r.version, 2);
    return s;
}

static void test_moves(void **state)
{
    hth_store *s = two_versions(state);
    hth_store_alias a = {.alias = "prod", .name = "m", .version = 2}, before;
    uint64_t changes = hth_store_change_count(s);
    assert_int_equal(hth_store_alias_get(s, "prod", &a), HTH_ENOENT);
    a = (hth_store_alias){.alias = "prod", .name = "m", .version = 2};
    assert_ok(hth_store_alias_set(s, &a, &before));
    assert_string_equal(before.name, "");
    assert_target(s, "prod", "m:2");
    a.version = 1;
    assert_ok(hth_store_alias_set(s, &a, &before));
    assert_true(strcmp(before.name, "m") == 0 && before.version == 2);
    assert_target(s, "prod", "m:1");
    assert_int_equal(hth_store_change_count(s), changes + 2); // engines notice it
    hth_store_close(s);
    s = test_open(state); // it is kept
    assert_target(s, "prod", "m:1");
    assert_ok(set(s, "prod", "m", 0));
    assert_target(s, "prod", "m");
    assert_ok(hth_store_alias_rm(s, "prod"));
    assert_int_equal(hth_store_alias_get(s, "prod", &a), HTH_ENOENT);
    assert_int_equal(hth_store_change_count(s), changes + 4);
    hth_store_close(s);
}

// another_process moves "prod" to m:2, removes it, and puts m:3, one step for each byte.
static int another_process(const char *path, const int pipes[2])
{
    hth_store *s;
    hth_put_result r;
    char byte;
    for (int step = 0; read(pipes[0], &byte, 1) == 1; step++) {
        bool ok = hth_store_open(path, false, false, &s) == HTH_OK &&
                  (step == 0   ? set(s, "prod", "m", 2)
                   : step == 1 ? hth_store_alias_rm(s, "prod")
                               : test_put(s, "m", 3, &r)) == HTH_OK;
        hth_store_close(s);
        byte = ok ? 'y' : 'n';
        if (write(pipes[1], &byte, 1) != 1) {
            return 1;
        }
    }
    return 0;
}

static void let_it_go_on(const int pipes[2])
{
    char byte = 'g';
    assert_int_equal(write(pipes[1], &byte, 1), 1);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
}

// What one process has looked up, another one may change: the next look has to see it.
static void test_moved_elsewhere(void **state)
{
    int to[2], from[2], status;
    hth_store_alias a;
    hth_store_close(two_versions(state)); // a store must not be open across a fork
    assert_int_equal(pipe(to) | pipe(from), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]);
        _exit(another_process(((test_dir *)*state)->path, (int[2]){to[0], from[1]}));
    }
    close(to[0]), close(from[1]);
    hth_store *s = test_open(state);
    assert_ok(set(s, "prod", "m", 1));
    uint64_t changes = hth_store_change_count(s);
    for (int twice = 0; twice < 2; twice++) {
        assert_target(s, "prod", "m:1");
        assert_int_equal(hth_store_alias_get(s, "none", &a), HTH_ENOENT);
        assert_int_equal(hth_store_change_count(s), changes);
    }
    let_it_go_on((int[2]){from[0], to[1]});
    assert_target(s, "prod", "m:2");
    assert_int_equal(hth_store_change_count(s), changes + 1);
    let_it_go_on((int[2]){from[0], to[1]});
    assert_int_equal(hth_store_alias_get(s, "prod", &a), HTH_ENOENT);
    assert_int_equal(hth_store_change_count(s), changes + 2);
    let_it_go_on((int[2]){from[0], to[1]});
    assert_int_equal(hth_store_change_count(s), changes + 3);
    close(to[1]), close(from[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    hth_store_close(s);
}

// More aliases than are kept between two commits, in turns: each is found.
static void test_many(void **state)
{
    hth_store *s = two_versions(state);
    hth_store_alias a;
    char name[32];
    for (int i = 0; i < 300; i += 2) {
        snprintf(name, sizeof name, "a%d", i);
        assert_ok(set(s, name, "m", 1 + i % 4 / 2));
    }
    for (int i = 0; i < 900; i++) {
        snprintf(name, sizeof name, "a%d", i % 300);
        if (i % 2 != 0) {
            assert_int_equal(hth_store_alias_get(s, name, &a), HTH_ENOENT);
        } else {
            assert_target(s, name, i % 4 == 0 ? "m:1" : "m:2");
        }
    }
    hth_store_close(s);
}

static void test_list(void **state)
{
    hth_store *s = two_versions(state);
    hth_store_alias *a;
    int n;
    assert_ok(hth_store_alias_list(s, &a, &n));
    assert_true(n == 0);
    hth_free(a);
    assert_ok(hth_store_text_put(s, "alias", "no alias")); // texts around them
    assert_ok(hth_store_text_put(s, "alias0", "no alias"));
    assert_ok(set(s, "b", "m", 1));
    assert_ok(set(s, "a", "m", 0));
    assert_ok(hth_store_alias_list(s, &a, &n));
    assert_int_equal(n, 2);
    assert_true(strcmp(a[0].alias, "a") == 0 && a[0].version == 0);
    assert_true(strcmp(a[1].alias, "b") == 0 && a[1].version == 1);
    hth_free(a);
    assert_err(hth_store_alias_rm(s, "c"), HTH_ENOENT, "there are: a, b");
    hth_store_close(s);
}

// One name is a model's or an alias's.
static void test_names(void **state)
{
    hth_store *s = two_versions(state);
    hth_put_result r;
    hth_manifest m;
    char longest[300];
    assert_err(set(s, "m", "m", 1), HTH_EEXIST, "there is a model 'm'");
    assert_err(set(s, "prod", "n", 0), HTH_ENOENT, "the alias 'prod': no model 'n'; ");
    assert_err(set(s, "prod", "m", 3), HTH_ENOENT,
               "the alias 'prod': model 'm' has no version 3; there are: m:");
    assert_err(set(s, "a/b", "m", 1), HTH_EINVAL, "a/b");
    assert_ok(set(s, "prod", "m", 1));
    assert_err(set(s, "other", "prod", 0), HTH_EINVAL, "'prod' is itself an alias, of 'm:1'");
    assert_err(test_put(s, "prod", 1, &r), HTH_EEXIST, "'prod' is an alias of 'm:1'");
    assert_err(hth_store_alias_free(s, "prod"), HTH_EEXIST, "alias of 'm:1'");
    assert_ok(hth_store_alias_free(s, "m"));
    assert_err(hth_store_get(s, "prod", 0, &m), HTH_ENOENT, "an alias of 'm:1'");
    memset(longest, 'x', sizeof longest);
    longest[200] = 0;
    assert_ok(set(s, longest, "m", 1));
    assert_target(s, longest, "m:1");
    longest[200] = 'x';
    longest[201] = 0;
    hth_store_alias a;
    assert_int_equal(hth_store_alias_get(s, longest, &a), HTH_ENOENT);
    hth_store_close(s);
}

// An alias's target cannot be removed.
static void test_removal(void **state)
{
    hth_store *s = two_versions(state);
    assert_ok(set(s, "prod", "m", 1));
    assert_err(hth_store_rm(s, "m", 1), HTH_EBUSY, "'m:1' is the target of the alias 'prod'");
    assert_err(hth_store_rm(s, "m", 0), HTH_EBUSY, "'m:1' is the target of the alias 'prod'");
    assert_err(hth_store_rm(s, "prod", 0), HTH_EINVAL, "'prod' is an alias");
    assert_ok(set(s, "prod", "m", 0)); // the newest: another one may be it
    assert_ok(hth_store_rm(s, "m", 2));
    assert_err(hth_store_rm(s, "m", 1), HTH_EBUSY, "'m' is the target of the alias 'prod'");
    assert_ok(hth_store_alias_rm(s, "prod"));
    assert_ok(hth_store_rm(s, "m", 1));
    hth_store_close(s);
}

static hth_err move_and_list(hth_store *store)
{
    hth_store_alias *a;
    int n;
    HTH_TRY(set(store, "prod", "m", 2));
    HTH_TRY(hth_store_alias_list(store, &a, &n));
    hth_free(a);
    return HTH_OK;
}

static void test_faults(void **state)
{
    hth_store *s = two_versions(state);
    assert_ok(set(s, "prod", "m", 1));
    FAULT_LOOP(move_and_list(s));
    assert_target(s, "prod", "m:2");
    hth_store_close(s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, test_setup, test_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_moves), TEST(test_moved_elsewhere), TEST(test_many),   TEST(test_list),
        TEST(test_names), TEST(test_removal),         TEST(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
