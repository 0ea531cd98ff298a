// SPDX-License-Identifier: Apache-2.0
// Tokens and their file, what each peer may, and what sentences leave out for peers elsewhere.
#include "base/test.h"
#include "server/net/auth.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

// SHA-256 of "secret", from sha256sum.
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
// .. and of "other".
#define OTHER "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"

static char dir[] = "/tmp/hearth-auth-XXXXXX", file[64];

static int setup(void **state)
{
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/tokens", dir);
    return 0;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

static void write_file(const char *text, mode_t mode)
{
    unlink(file);
    int fd = open(file, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void test_parse(void **state)
{
    static const char good[] = "# who\n\nalice infer " SECRET "\n  bob\tjob,model " OTHER " \r\n";
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"alice infer\n", "line 1: a line is NAME ROLE[,ROLE] SHA256"},
        {"\nalice infer " SECRET " more\n", "line 2: a line is"},
        {"alice root " SECRET "\n", "line 1: 'root' is not a role: infer, model, job, admin"},
        {"alice infer, " SECRET "\n", "'' is not a role"},
        {"alice infer " SECRET "0\n", "line 1: the SHA-256 is not 64 hexadecimal digits"},
        {"alice infer 2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B", "SHA-256"},
        {"al/ice infer " SECRET "\n", "'al/ice' is not a token's name"},
        {"a infer " SECRET "\na job " OTHER "\n", "line 2: 'a' has two tokens"},
    };
    hth_tokens t;
    assert_ok(hth_tokens_parse(good, sizeof good - 1, &t));
    assert_int_equal(t.n, 2);
    assert_string_equal(t.list[1].name, "bob");
    assert_int_equal(t.list[1].roles, HTH_ROLE_JOB | HTH_ROLE_MODEL);
    assert_ptr_equal(hth_tokens_find(&t, "secret"), &t.list[0]);
    assert_ptr_equal(hth_tokens_find(&t, "other"), &t.list[1]);
    assert_null(hth_tokens_find(&t, "secre"));
    assert_null(hth_tokens_find(&t, ""));
    hth_tokens_fini(&t);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_err(hth_tokens_parse(bad[i].text, strlen(bad[i].text), &t), HTH_EINVAL,
                   bad[i].words);
        assert_int_equal(t.n, 0);
    }
    assert_err(hth_tokens_parse("a\0b infer x", 11, &t), HTH_EINVAL, "zero byte");
    assert_ok(hth_tokens_parse("", 0, &t));
}

static void test_new(void **state)
{
    char a[HTH_TOKEN_TEXT], b[HTH_TOKEN_TEXT];
    hth_tokens t;
    struct stat st;
    unlink(file);
    assert_ok(hth_token_new(file, "a", "infer", a));
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_ok(hth_token_new(file, "b", "model,admin", b));
    assert_string_not_equal(a, b);
    assert_int_equal(strlen(a), 44);
    assert_err(hth_token_new(file, "a", "infer", a), HTH_EEXIST, "'a' has a token");
    assert_err(hth_token_new(file, "c", "all", a), HTH_EINVAL, "'all' is not a role");
    assert_err(hth_token_new(file, "", "infer", a), HTH_EINVAL, "not a token's name");
    assert_err(hth_token_new("/nowhere/tokens", "c", "infer", a), HTH_ENOENT, "cannot open");
    assert_ok(hth_tokens_read(file, &t));
    assert_int_equal(t.n, 2);
    assert_string_equal(hth_tokens_find(&t, b)->name, "b");
    assert_int_equal(hth_tokens_find(&t, b)->roles, HTH_ROLE_ALL);
    hth_tokens_fini(&t);
    write_file("a infer " SECRET, 0600); // without a newline at its end
    assert_ok(hth_token_new(file, "b", "infer", b));
    FAULT_LOOP(hth_tokens_read(file, &t));
    assert_int_equal(t.n, 2);
    hth_tokens_fini(&t);
    for (mode_t mode = 0; mode <= 0777; mode += 0111) { // readable by all, writable by others
        static const mode_t bits[] = {0604, 0620, 0602, 0666};
        write_file("a infer " SECRET, bits[mode / 0111 % 4]);
        assert_err(hth_tokens_read(file, &t), HTH_EDENIED, "others may read or change it");
    }
    write_file("a infer " SECRET, 0640);
    assert_ok(hth_tokens_read(file, &t));
    hth_tokens_fini(&t);
    write_file("  hth_abc \n", 0600);
    assert_err(hth_token_load(file, a), HTH_EINVAL, "nothing else");
    write_file("hth_abc\n", 0600);
    assert_ok(hth_token_load(file, a));
    assert_string_equal(a, "hth_abc");
    assert_err(hth_tokens_read(dir, &t), HTH_EINVAL, "not a file");
}

