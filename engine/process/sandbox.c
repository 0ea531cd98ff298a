// SPDX-License-Identifier: Apache-2.0
// Landlock has no wrapper in glibc: its three calls are made by number, with the structures of
// <linux/landlock.h>. The seccomp program is compiled by libseccomp from a list of names, so that
// it holds on every architecture that Debian has.
//
// Of files Landlock governs opening, making, moving and removing, whoever may do so by their modes.
// It says nothing of looking at them (stat): what there is can be seen, what is in it cannot.
//
// The filter is a list of what is allowed, not of what is refused: a call that a later kernel adds
// is refused until somebody reads about it. Refused classes are named all the same, because EPERM
// tells an operator more than ENOSYS. Processes cannot be made (clone needs CLONE_THREAD); clone3,
// whose flags lie in memory that a filter cannot read, is ENOSYS, and glibc falls back to clone.
//
// What allowed calls may not be asked for is in a filter of its own, which allows all else: of two
// filters the stricter answer counts, and one rule of libseccomp cannot except several values of an
// argument. It lets this process signal nobody else, whether by tgkill or by a descriptor that
// sends its owner a signal. Affinity and scheduling of others are not refused: libraries set their
// threads' by number, as these calls know them, and a filter cannot tell whose a number is.
#include "engine/process/sandbox.h"

#include "base/log.h"

#include <seccomp.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/ioprio.h>
#include <linux/landlock.h>
#include <linux/sockios.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// libseccomp's own macros leave the second operand out, which clang reports.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define OOM_MORE 300 // points of 1000 above the parent's

// Later ABIs of Landlock than the headers that this is compiled with may know of.
#define FS_REFER    (1ULL << 13) // ABI 2
#define FS_TRUNCATE (1ULL << 14) // 3
#define FS_IOCTL    (1ULL << 15) // 5
#define NET_TCP     3ULL         // 4: bind, connect
#define SCOPE_ALL   3ULL         // 6: abstract sockets and signals of processes outside

typedef struct sandbox_ruleset {
    uint64_t fs, net, scoped;
} sandbox_ruleset;

// What may be done below a folder, by hth_sandbox_may. Nobody may execute anything, make links,
// devices, sockets or FIFOs.
#define FS_LIST LANDLOCK_ACCESS_FS_READ_DIR
#define FS_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_USE  (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | FS_IOCTL)
#define FS_WRITE                                                                                   \
    (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_WRITE_FILE |  \
     LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |                              \
     LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_DIR | FS_REFER | FS_TRUNCATE)
#define FS_FIRST ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1) // all of ABI 1

// ABI 1 lets nobody move a file to another folder, which the store does with every tensor.
#define ABI_FILES 2
#define ABI_NET   4

// ---- files

typedef struct sandbox_rules {
    int ruleset;
    uint64_t fs; // rights that the ruleset handles
    int rc;      // of what was added so far
} sandbox_rules;

// sandbox_grant adds one path, links followed; what a file cannot have (it is no folder) is left
// out, and so is a path that there is not. `pin`: its descriptor stays open. The kernel forgets the
// inodes of /proc that nobody has open, and the rule with them.
static void sandbox_grant(sandbox_rules *rules, const char *path, uint64_t access, bool pin)
{
    struct stat st;
    int fd = rules->rc == 0 ? open(path, O_PATH | O_CLOEXEC) : -1;
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode)) {
        access &=
            LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL;
    }
    struct landlock_path_beneath_attr rule = {.allowed_access = access & rules->fs,
                                              .parent_fd = fd};
    rules->rc =
        (int)syscall(SYS_landlock_add_rule, rules->ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    if (!pin) {
        close(fd);
    }
}

static void sandbox_grant_list(sandbox_rules *rules, const char *const *path, size_t n, bool pin)
{
    for (size_t i = 0; i < n; i++) {
        sandbox_grant(rules, path[i], FS_READ, pin);
    }
}

