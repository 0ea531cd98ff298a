// SPDX-License-Identifier: Apache-2.0
// Each case enters the sandbox in a process of its own, tries one thing, and reports errno as the
// exit code. What is refused is checked against what the same process may do without a sandbox.
#include "engine/process/sandbox.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define FAILED 200 // the sandbox could not be entered

static char granted[64], outside[64], used[64], read_only[64], listed[64];

typedef int (*attempt)(void); // 0, or errno

static int result(long rc)
{
    return rc == -1 ? errno : 0;
}

// run_in returns what `a` does in a new process: in the sandbox's files, its calls, both or none.
static int run_in(bool files, bool calls, attempt a)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const hth_sandbox_place place[] = {{granted, HTH_MAY_WRITE},
                                           {used, HTH_MAY_USE},
                                           {read_only, HTH_MAY_READ},
                                           {listed, HTH_MAY_LIST},
                                           {"/nowhere/at/all", HTH_MAY_WRITE}};
        hth_sandbox s = {.files = false};
        alarm(20);
        if ((files && hth_sandbox_files(place, 5, false, &s) != HTH_OK) ||
            (calls && hth_sandbox_calls(&s) != HTH_OK) || s.calls != calls) {
            _exit(FAILED);
        }
        _exit(a());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), FAILED);
    return WEXITSTATUS(status);
}

static bool has_landlock(int abi)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) >= abi;
}

// ---- what is refused, a class each

static int try_socket(void)
{
    return result(socket(AF_INET, SOCK_STREAM, 0));
}
static int try_unix(void)
{
    return result(socket(AF_UNIX, SOCK_STREAM, 0));
}
static int try_netlink(void)
{
    return result(socket(AF_NETLINK, SOCK_RAW, 0));
}
static int try_bind(void)
{
    return result(bind(0, NULL, 0));
}
static int try_connect(void)
{
    return result(connect(0, NULL, 0));
}
static int try_accept(void)
{
    return result(accept(0, NULL, NULL));
}
static int try_exec(void)
{
    char *argv[] = {(char[]){"true"}, NULL};
    return result(execv("/bin/true", argv));
}
static int try_fork(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    return result(pid);
}
static int try_kill(void)
{
    return result(kill(getppid(), 0));
}
static int try_ptrace(void)
{
    return result(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
}
static int try_read_process(void)
{
    return result(syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0));
}
static int try_pidfd(void)
{
    return result(syscall(SYS_pidfd_open, getppid(), 0));
}
static int try_mount(void)
{
    return result(mount("x", "/", "tmpfs", MS_REMOUNT, NULL));
}
static int try_chroot(void)
{
    return result(chroot("/"));
}
static int try_namespace(void)
{
    return result(unshare(CLONE_NEWUSER));
}
static int try_bpf(void)
{
    return result(syscall(SYS_bpf, 0, NULL, 0));
}
static int try_perf(void)
{
    return result(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
}
static int try_keys(void)
{
    return result(syscall(SYS_keyctl, 0, 0, 0, 0, 0));
}
static int try_module(void)
{
    return result(syscall(SYS_delete_module, "none", 0));
}
static int try_reboot(void)
{
    return result(syscall(SYS_reboot, 0, 0, 0, NULL));
}
static int try_swap(void)
{
    return result(syscall(SYS_swapoff, "/none"));
}
static int try_clock(void)
{
    return result(syscall(SYS_clock_settime, 99, NULL));
}
static int try_identity(void)
{
    return result(setuid(getuid()));
}
static int try_groups(void)
{
    return result(syscall(SYS_setgroups, 0, NULL));
}
static int try_capabilities(void)
{
    return result(syscall(SYS_capset, NULL, NULL));
}
static int try_uring(void)
{
    return result(syscall(SYS_io_uring_setup, 0, NULL));
}
static int try_handle(void)
{
    return result(syscall(SYS_open_by_handle_at, -1, NULL, 0));
}
static int try_node(void)
{
    return result(mknod(outside, S_IFIFO | 0600, 0));
}
static int try_owner(void)
{
    return result(chown(granted, getuid(), getgid()));
}
static int try_link(void)
{
    return result(symlink("/etc/passwd", outside));
}
static int opened(void)
{
    return open("/proc/self/exe", O_RDONLY);
}
static int try_mode(void)
{
    return result(chmod(outside, 0600));
}
static int try_mode_of_open(void)
{
    return result(fchmod(opened(), 0600));
}
static int try_mode_at(void)
{
    return result(fchmodat(AT_FDCWD, outside, 0600, 0));
}
static int try_times(void)
{
    return result(utimensat(AT_FDCWD, outside, NULL, 0));
}
static int try_cut(void)
{
    return result(truncate(outside, 0));
}
static int try_cut_reading(void)
{
    return result(open(outside, O_RDONLY | O_TRUNC));
}
static int try_limits_of_others(void)
{
    return result(syscall(SYS_prlimit64, getppid(), 7, NULL, NULL));
}
static int try_unknown(void)
{
    return result(syscall(4000));
}

static void test_refused(void **state)
{
    static const struct {
        const char *what;
        attempt a;
    } table[] = {{"internet sockets", try_socket},
                 {"local sockets", try_unix},
                 {"netlink", try_netlink},
                 {"bind", try_bind},
                 {"connect", try_connect},
                 {"accept", try_accept},
                 {"programs", try_exec},
                 {"processes", try_fork},
                 {"signals to others", try_kill},
                 {"tracing", try_ptrace},
                 {"memory of others", try_read_process},
                 {"descriptors of others", try_pidfd},
                 {"mounts", try_mount},
                 {"chroot", try_chroot},
                 {"namespaces", try_namespace},
                 {"bpf", try_bpf},
                 {"perf", try_perf},
                 {"keys", try_keys},
                 {"modules", try_module},
                 {"reboot", try_reboot},
                 {"swap", try_swap},
                 {"clocks", try_clock},
                 {"identities", try_identity},
                 {"groups", try_groups},
                 {"capabilities", try_capabilities},
                 {"io_uring", try_uring},
                 {"file handles", try_handle},
                 {"nodes", try_node},
                 {"owners", try_owner},
                 {"links", try_link},
                 {"modes", try_mode},
                 {"modes of open files", try_mode_of_open},
                 {"modes below a folder", try_mode_at},
                 {"times", try_times},
                 {"cutting", try_cut},
                 {"cutting what is read", try_cut_reading}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int got = run_in(false, true, table[i].a);
        if (got != EPERM) {
            fail_msg("%s: errno %d instead of EPERM", table[i].what, got);
        }
    }
    assert_int_equal(run_in(false, true, try_limits_of_others), ENOSYS);
    assert_int_equal(run_in(false, true, try_unknown), ENOSYS);
    assert_int_equal(run_in(false, false, try_socket), 0); // it is the sandbox that refuses
    assert_int_equal(run_in(false, false, try_fork), 0);
}

// ---- a thread that was there before

static void *late_socket(void *arg)
{
    int *ends = arg;
    char c;
    if (read(ends[0], &c, 1) != 1) {
        return NULL;
    }
    return (void *)(intptr_t)(socket(AF_INET, SOCK_STREAM, 0) == -1 ? errno : 0);
}

static void test_all_threads(void **state)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int ends[2];
        pthread_t t;
        void *rc;
        hth_sandbox s = {.files = false};
        alarm(20);
        if (pipe(ends) != 0 || pthread_create(&t, NULL, late_socket, ends) != 0 ||
            hth_sandbox_calls(&s) != HTH_OK || write(ends[1], "x", 1) != 1 ||
            pthread_join(t, &rc) != 0) {
            _exit(FAILED);
        }
        _exit((int)(intptr_t)rc);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EPERM);
}

