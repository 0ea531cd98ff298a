// SPDX-License-Identifier: Apache-2.0
// Files that are not what they seem, change while they are read, or lie elsewhere than they say.
#include "base/file.h"

#include "base/alloc.h"
#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/hth-file-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][300];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_non_null(mkdtemp(dir));
    put("file", "0123456789");
    assert_int_equal(mkdir(in_dir("sub"), 0700), 0);
    put("sub/in", "inside");
    put("secret", "secret");
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    assert_int_equal(symlink("in", in_dir("sub/link")), 0);
    assert_int_equal(symlink("../secret", in_dir("sub/out")), 0);
    assert_int_equal(symlink("..", in_dir("sub/up")), 0);
    assert_int_equal(symlink("/etc/passwd", in_dir("sub/far")), 0);
    assert_int_equal(symlink("loop", in_dir("sub/loop")), 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", in_dir("socket"));
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
    close(s);
    return 0;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

static void test_kinds(void **state)
{
    static const struct {
        const char *path, *words;
        hth_err err;
    } bad[] = {{"", "a folder, not a regular file", HTH_EINVAL},
               {"fifo", "a FIFO, not a regular file", HTH_EINVAL},
               {"socket", "a socket, not a regular file", HTH_EINVAL},
               {"/dev/zero", "a character device, not a regular file", HTH_EINVAL},
               {"none", "cannot open", HTH_ENOENT},
               {"sub/loop", "cannot open", HTH_EIO}};
    int before = test_open_fds();
    hth_file f;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = bad[i].path[0] == '/' ? bad[i].path : in_dir(bad[i].path);
        assert_err(hth_file_open(path, "it", &f), bad[i].err, bad[i].words);
        assert_int_equal(f.fd, -1);
        hth_file_close(&f);
    }
    assert_ok(hth_file_open(in_dir("file"), "it", &f));
    assert_int_equal(f.bytes, 10);
    char text[4] = "";
    assert_ok(hth_file_read(&f, "it", 3, text, 3));
    assert_string_equal(text, "345");
    hth_file_close(&f);
    assert_int_equal(test_open_fds(), before);
}

// Files that are said to be regular, and are not: they have no bytes, or not those that they say.
static void test_proc(void **state)
{
    void *p;
    size_t n;
    assert_ok(hth_file_load("/proc/self/mem", 4096, &p, &n));
    assert_int_equal(n, 0);
    hth_free(p);
    const char *shorter = "/sys/kernel/mm/transparent_hugepage/enabled"; // than it says
    if (access(shorter, R_OK) == 0) {
        assert_err(hth_file_load(shorter, 1 << 20, &p, &n), HTH_EIO,
                   "changed while it was being read");
    }
}

static void test_changes(void **state)
{
    char text[16];
    hth_file f;
    put("moving", "0123456789");
    assert_ok(hth_file_open(in_dir("moving"), "moving", &f));
    assert_ok(hth_file_unchanged(&f, "moving"));
    assert_int_equal(truncate(in_dir("moving"), 4), 0);
    assert_err(hth_file_read(&f, "moving", 0, text, 10), HTH_EIO,
               "'moving' changed while it was being read");
    assert_err(hth_file_unchanged(&f, "moving"), HTH_EIO,
               "'moving' changed while it was being read");
    hth_file_close(&f);
    assert_ok(hth_file_open(in_dir("moving"), "moving", &f));
    put("moving", "01234567");
    assert_err(hth_file_unchanged(&f, "moving"), HTH_EIO, "changed while it was being read");
    hth_file_close(&f);
}

// Replaced by renaming, a file that is open is what it was.
static void test_renamed(void **state)
{
    char text[4] = "";
    hth_file f;
    put("name", "old");
    put("other", "new, and longer");
    assert_ok(hth_file_open(in_dir("name"), "name", &f));
    assert_int_equal(rename(in_dir("other"), in_dir("name")), 0);
    assert_ok(hth_file_read(&f, "name", 0, text, 3));
    assert_string_equal(text, "old");
    assert_ok(hth_file_unchanged(&f, "name"));
    hth_file_close(&f);
}