// sandbox_grant_names adds the files of a folder whose names begin with `stem`.
static void sandbox_grant_names(sandbox_rules *rules, const char *folder, const char *stem,
                                uint64_t access)
{
    char path[PATH_MAX + NAME_MAX + 2];
    DIR *d = opendir(folder);
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, stem, strlen(stem)) == 0) {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            sandbox_grant(rules, path, access, false);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

// sandbox_grant_plugins adds this project's libraries, where the program looks for them.
static void sandbox_grant_plugins(sandbox_rules *rules)
{
    char own[PATH_MAX], lib[PATH_MAX + 8];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    own[n > 0 ? n : 0] = 0;
    char *slash = strrchr(own, '/');
    if (slash != NULL) {
        *slash = 0;
        snprintf(lib, sizeof lib, "%s/../lib", own);
        sandbox_grant_names(rules, own, "libhearth", FS_READ);
        sandbox_grant_names(rules, lib, "libhearth", FS_READ);
    }
}

// sandbox_grant_search adds the folders in which the dynamic linker looks for libraries: what
// LD_LIBRARY_PATH and the program itself name, and the system's.
static void sandbox_grant_search(sandbox_rules *rules)
{
    Dl_serinfo size, *all = NULL;
    void *self = dlopen(NULL, RTLD_NOW);
    if (self != NULL && dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0) {
        all = calloc(1, size.dls_size);
    }
    if (all != NULL && dlinfo(self, RTLD_DI_SERINFOSIZE, all) == 0 &&
        dlinfo(self, RTLD_DI_SERINFO, all) == 0) {
        for (unsigned i = 0; i < all->dls_cnt; i++) {
            const char *dir = all->dls_serpath[i].dls_name;
            if (dir[0] != 0 && strcmp(dir, ".") != 0) { // not the folder that happens to be there
                sandbox_grant(rules, dir, FS_READ, false);
            }
        }
    }
    free(all);
    if (self != NULL) {
        dlclose(self);
    }
}

#define LIST(a) a, sizeof(a) / sizeof *(a)

// sandbox_grant_system adds what a program that computes reads of the system.
static void sandbox_grant_system(sandbox_rules *rules)
{
    static const char *const files[] = {"/usr/lib",
                                        "/usr/lib32",
                                        "/usr/lib64",
                                        "/usr/local/lib",
                                        "/usr/local/lib64",
                                        "/lib",
                                        "/lib64",
                                        "/usr/share/zoneinfo",
                                        "/etc/ld.so.cache",
                                        "/etc/localtime",
                                        "/dev/urandom",
                                        "/sys/devices/system/cpu",
                                        "/sys/devices/system/node",
                                        "/sys/fs/cgroup",
                                        "/sys/kernel/mm/transparent_hugepage",
                                        "/sys/kernel/mm/hugepages"};
    static const char *const proc[] = {"/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
                                       "/proc/sys/vm/overcommit_memory"};
    sandbox_grant_list(rules, LIST(files), false);
    sandbox_grant_list(rules, LIST(proc), true);
    sandbox_grant(rules, "/dev/null", FS_USE, false);
    sandbox_grant(rules, "/dev/zero", FS_USE, false);
    // toolkits, and not what else is there: a configuration, with keys in it
    sandbox_grant_names(rules, "/opt", "intel", FS_READ);
    sandbox_grant_plugins(rules);
    sandbox_grant_search(rules);
}

// sandbox_grant_gpu adds what NVIDIA's driver and libraries use.
static void sandbox_grant_gpu(sandbox_rules *rules)
{
    static const char *const files[] = {"/usr/share/nvidia", "/etc/nvidia", "/sys/devices",
                                        "/sys/bus/pci",      "/sys/class",  "/sys/module"};
    static const char *const proc[] = {"/proc/driver", "/proc/devices", "/proc/modules",
                                       "/proc/version", "/proc/filesystems"};
    static const char *const stems[] = {"nvidia", "nvhost", "nvmap", "dxg"};
    sandbox_grant_list(rules, LIST(files), false);
    sandbox_grant_list(rules, LIST(proc), true);
    sandbox_grant_names(rules, "/usr/local", "cuda", FS_READ);
    sandbox_grant_names(rules, "/opt", "cuda", FS_READ);
    sandbox_grant_names(rules, "/opt", "nvidia", FS_READ);
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        sandbox_grant_names(rules, "/dev", stems[i], FS_USE | FS_LIST);
    }
}