// ---- what goes on

static void *nothing(void *arg)
{
    return arg;
}

static bool sys_is_there;

static int use_all(void)
{
    char path[96];
    pthread_t t;
    void *m = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int memfd = memfd_create("x", MFD_ALLOW_SEALING);
    if (m == MAP_FAILED || memfd < 0 || ftruncate(memfd, 4096) != 0) {
        return 1;
    }
    if (mprotect(m, 4096, PROT_READ | PROT_EXEC) != 0) { // kernels that are compiled at run time
        return 2;
    }
    if (pthread_create(&t, NULL, nothing, NULL) != 0 || pthread_join(t, NULL) != 0) {
        return 3;
    }
    snprintf(path, sizeof path, "%s/file", granted);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, "x", 1) != 1 || fsync(fd) != 0) {
        return 4;
    }
    char moved[96];
    snprintf(moved, sizeof moved, "%s/moved", granted);
    if (rename(path, moved) != 0 || unlink(moved) != 0) {
        return 5;
    }
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0 || open("/proc/self/status", O_RDONLY) < 0 ||
        (sys_is_there && open("/sys/devices/system/cpu/online", 0) < 0)) {
        return 6;
    }
    snprintf(path, sizeof path, "%s/folder", granted); // what the store does: from one folder to
    if (mkdir(path, 0700) != 0 ||                      // another, without a name, and beside
        (fd = open(granted, O_TMPFILE | O_RDWR, 0600)) < 0 || write(fd, "x", 1) != 1) {
        return 7;
    }
    snprintf(moved, sizeof moved, "%s/folder/moved", granted);
    snprintf(path, sizeof path, "%s/file", granted);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || rename(path, moved) != 0 || unlink(moved) != 0) {
        return 8;
    }
    snprintf(path, sizeof path, "%s/folder", granted);
    if (rmdir(path) != 0 || open(granted, O_RDONLY | O_DIRECTORY) < 0) {
        return 9;
    }
    return dlopen("libz.so.1", RTLD_NOW) != NULL ? 0 : 10;
}