static const hth_need every_need[] = {HTH_NEED_NOTHING, HTH_NEED_ANY, HTH_NEED_INFER,
                                      HTH_NEED_MODEL,   HTH_NEED_JOB, HTH_NEED_ADMIN};

// may writes what a peer may as letters: "naimjA".
static const char *may(hth_auth *auth, hth_peer peer, const char *token)
{
    static char out[7];
    int n = 0;
    for (int i = 0; i < 6; i++) {
        hth_err err = hth_auth_check(auth, peer, token, every_need[i], NULL);
        assert_true(err == HTH_OK || err == HTH_EDENIED);
        if (err == HTH_OK) {
            out[n++] = "naimjA"[i];
        }
    }
    out[n] = 0;
    return out;
}

static void test_without_tokens(void **state)
{
    hth_auth *a;
    bool unknown;
    assert_ok(hth_auth_open("", "", &a));
    assert_false(hth_auth_has_tokens(a));
    assert_string_equal(may(a, HTH_PEER_TRUSTED, NULL), "naimjA");
    assert_string_equal(may(a, HTH_PEER_LOOPBACK, NULL), "naimA");
    assert_string_equal(may(a, HTH_PEER_LOCAL, NULL), "nai");
    assert_string_equal(may(a, HTH_PEER_NETWORK, NULL), "nai");
    assert_string_equal(may(a, HTH_PEER_NETWORK, "secret"), "nai");
    assert_err(hth_auth_check(a, HTH_PEER_NETWORK, NULL, HTH_NEED_JOB, &unknown), HTH_EDENIED,
               "hearth token new NAME --roles job");
    assert_false(unknown);
    assert_err(hth_auth_check(a, HTH_PEER_LOCAL, NULL, HTH_NEED_MODEL, NULL), HTH_EDENIED,
               "auth.local");
    hth_auth_close(a);
}

static void test_with_tokens(void **state)
{
    hth_auth *a;
    bool unknown;
    write_file("", 0600);
    assert_ok(hth_auth_open(file, "", &a));
    assert_string_equal(may(a, HTH_PEER_TRUSTED, NULL), "naimjA");
    assert_string_equal(may(a, HTH_PEER_LOOPBACK, NULL), "n");
    write_file("i infer " SECRET "\nj job " OTHER "\n", 0600);
    assert_string_equal(may(a, HTH_PEER_NETWORK, "secret"), "n");
    assert_ok(hth_auth_reload(a));
    assert_string_equal(may(a, HTH_PEER_NETWORK, "secret"), "nai");
    assert_string_equal(may(a, HTH_PEER_LOCAL, "other"), "naj");
    assert_string_equal(may(a, HTH_PEER_LOOPBACK, ""), "n");
    assert_err(hth_auth_check(a, HTH_PEER_NETWORK, "secret", HTH_NEED_JOB, &unknown), HTH_EDENIED,
               "the token of 'i' lacks the role 'job'");
    assert_false(unknown);
    assert_err(hth_auth_check(a, HTH_PEER_NETWORK, "guess", HTH_NEED_INFER, &unknown), HTH_EDENIED,
               "does not know this token");
    assert_true(unknown);
    assert_err(hth_auth_check(a, HTH_PEER_NETWORK, NULL, HTH_NEED_ANY, &unknown), HTH_EDENIED,
               "Authorization: Bearer");
    assert_true(unknown);
    write_file("i infer broken\n", 0600); // a file with a mistake changes nothing
    assert_err(hth_auth_reload(a), HTH_EINVAL, "line 1");
    assert_string_equal(may(a, HTH_PEER_NETWORK, "secret"), "nai");
    write_file("a admin " OTHER "\n", 0600);
    assert_ok(hth_auth_reload(a));
    assert_string_equal(may(a, HTH_PEER_NETWORK, "secret"), "n");
    assert_string_equal(may(a, HTH_PEER_NETWORK, "other"), "naimjA");
    hth_auth_close(a);
    unlink(file);
    assert_err(hth_auth_open(file, "", &a), HTH_ENOENT, "cannot open");
    assert_null(a);
}