// sandbox_confine enters a ruleset of what the kernel's ABI of Landlock knows.
static hth_err sandbox_confine(int abi, const hth_sandbox_place *place, int n, bool gpu)
{
    static const uint64_t may[] = {[HTH_MAY_LIST] = FS_LIST,
                                   [HTH_MAY_READ] = FS_READ,
                                   [HTH_MAY_USE] = FS_USE,
                                   [HTH_MAY_WRITE] = FS_WRITE};
    sandbox_rules r = {.fs = FS_FIRST | FS_REFER};
    r.fs |= abi >= 3 ? FS_TRUNCATE : 0;
    r.fs |= abi >= 5 ? FS_IOCTL : 0;
    sandbox_ruleset all = {.fs = r.fs};
    size_t bytes = 8; // of it that the kernel knows
    if (abi >= ABI_NET) {
        all.net = NET_TCP;
        bytes = 16;
    }
    if (abi >= 6) {
        all.scoped = SCOPE_ALL;
        bytes = 24;
    }
    r.ruleset = (int)syscall(SYS_landlock_create_ruleset, &all, bytes, 0);
    if (r.ruleset < 0) {
        return hth_fail_errno(errno, "cannot make a Landlock ruleset");
    }
    for (int i = 0; i < n; i++) {
        sandbox_grant(&r, place[i].path, may[place[i].may], false);
    }
    sandbox_grant_system(&r);
    if (gpu) {
        sandbox_grant_gpu(&r);
    }
    int rc = r.rc == 0 ? (int)syscall(SYS_landlock_restrict_self, r.ruleset, 0) : r.rc;
    hth_err err = rc == 0 ? HTH_OK : hth_fail_errno(errno, "cannot enter a Landlock ruleset");
    close(r.ruleset);
    return err;
}

// sandbox_privileges keeps of root's capabilities what raises priorities and locks memory.
static void sandbox_privileges(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct cap[2];
    uint32_t keep = 1u << CAP_SYS_NICE | 1u << CAP_IPC_LOCK;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    for (int i = 0; i <= CAP_LAST_CAP; i++) {
        prctl(PR_CAPBSET_DROP, i, 0, 0, 0); // needs CAP_SETPCAP: else there is nothing to drop
    }
    if (syscall(SYS_capget, &head, cap) == 0) {
        cap[0].permitted &= keep;
        cap[0].effective &= keep;
        cap[0].inheritable = cap[1].permitted = cap[1].effective = cap[1].inheritable = 0;
        (void)syscall(SYS_capset, &head, cap);
    }
}

hth_err hth_sandbox_files(const hth_sandbox_place *place, int count, bool gpu, hth_sandbox *sandbox)
{
    sandbox_privileges();
    int abi = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (abi < ABI_FILES || place == NULL) {
        return HTH_OK; // not in this kernel, or not enabled
    }
    HTH_TRY(sandbox_confine(abi, place, count, gpu));
    sandbox->files = true;
    return HTH_OK;
}

// ---- system calls