static void test_computing(void **state)
{
    sys_is_there = access("/sys/devices/system/cpu/online", R_OK) == 0; // not in every chroot
    assert_int_equal(run_in(true, true, use_all), 0);
}

// ---- files and the network, by Landlock

static int read_passwd(void)
{
    return result(open("/etc/passwd", O_RDONLY));
}
static int read_outside(void)
{
    return result(open(outside, O_RDONLY));
}
static int list_outside(void)
{
    return result(open("/tmp", O_RDONLY | O_DIRECTORY));
}
static int write_outside(void)
{
    return result(open(outside, O_WRONLY));
}
static int make_outside(void)
{
    return result(open("/tmp/hearth-sandbox-made", O_CREAT, 0600));
}
static int remove_outside(void)
{
    return result(unlink(outside));
}
static int write_system(void)
{
    return result(open("/usr/hearth-sandbox", O_CREAT, 0600));
}
static int use_used(void)
{
    int fd = open(used, O_RDWR);
    return result(fd) != 0 || write(fd, "x", 1) != 1 ? 1 : result(open(used, O_RDONLY));
}
static int read_read_only(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/file", read_only);
    return result(open(path, O_RDONLY)) != 0 ? 1 : result(open(read_only, O_DIRECTORY));
}
static int list_listed(void)
{
    return result(open(listed, O_DIRECTORY));
}
static int write_read_only(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/file", read_only);
    return result(open(path, O_WRONLY));
}
static int make_in_read_only(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/other", read_only);
    return result(open(path, O_WRONLY | O_CREAT, 0600));
}
static int remove_in_read_only(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/file", read_only);
    return result(unlink(path));
}
static int read_listed(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/file", listed);
    return result(open(path, O_RDONLY));
}
static int make_in_listed(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/other", listed);
    return result(mkdir(path, 0700));
}
static int move_out(void)
{
    char path[96], to[96];
    snprintf(path, sizeof path, "%s/mine", granted);
    snprintf(to, sizeof to, "%s/mine", listed);
    int fd = open(path, O_CREAT | O_WRONLY, 0600), rc = result(rename(path, to));
    close(fd);
    unlink(path);
    return rc == EXDEV ? EACCES : rc; // as the folders' rights differ
}
static int link_in(void) // what may not be read by its own name
{
    char to[96];
    snprintf(to, sizeof to, "%s/linked", granted);
    int rc = result(link(outside, to));
    return rc == EXDEV ? EACCES : rc;
}
static int read_root_of_parent(void) // the same file by another way
{
    char path[96];
    snprintf(path, sizeof path, "/proc/%d/root%s", (int)getppid(), outside);
    return result(open(path, O_RDONLY)) == 0 ? 0 : EACCES;
}
static int read_parent(void)
{
    char path[96];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)getppid());
    return result(open(path, O_RDONLY));
}
static int read_memory_of_parent(void)
{
    char path[96];
    snprintf(path, sizeof path, "/proc/%d/mem", (int)getppid());
    return result(open(path, O_RDONLY));
}
static int run_program(void) // even where it may be read
{
    char *argv[] = {(char[]){"ld.so"}, NULL};
    return result(execv("/lib64/ld-linux-x86-64.so.2", argv)) == 0 ? 0 : EACCES;
}
static int climb(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/../../etc/passwd", granted);
    return result(open(path, O_RDONLY));
}
static int connect_tcp(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(9)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return result(connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&a, sizeof a));
}
static int bind_tcp(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return result(bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&a, sizeof a));
}

static int read_proc(void)
{
    static const char *const file[] = {"/proc/self/status", "/proc/self/task",
                                       "/proc/cpuinfo",     "/proc/meminfo",
                                       "/proc/stat",        "/proc/self/mountinfo"};
    int rc = 0;
    for (size_t i = 0; i < sizeof file / sizeof *file && rc == 0; i++) {
        int fd = open(file[i], O_RDONLY);
        rc = result(fd);
        close(fd);
    }
    return rc;
}
// The kernel forgets inodes of /proc that nobody has open when it is short of memory, and with them
// what was granted: somebody has to have them open.
static int proc_is_held(void)
{
    char link[40], to[64];
    bool held = false;
    for (int fd = 3; fd < 64 && !held; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, to, sizeof to - 1);
        to[n > 0 ? n : 0] = 0;
        held = strcmp(to, "/proc/cpuinfo") == 0;
    }
    return held ? 0 : 1;
}

