// SPDX-License-Identifier: Apache-2.0
// Which sockets a client trusts that nobody named. As root, others are made up by chown.
#include "client/default_url.h"

#include "base/test.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define STRANGER 65534

static char dir[] = "/tmp/hth-local-XXXXXX";
static char path[200];

static int listen_at(const char *at)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

static int setup(void **state)
{
    strcpy(dir, "/tmp/hth-local-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/sock", dir);
    return 0;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

static void test_own(void **state)
{
    assert_err(hth_default_url_trusts(path, false), HTH_ENOENT, "there is no");
    int fd = listen_at(path);
    assert_ok(hth_default_url_trusts(path, false));
    assert_int_equal(chmod(dir, 01777), 0); // as /tmp is: what is ours stays ours
    assert_ok(hth_default_url_trusts(path, false));
    close(fd);
    assert_err(hth_default_url_trusts(path, false), HTH_ENOENT, "no server answers");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/log", path), 0);
    assert_err(hth_default_url_trusts(path, false), HTH_EDENIED, "not a socket");
}

static void test_open_folders(void **state)
{
    char outer[250];
    int fd = listen_at(path);
    assert_int_equal(chmod(dir, 0777), 0);
    assert_err(hth_default_url_trusts(path, false), HTH_EDENIED, "others may write its folder");
    assert_err(hth_default_url_trusts(path, true), HTH_EDENIED, "others may write its folder");
    assert_int_equal(chmod(dir, 0770), 0);
    assert_err(hth_default_url_trusts(path, false), HTH_EDENIED, "others may write its folder");
    close(fd);
    snprintf(outer, sizeof outer, "%s/inner", dir); // it could be exchanged as a whole
    assert_int_equal(mkdir(outer, 0700), 0);
    strcat(outer, "/sock");
    fd = listen_at(outer);
    assert_err(hth_default_url_trusts(outer, false), HTH_EDENIED, "others may write its folder");
    assert_int_equal(chmod(dir, 0755), 0);
    assert_ok(hth_default_url_trusts(outer, false));
    close(fd);
}

static void test_strangers(void **state)
{
    int ends[2], status;
    char ready;
    if (geteuid() != 0) {
        skip();
    }
    assert_int_equal(chmod(dir, 01777), 0);
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) { // listens first, in a folder that everybody may write
        bool other = setgid(STRANGER) == 0 && setuid(STRANGER) == 0;
        int fd = listen_at(path);
        other = other && chmod(path, 0777) == 0 && write(ends[1], "r", 1) == 1;
        int c = accept(fd, NULL, NULL);
        char got[8];
        _exit(!other || recv(c, got, sizeof got, 0) != 0); // nothing is sent
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    assert_err(hth_default_url_trusts(path, false), HTH_EDENIED, "it belongs to user 65534");
    assert_int_equal(chown(path, 0, 0), 0); // only the kernel knows who listens
    assert_err(hth_default_url_trusts(path, false), HTH_EDENIED, "there listens user 65534");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(unlink(path), 0);
    int fd = listen_at(path);
    assert_int_equal(chown(dir, STRANGER, STRANGER), 0);
    assert_err(hth_default_url_trusts(path, false), HTH_EDENIED, "its folder belongs to");
    assert_int_equal(chmod(dir, 0755), 0);
    assert_ok(hth_default_url_trusts(path, true)); // root gave it the folder, as /run/hearth
    close(fd);
}

// A server whose socket is for its group (the service's) is not one that is absent.
static void test_group_only(void **state)
{
    int status;
    if (geteuid() != 0) {
        skip();
    }
    int fd = listen_at(path);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(chmod(path, 0770), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        bool other = setgroups(0, NULL) == 0 && setgid(STRANGER) == 0 && setuid(STRANGER) == 0;
        bool told = hth_default_url_trusts(path, true) == HTH_EDENIED &&
                    strstr(hth_err_detail(), "you may not open") != NULL;
        _exit(!other || !told);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(fd);
}

static void test_find(void **state)
{
    char url[300], want[300], socket_path[250];
    if (access("/run/hearth.sock", F_OK) == 0 || access("/run/hearth/hearth.sock", F_OK) == 0) {
        skip();
    }
    snprintf(socket_path, sizeof socket_path, "%s/hearth.sock", dir);
    int fd = listen_at(socket_path);
    snprintf(want, sizeof want, "ipc://%s", socket_path);
    assert_ok(hth_default_url_find(dir, url, sizeof url));
    assert_string_equal(url, want);
    assert_err(hth_default_url_find(dir, url, 10), HTH_EINVAL, "too long");
    assert_int_equal(chmod(dir, 0777), 0);
    hth_err err = hth_default_url_find(dir, url, sizeof url); // there may be one in /tmp
    assert_true(err == HTH_OK ? strcmp(url, want) != 0
                              : err == HTH_EDENIED && strstr(hth_err_detail(), "is not trusted"));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_own, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_strangers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_group_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_find, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