static const char *const sandbox_allowed[] = {
    // memory
    "brk", "mmap", "mmap2", "munmap", "mprotect", "mremap", "madvise", "mlock", "mlock2", "munlock",
    "mincore", "msync", "membarrier", "memfd_create", "mbind", "get_mempolicy", "set_mempolicy",
    "pkey_alloc", "pkey_free", "pkey_mprotect", "riscv_flush_icache", "cacheflush",
    // threads, time
    "exit", "exit_group", "futex", "futex_time64", "futex_waitv", "set_robust_list",
    "get_robust_list", "rseq", "set_tid_address", "gettid", "getpid", "getppid", "getpgrp",
    "getpgid", "getsid", "tgkill", "sched_yield", "sched_getaffinity", "sched_setaffinity",
    "sched_getattr", "sched_setattr", "sched_getparam", "sched_setparam", "sched_getscheduler",
    "sched_setscheduler", "sched_get_priority_max", "sched_get_priority_min", "getpriority",
    "setpriority", "nanosleep", "clock_nanosleep", "clock_nanosleep_time64", "clock_gettime",
    "clock_gettime64", "clock_getres", "clock_getres_time64", "gettimeofday", "time", "times",
    "getcpu", "arch_prctl", "set_thread_area", "get_thread_area", "restart_syscall", "timer_create",
    "timer_settime", "timer_delete", "timerfd_create", "timerfd_settime",
    // signals of its own
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "rt_sigpending",
    "rt_sigsuspend", "sigreturn", "sigaltstack", "signalfd4", "pause",
    // descriptors that it has, and files below the folders that it was granted
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "preadv2", "pwritev",
    "pwritev2", "lseek", "_llseek", "close", "close_range", "dup", "dup2", "dup3", "fcntl",
    "fcntl64", "ioctl", "flock", "fstat", "fstat64", "newfstatat", "fstatat64", "stat", "stat64",
    "lstat", "lstat64", "statx", "statfs", "statfs64", "fstatfs", "fstatfs64", "access",
    "faccessat", "faccessat2", "readlink", "readlinkat", "getdents", "getdents64", "getcwd",
    "chdir", "fchdir", "creat", "ftruncate", "ftruncate64", "fallocate", "fadvise64",
    "fadvise64_64", "readahead", "fsync", "fdatasync", "sync_file_range", "syncfs", "unlink",
    "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "link", "linkat",
    "umask", "copy_file_range", "sendfile", "sendfile64", "splice",
    // waiting, and the link to hearthd
    "poll", "ppoll", "ppoll_time64", "select", "pselect6", "epoll_create", "epoll_create1",
    "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2", "pipe",
    "pipe2", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "shutdown",
    "getsockopt", "setsockopt", "getsockname", "getpeername",
    // what it asks about itself
    "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "capget",
    "uname", "sysinfo", "getrusage", "getrlimit", "ugetrlimit", "prctl", "getrandom", "getitimer",
    "setitimer", "ioprio_set", "ioprio_get"};

static const char *const sandbox_refused[] = {"socket",
                                              "socketpair",
                                              "connect",
                                              "bind",
                                              "listen",
                                              "accept",
                                              "accept4",
                                              "execve",
                                              "execveat",
                                              "fork",
                                              "vfork",
                                              "kill",
                                              "tkill",
                                              "rt_sigqueueinfo",
                                              "rt_tgsigqueueinfo",
                                              "ptrace",
                                              "process_vm_readv",
                                              "process_vm_writev",
                                              "process_madvise",
                                              "pidfd_open",
                                              "pidfd_getfd",
                                              "pidfd_send_signal",
                                              "kcmp",
                                              "mount",
                                              "umount2",
                                              "move_mount",
                                              "open_tree",
                                              "fsopen",
                                              "fsconfig",
                                              "fsmount",
                                              "fspick",
                                              "mount_setattr",
                                              "pivot_root",
                                              "chroot",
                                              "unshare",
                                              "setns",
                                              "bpf",
                                              "perf_event_open",
                                              "userfaultfd",
                                              "keyctl",
                                              "add_key",
                                              "request_key",
                                              "init_module",
                                              "finit_module",
                                              "delete_module",
                                              "kexec_load",
                                              "kexec_file_load",
                                              "reboot",
                                              "swapon",
                                              "swapoff",
                                              "acct",
                                              "quotactl",
                                              "quotactl_fd",
                                              "settimeofday",
                                              "clock_settime",
                                              "clock_settime64",
                                              "clock_adjtime",
                                              "clock_adjtime64",
                                              "adjtimex",
                                              "sethostname",
                                              "setdomainname",
                                              "iopl",
                                              "ioperm",
                                              "modify_ldt",
                                              "setuid",
                                              "setgid",
                                              "setreuid",
                                              "setregid",
                                              "setresuid",
                                              "setresgid",
                                              "setfsuid",
                                              "setfsgid",
                                              "setgroups",
                                              "capset",
                                              "setsid",
                                              "setpgid",
                                              "io_uring_setup",
                                              "io_uring_enter",
                                              "io_uring_register",
                                              "open_by_handle_at",
                                              "name_to_handle_at",
                                              "mknod",
                                              "mknodat",
                                              "chown",
                                              "fchown",
                                              "lchown",
                                              "fchownat",
                                              "chmod",
                                              "fchmod",
                                              "fchmodat",
                                              "fchmodat2",
                                              "utime",
                                              "utimes",
                                              "futimesat",
                                              "utimensat",
                                              "truncate",
                                              "truncate64",
                                              "setxattr",
                                              "lsetxattr",
                                              "fsetxattr",
                                              "removexattr",
                                              "lremovexattr",
                                              "fremovexattr",
                                              "symlink",
                                              "symlinkat",
                                              "personality",
                                              "syslog",
                                              "vhangup",
                                              "fanotify_init",
                                              "inotify_init",
                                              "inotify_init1",
                                              "lookup_dcookie",
                                              "nfsservctl",
                                              "landlock_create_ruleset",
                                              "seccomp",
                                              "memfd_secret",
                                              "shmget",
                                              "shmat",
                                              "msgget",
                                              "semget",
                                              "mq_open"};