static void test_local(void **state)
{
    hth_auth *a;
    const struct passwd *nobody = getpwnam("nobody");
    assert_ok(hth_auth_open("", "", &a));
    assert_int_equal(hth_auth_local(a, 0, 5), HTH_PEER_TRUSTED);
    assert_int_equal(hth_auth_local(a, geteuid(), 5), HTH_PEER_TRUSTED);
    assert_int_equal(hth_auth_local(a, 4000000, 4000000), HTH_PEER_LOCAL);
    hth_auth_close(a);
    assert_ok(hth_auth_open("", "no-such-user @no-such-group", &a)); // they let nobody in
    assert_int_equal(hth_auth_local(a, 4000000, 4000000), HTH_PEER_LOCAL);
    hth_auth_close(a);
    if (nobody != NULL) {
        assert_ok(hth_auth_open("", "  nobody  root", &a));
        assert_int_equal(hth_auth_local(a, nobody->pw_uid, 4000000), HTH_PEER_TRUSTED);
        hth_auth_close(a);
    }
    assert_ok(hth_auth_open("", "@root", &a)); // by the group that the peer runs with
    assert_int_equal(hth_auth_local(a, 4000000, 0), HTH_PEER_TRUSTED);
    assert_int_equal(hth_auth_local(a, 4000000, 1), HTH_PEER_LOCAL);
    hth_auth_close(a);
}

static void test_needs(void **state)
{
    static const struct {
        Hearth__Request__BodyCase body;
        const char *query;
        hth_need need;
        const char *arguments; // NULL: none
    } want[] = {
        {HEARTH__REQUEST__BODY_INFER, NULL, HTH_NEED_INFER, NULL},
        {HEARTH__REQUEST__BODY_MAP, NULL, HTH_NEED_INFER, NULL},
        {HEARTH__REQUEST__BODY_UNMAP, NULL, HTH_NEED_NOTHING, NULL},
        {HEARTH__REQUEST__BODY_CANCEL, NULL, HTH_NEED_NOTHING, NULL},
        {HEARTH__REQUEST__BODY_PROGRESS, NULL, HTH_NEED_NOTHING, NULL},
        {HEARTH__REQUEST__BODY_IMPORT_MODEL, NULL, HTH_NEED_MODEL, NULL},
        {HEARTH__REQUEST__BODY_EXPORT_MODEL, NULL, HTH_NEED_MODEL, NULL},
        {HEARTH__REQUEST__BODY_REMOVE, NULL, HTH_NEED_MODEL, NULL},
        {HEARTH__REQUEST__BODY_GC, NULL, HTH_NEED_MODEL, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "models", HTH_NEED_ANY, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "stats", HTH_NEED_ANY, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "unload", HTH_NEED_MODEL, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "train", HTH_NEED_JOB, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "bench", HTH_NEED_JOB, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "not-heard-of", HTH_NEED_ADMIN, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "job", HTH_NEED_ANY, NULL},
        {HEARTH__REQUEST__BODY_QUERY, "job", HTH_NEED_ANY, "{\"job\":\"a\",\"points\":3}"},
        {HEARTH__REQUEST__BODY_QUERY, "job", HTH_NEED_JOB, "{\"job\":\"a\",\"budget\":\"9%\"}"},
        {HEARTH__REQUEST__BODY_QUERY, "job", HTH_NEED_JOB, "{\"budget\":null,\"b\\u0075dget\":1}"},
        {HEARTH__REQUEST__BODY__NOT_SET, NULL, HTH_NEED_ADMIN, NULL},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        Hearth__Request q = HEARTH__REQUEST__INIT;
        Hearth__Query body = HEARTH__QUERY__INIT;
        q.body_case = want[i].body;
        if (want[i].query != NULL) {
            body.what = (char *)want[i].query;
            body.arguments = want[i].arguments != NULL ? (char *)want[i].arguments : body.arguments;
            q.query = &body;
        }
        assert_int_equal(hth_auth_need(&q, hth_command_find(want[i].query)), want[i].need);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),          cmocka_unit_test(test_new),
        cmocka_unit_test(test_without_tokens), cmocka_unit_test(test_with_tokens),
        cmocka_unit_test(test_local),          cmocka_unit_test(test_needs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