static void test_load(void **state)
{
    void *p;
    size_t n;
    assert_ok(hth_file_load(in_dir("file"), 10, &p, &n));
    assert_int_equal(n, 10);
    assert_string_equal(p, "0123456789");
    hth_free(p);
    assert_err(hth_file_load(in_dir("file"), 9, &p, &n), HTH_ETOOBIG,
               "has 10 bytes; at most 9 are read");
    put("sparse", "");
    assert_int_equal(truncate(in_dir("sparse"), (off_t)1 << 42), 0);
    assert_err(hth_file_load(in_dir("sparse"), 4096, &p, &n), HTH_ETOOBIG, "4398046511104 bytes");
}

// What a writer writes into a pipe, in pieces.
typedef struct writer {
    const char *path; // of a FIFO; NULL: `fd` is there already
    int fd;
    size_t n, chunk;
    bool stays; // it does not close
} writer;

static void *write_chunks(void *arg)
{
    writer *w = arg;
    w->fd = w->path != NULL ? open(w->path, O_WRONLY | O_CLOEXEC) : w->fd;
    for (size_t at = 0; w->fd >= 0 && at < w->n;) {
        char text[4096];
        size_t n = w->n - at < w->chunk ? w->n - at : w->chunk;
        for (size_t i = 0; i < n; i++) {
            text[i] = (char)('0' + (at + i) % 10);
        }
        ssize_t done = write(w->fd, text, n);
        if (done <= 0) {
            break;
        }
        at += (size_t)done;
    }
    if (w->fd >= 0 && !w->stays) {
        close(w->fd);
    }
    return NULL;
}

static hth_err begins_short(const void *data, size_t n, size_t *end)
{
    *end = 7;
    return n >= 7 ? HTH_OK : hth_fail(HTH_ECORRUPT, "too few");
}

static hth_err begins_never(const void *data, size_t n, size_t *end)
{
    return hth_fail(HTH_ECORRUPT, "%zu zeros", n);
}

static void own_is(const void *p, size_t n, size_t want)
{
    const char *text = p;
    assert_int_equal(n, want);
    assert_int_equal(text[n], 0);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(text[i], '0' + (int)(i % 10));
    }
}

// A FIFO is read to its end, in whatever pieces it comes, up to the limit.
static void test_own_fifo(void **state)
{
    static const struct {
        size_t n, chunk, most;
    } c[] = {{0, 1, 10},
             {10, 3, 10},
             {11, 3, 10},
             {300000, 1000, 1 << 20},
             {300000, 4096, 300000},
             {300000, 4096, 299999}};
    int before = test_open_fds();
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        pthread_t t;
        void *p;
        size_t n;
        char path[300];
        snprintf(path, sizeof path, "%s", in_dir("fifo"));
        writer w = {.path = path, .n = c[i].n, .chunk = c[i].chunk};
        assert_int_equal(pthread_create(&t, NULL, write_chunks, &w), 0);
        hth_err err = hth_file_load_own(path, c[i].most, NULL, &p, &n);
        pthread_join(t, NULL);
        if (c[i].n > c[i].most) {
            assert_err(err, HTH_ETOOBIG, "at most that many are read");
            continue;
        }
        assert_ok(err);
        own_is(p, n, c[i].n);
        hth_free(p);
    }
    assert_int_equal(test_open_fds(), before);
}

// Standard input, which somebody has made one that does not wait, from a writer that stays.
static void test_own_input(void **state)
{
    int ends[2], before = dup(0);
    void *p;
    size_t n;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(dup2(ends[0], 0), 0);
    writer w = {.fd = ends[1], .n = 8, .chunk = 8, .stays = true};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, write_chunks, &w), 0);
    pthread_join(t, NULL);
    close(ends[1]);
    assert_ok(hth_file_load_own("-", 100, begins_short, &p, &n));
    own_is(p, n, 8);
    assert_int_equal(((const char *)p)[n], 0);
    hth_free(p);
    assert_true(fcntl(0, F_GETFD) >= 0); // not ours to close
    assert_err(hth_file_load_own("-", 100, begins_short, &p, &n), HTH_ECORRUPT,
               "standard input: too few");
    dup2(before, 0);
    close(before);
    close(ends[0]);
}