// sandbox_list adds a rule for each name that this architecture has.
static int sandbox_list(scmp_filter_ctx f, uint32_t action, const char *const *name, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        int number = seccomp_syscall_resolve_name(name[i]);
        rc = number == __NR_SCMP_ERROR || number < 0 ? 0 : seccomp_rule_add(f, action, number, 0);
    }
    return rc;
}

// sandbox_open allows open and openat, but for a file that is opened for reading and cut all the
// same: Landlock only knows of that since ABI 3. (openat2 has its flags in memory: it is ENOSYS.)
static int sandbox_open(scmp_filter_ctx f)
{
    const int call[] = {SCMP_SYS(open), SCMP_SYS(openat)};
    const uint64_t cut = O_TRUNC | O_ACCMODE;
    int rc = 0;
    for (unsigned i = 0; i < 2 && rc == 0; i++) {
        struct scmp_arg_cmp whole = {i + 1, SCMP_CMP_MASKED_EQ, O_TRUNC, 0},
                            writes = {i + 1, SCMP_CMP_MASKED_EQ, cut, O_TRUNC | O_WRONLY},
                            both = {i + 1, SCMP_CMP_MASKED_EQ, cut, O_TRUNC | O_RDWR},
                            reads = {i + 1, SCMP_CMP_MASKED_EQ, cut, O_TRUNC | O_RDONLY};
        if (call[i] < 0) {
            continue; // not on this architecture
        }
        rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, call[i], 1, whole);
        rc = rc == 0 ? seccomp_rule_add(f, SCMP_ACT_ALLOW, call[i], 1, writes) : rc;
        rc = rc == 0 ? seccomp_rule_add(f, SCMP_ACT_ALLOW, call[i], 1, both) : rc;
        rc = rc == 0 ? seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), call[i], 1, reads) : rc;
    }
    return rc;
}

static int sandbox_filter(scmp_filter_ctx f)
{
    int rc = sandbox_list(f, SCMP_ACT_ALLOW, sandbox_allowed,
                          sizeof sandbox_allowed / sizeof *sandbox_allowed);
    if (rc == 0) {
        rc = sandbox_list(f, SCMP_ACT_ERRNO(EPERM), sandbox_refused,
                          sizeof sandbox_refused / sizeof *sandbox_refused);
    }
    rc = rc == 0 ? sandbox_open(f) : rc;
    if (rc == 0) { // threads, and no process
        rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
    }
    if (rc == 0) {
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
    }
    if (rc == 0) { // limits of its own
        rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1, SCMP_A0(SCMP_CMP_EQ, 0));
    }
    return rc;
}

// An int is 32 bits of its register, and the kernel ignores the others.
#define IS(arg, value)                                                                             \
    {                                                                                              \
        arg, SCMP_CMP_MASKED_EQ, UINT32_MAX, (uint32_t)(value)                                     \
    }
#define IS_NOT(arg, value)                                                                         \
    {                                                                                              \
        arg, SCMP_CMP_NE, (uint64_t)(value), 0                                                     \
    } // refuses those others too