static void test_files(void **state)
{
    static const attempt files[] = {read_passwd,
                                    read_outside,
                                    list_outside,
                                    write_outside,
                                    make_outside,
                                    remove_outside,
                                    write_system,
                                    climb,
                                    write_read_only,
                                    make_in_read_only,
                                    remove_in_read_only,
                                    read_listed,
                                    make_in_listed,
                                    move_out,
                                    link_in,
                                    read_root_of_parent,
                                    read_parent,
                                    read_memory_of_parent,
                                    run_program};
    static const attempt allowed[] = {use_used, read_read_only, list_listed, read_proc,
                                      proc_is_held};
    if (!has_landlock(2)) {
        skip();
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int got = run_in(true, false, files[i]);
        if (got != EACCES) {
            fail_msg("file attempt %d: errno %d instead of EACCES", (int)i, got);
        }
    }
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        int got = run_in(true, true, allowed[i]);
        if (got != 0) {
            fail_msg("allowed %d: %d", (int)i, got);
        }
    }
    assert_int_equal(run_in(false, false, read_outside), 0);
}

static void test_network(void **state)
{
    if (!has_landlock(4)) {
        skip();
    }
    assert_int_equal(run_in(true, false, connect_tcp), EACCES);
    assert_int_equal(run_in(true, false, bind_tcp), EACCES);
    assert_int_equal(run_in(false, false, bind_tcp), 0);
}

// ---- privileges and memory

// status_line returns the number after `name` in /proc/self/status, read as hexadecimal.
static unsigned long long status_line(const char *name)
{
    char line[256];
    unsigned long long value = ~0ull;
    FILE *f = fopen("/proc/self/status", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            value = strtoull(line + strlen(name) + 1, NULL, 16);
        }
    }
    return value;
}

static int privileges(void)
{
    unsigned long long nice_and_lock = 1ull << 23 | 1ull << 14;
    return (status_line("CapEff") & ~nice_and_lock) == 0 && status_line("CapBnd") == 0 &&
                   status_line("NoNewPrivs") == 1
               ? 0
               : 1;
}

static int oom(void)
{
    char text[16] = "";
    int fd = open("/proc/self/oom_score_adj", O_RDONLY);
    int before = read(fd, text, sizeof text - 1) > 0 ? atoi(text) : 0;
    hth_sandbox_oom();
    memset(text, 0, sizeof text);
    int after = pread(fd, text, sizeof text - 1, 0) > 0 ? atoi(text) : 0;
    return after > before || after == 1000 ? 0 : 1;
}

static void test_privileges(void **state)
{
    if (getuid() == 0) {
        assert_int_equal(run_in(true, false, privileges), 0);
    }
    assert_int_equal(run_in(false, false, oom), 0);
}

static int make_file(const char *folder)
{
    char path[96];
    snprintf(path, sizeof path, "%s/file", folder);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    return fd >= 0 ? close(fd) : -1;
}

static int make_places(void **state)
{
    strcpy(granted, "/tmp/hearth-sandbox-XXXXXX");
    strcpy(outside, "/tmp/hearth-outside-XXXXXX");
    strcpy(used, "/tmp/hearth-used-XXXXXX");
    strcpy(read_only, "/tmp/hearth-read-XXXXXX");
    strcpy(listed, "/tmp/hearth-list-XXXXXX");
    int fd = mkstemp(outside), more = mkstemp(used);
    if (fd < 0 || more < 0 || mkdtemp(granted) == NULL || mkdtemp(read_only) == NULL ||
        mkdtemp(listed) == NULL || make_file(read_only) != 0 || make_file(listed) != 0) {
        return -1;
    }
    close(more);
    close(fd);
    return 0;
}

static int drop_places(void **state)
{
    char path[96];
    unlink(outside);
    unlink(used);
    snprintf(path, sizeof path, "%s/file", read_only);
    unlink(path);
    snprintf(path, sizeof path, "%s/file", listed);
    unlink(path);
    return rmdir(granted) + rmdir(read_only) + rmdir(listed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_all_threads),
        cmocka_unit_test(test_computing), cmocka_unit_test(test_files),
        cmocka_unit_test(test_network),   cmocka_unit_test(test_privileges)};
    return cmocka_run_group_tests(tests, make_places, drop_places);
}