static void test_own_others(void **state)
{
    void *p;
    size_t n;
    assert_err(hth_file_load_own("/dev/zero", (size_t)1 << 40, begins_never, &p, &n), HTH_ECORRUPT,
               "/dev/zero: 131072 zeros");
    assert_err(hth_file_load_own("/dev/zero", 1000, NULL, &p, &n), HTH_ETOOBIG,
               "more than 1000 bytes");
    assert_ok(hth_file_load_own("/dev/zero", (size_t)1 << 40, begins_short, &p, &n));
    assert_in_range(n, 7, HTH_FILE_BEGINS); // and not for ever
    hth_free(p);
    assert_ok(hth_file_load_own(in_dir("file"), 10, NULL, &p, &n));
    own_is(p, n, 10);
    hth_free(p);
    assert_err(hth_file_load_own(in_dir("file"), 9, NULL, &p, &n), HTH_ETOOBIG,
               "has 10 bytes; at most 9 are read");
    assert_err(hth_file_load_own(dir, 9, NULL, &p, &n), HTH_EINVAL, "is a folder, not a file");
    assert_err(hth_file_load_own(in_dir("none"), 9, NULL, &p, &n), HTH_ENOENT, "cannot open");
}

static const struct {
    const char *path;
    hth_err err, walked; // where the kernel resolves; where hearth walks
} beneath[] = {{"in", HTH_OK, HTH_OK},
               {"./in", HTH_OK, HTH_OK},
               {".//in", HTH_OK, HTH_OK},
               {"link", HTH_OK, HTH_EINVAL},
               {"out", HTH_EDENIED, HTH_EINVAL},
               {"up/secret", HTH_EDENIED, HTH_EIO},
               {"far", HTH_EDENIED, HTH_EINVAL},
               {"loop", HTH_EDENIED, HTH_EINVAL},
               {"../secret", HTH_EDENIED, HTH_EDENIED},
               {"./../secret", HTH_EDENIED, HTH_EDENIED},
               {"..", HTH_EDENIED, HTH_EDENIED},
               {"/etc/passwd", HTH_EDENIED, HTH_EDENIED},
               {"", HTH_EDENIED, HTH_EDENIED},
               {".", HTH_EINVAL, HTH_EINVAL},
               {"none", HTH_ENOENT, HTH_ENOENT},
               {"in/", HTH_EIO, HTH_OK}};

static int beneath_wrong(bool walked)
{
    int folder = open(in_dir("sub"), O_PATH | O_DIRECTORY | O_CLOEXEC), wrong = 0;
    for (size_t i = 0; i < sizeof beneath / sizeof *beneath; i++) {
        hth_file f;
        hth_err err = hth_file_open_at(folder, beneath[i].path, "it", &f);
        if (err != (walked ? beneath[i].walked : beneath[i].err)) {
            fprintf(stderr, "# %s: %s: %s\n", beneath[i].path, hth_strerror(err),
                    err != HTH_OK ? hth_err_detail() : "");
            wrong++;
        }
        wrong += err == HTH_OK && f.bytes != 6;
        hth_file_close(&f);
    }
    close(folder);
    return wrong;
}

static void test_beneath(void **state)
{
    assert_int_equal(beneath_wrong(false), 0);
}

// The same in a process whose sandbox does not know openat2.
static void test_beneath_walked(void **state)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        bool filtered = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
        _exit(filtered ? beneath_wrong(true) : 100);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

// Another thread exchanges a file and a link out of the folder all the time.
static atomic_bool swapping;

static void *swap(void *arg)
{
    char a[300], b[300];
    snprintf(a, sizeof a, "%s/sub/swapped", dir);
    snprintf(b, sizeof b, "%s/sub/away", dir);
    while (atomic_load(&swapping)) {
        (void)syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2); // RENAME_EXCHANGE
    }
    return NULL;
}