#define HAS(arg, bits)                                                                             \
    {                                                                                              \
        arg, SCMP_CMP_MASKED_EQ, bits, bits                                                        \
    }

// sandbox_arguments refuses what would reach other processes through calls that are allowed. A
// terminal's descriptor makes the foreground processes its owner when O_ASYNC is set; and hearthd's
// may be one that takes keystrokes.
static int sandbox_arguments(scmp_filter_ctx f)
{
    const struct {
        int call;
        unsigned n;
        struct scmp_arg_cmp arg[2];
    } refused[] = {{SCMP_SYS(tgkill), 1, {IS_NOT(0, getpid())}},
                   {SCMP_SYS(fcntl), 1, {IS(1, F_SETOWN)}},
                   {SCMP_SYS(fcntl), 1, {IS(1, F_SETOWN_EX)}},
                   {SCMP_SYS(fcntl), 1, {IS(1, F_SETSIG)}},
                   {SCMP_SYS(fcntl), 2, {IS(1, F_SETFL), HAS(2, O_ASYNC)}},
                   {SCMP_SYS(fcntl64), 1, {IS(1, F_SETOWN)}},
                   {SCMP_SYS(fcntl64), 1, {IS(1, F_SETOWN_EX)}},
                   {SCMP_SYS(fcntl64), 1, {IS(1, F_SETSIG)}},
                   {SCMP_SYS(fcntl64), 2, {IS(1, F_SETFL), HAS(2, O_ASYNC)}},
                   {SCMP_SYS(ioctl), 1, {IS(1, FIOSETOWN)}},
                   {SCMP_SYS(ioctl), 1, {IS(1, SIOCSPGRP)}},
                   {SCMP_SYS(ioctl), 1, {IS(1, FIOASYNC)}},
                   {SCMP_SYS(ioctl), 1, {IS(1, TIOCSTI)}},
                   {SCMP_SYS(ioctl), 1, {IS(1, TIOCLINUX)}},
                   {SCMP_SYS(setpriority), 1, {IS_NOT(0, PRIO_PROCESS)}},
                   {SCMP_SYS(setpriority), 1, {IS_NOT(1, 0)}},
                   {SCMP_SYS(ioprio_set), 1, {IS_NOT(0, IOPRIO_WHO_PROCESS)}},
                   {SCMP_SYS(ioprio_set), 1, {IS_NOT(1, 0)}}};
    int rc = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused && rc == 0; i++) {
        if (refused[i].call >= 0) { // else not on this architecture
            rc = seccomp_rule_add_array(f, SCMP_ACT_ERRNO(EPERM), refused[i].call, refused[i].n,
                                        refused[i].arg);
        }
    }
    return rc;
}

// sandbox_load has a filter of these rules hold for all threads.
static int sandbox_load(uint32_t otherwise, int (*rules)(scmp_filter_ctx f))
{
    scmp_filter_ctx f = seccomp_init(otherwise);
    int rc = f != NULL ? rules(f) : -ENOMEM;
    rc = rc == 0 ? seccomp_attr_set(f, SCMP_FLTATR_CTL_TSYNC, 1) : rc;
    rc = rc == 0 ? seccomp_load(f) : rc;
    seccomp_release(f);
    return rc;
}

hth_err hth_sandbox_calls(hth_sandbox *sandbox)
{
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int rc = sandbox_load(SCMP_ACT_ALLOW, sandbox_arguments); // the other one refuses to load more
    rc = rc == 0 ? sandbox_load(SCMP_ACT_ERRNO(ENOSYS), sandbox_filter) : rc;
    if (rc != 0) {
        return hth_fail_errno(-rc, "cannot restrict system calls");
    }
    sandbox->calls = true;
    return HTH_OK;
}

// ---- memory

void hth_sandbox_oom(void)
{
    char text[16] = "";
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    int score = n > 0 ? atoi(text) + OOM_MORE : OOM_MORE;
    int m = snprintf(text, sizeof text, "%d", score < 1000 ? score : 1000);
    if (pwrite(fd, text, (size_t)m, 0) != m) {
        hth_log(DEBUG, SERVER, "oom-score", "the engine process keeps its parent's");
    }
    close(fd);
}