static void test_swapped(void **state)
{
    pthread_t t;
    int folder = open(in_dir("sub"), O_PATH | O_DIRECTORY | O_CLOEXEC), opened = 0;
    put("sub/swapped", "inside");
    assert_int_equal(symlink("../secret", in_dir("sub/away")), 0);
    atomic_store(&swapping, true);
    assert_int_equal(pthread_create(&t, NULL, swap, NULL), 0);
    // The other thread may wait for a processor meanwhile, with the name on the way out.
    for (int i = 0; i < 20000 || opened == 0; i++) {
        char text[7] = "";
        hth_file f;
        if (hth_file_open_at(folder, "swapped", "it", &f) == HTH_OK) {
            assert_ok(hth_file_read(&f, "it", 0, text, 6));
            assert_string_equal(text, "inside");
            hth_file_close(&f);
            opened++;
        }
    }
    atomic_store(&swapping, false);
    pthread_join(t, NULL);
    close(folder);
}

static void take(int fd, hth_err want, const char *words)
{
    hth_file f;
    hth_err err = hth_file_take(fd, "it", &f);
    if (err != want || (err != HTH_OK && strstr(hth_err_detail(), words) == NULL)) {
        fail_msg("%s: %s", hth_strerror(err), hth_err_detail());
    }
    close(fd);
}

// In the child of a fork: a file of a root that is no mount point, so that the list of mounts lacks
// the file system that it lies in. Returns 0: taken, 77: this is not allowed here.
static int take_in_chroot(void)
{
    char proc[PATH_MAX];
    hth_file f;
    snprintf(proc, sizeof proc, "%s/proc", dir);
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mkdir(proc, 0755) != 0 ||
        mount("/proc", proc, NULL, MS_BIND | MS_REC, NULL) != 0 || chroot(dir) != 0 ||
        chdir("/") != 0) {
        return 77;
    }
    if (hth_file_take(open("/file", O_RDONLY), "it", &f) != HTH_OK) {
        fprintf(stderr, "%s\n", hth_err_detail());
        return 1;
    }
    return 0;
}

static void test_take_chroot(void **state)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(take_in_chroot());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status == 77 << 8) {
        skip();
    }
    assert_int_equal(status, 0);
}

static void test_take(void **state)
{
    int ends[2];
    take(open(in_dir("file"), O_RDONLY), HTH_OK, "");
    take(open(in_dir("file"), O_RDWR), HTH_OK, "");
    take(open(in_dir("file"), O_PATH), HTH_EDENIED, "not open for reading");
    take(open(in_dir("file"), O_WRONLY), HTH_EDENIED, "not open for reading");
    take(open(dir, O_RDONLY | O_DIRECTORY), HTH_EINVAL, "a folder");
    take(open("/dev/zero", O_RDONLY), HTH_EINVAL, "a character device");
    assert_int_equal(pipe(ends), 0);
    close(ends[1]);
    take(ends[0], HTH_EDENIED, "cannot see");
    take(socket(AF_UNIX, SOCK_STREAM, 0), HTH_EDENIED, "cannot see");
    take(open(in_dir("fifo"), O_RDWR | O_NONBLOCK), HTH_EINVAL, "a FIFO");
    take(memfd_create("it", 0), HTH_EDENIED, "cannot see");
    int fd = open(in_dir("gone"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(unlink(in_dir("gone")), 0);
    take(fd, HTH_OK, "");
    take(-1, HTH_EIO, "cannot use");
    assert_err(hth_file_take_to_write(open("/dev/null", O_WRONLY), "it"), HTH_EINVAL,
               "a character device");
    fd = open(in_dir("file"), O_RDONLY);
    assert_err(hth_file_take_to_write(fd, "it"), HTH_EDENIED, "not open for writing");
    hth_file f;
    assert_ok(hth_file_again(fd, "it", &f));
    assert_true(f.fd != fd && f.bytes == 10);
    hth_file_close(&f);
    close(fd);
    fd = open(in_dir("file"), O_WRONLY);
    assert_ok(hth_file_take_to_write(fd, "it"));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),     cmocka_unit_test(test_proc),
        cmocka_unit_test(test_changes),   cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_load),      cmocka_unit_test(test_beneath),
        cmocka_unit_test(test_swapped),   cmocka_unit_test(test_beneath_walked),
        cmocka_unit_test(test_take),      cmocka_unit_test(test_take_chroot),
        cmocka_unit_test(test_own_fifo),  cmocka_unit_test(test_own_input),
        cmocka_unit_test(test_own_others)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
