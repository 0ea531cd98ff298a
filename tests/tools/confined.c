// SPDX-License-Identifier: Apache-2.0
// Code that runs inside the engine's process, as an attacker's would: preloaded, it takes its turn
// where the process has given up what it gives up (the last seccomp_load), tries what CONFINED_TRY
// lists, a line each ("VERB PATH"), and writes "confined: VERB PATH ERRNO" to standard error.
// CONFINED_NO_LANDLOCK=1: the kernel looks as if it had none.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES_SOCKET 7 // over which hearthd opens files for this process
#define FILTERS      2 // of system calls: they are the last that it gives up

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(list, long);
    }
    va_end(list);
    if (number == SYS_landlock_create_ruleset && getenv("CONFINED_NO_LANDLOCK") != NULL) {
        errno = ENOSYS;
        return -1;
    }
    if (real == NULL) {
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// CONFINED_NO_DRIVER=1: a driver of GPUs that does not start where it may not open what it likes.
void *dlopen(const char *file, int flags)
{
    static void *(*real)(const char *, int);
    int fd = -1;
    if (real == NULL) {
        real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    }
    if (file != NULL && strstr(file, "libhearth_cuda") != NULL &&
        getenv("CONFINED_NO_DRIVER") != NULL) {
        fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            return real("/nowhere/libhearth_cuda.so", flags);
        }
        close(fd);
    }
    return real(file, flags);
}

static int result(int rc)
{
    int errnum = rc < 0 ? errno : 0;
    if (rc > 2) {
        close(rc);
    }
    return errnum;
}

// try_ask has hearthd open a path for a use (0: data, 1: a file without a name in a folder).
static int try_ask(uint32_t use, const char *path)
{
    struct {
        uint32_t use;
        char path[512];
    } q = {.use = use};
    struct {
        int32_t err;
        char detail[700];
    } a;
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } space = {.bytes = {0}};
    struct iovec part = {&a, sizeof a};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = space.bytes,
                       .msg_controllen = sizeof space.bytes};
    snprintf(q.path, sizeof q.path, "%s", path);
    if (send(FILES_SOCKET, &q, sizeof q.use + strlen(q.path) + 1, MSG_NOSIGNAL) < 0 ||
        recvmsg(FILES_SOCKET, &m, MSG_CMSG_CLOEXEC) < (ssize_t)sizeof a) {
        return errno != 0 ? errno : EPIPE;
    }
    return CMSG_FIRSTHDR(&m) != NULL ? 0 : EACCES;
}

// try_pair is for what has two paths, "FROM>TO".
static int try_pair(int (*f)(const char *, const char *), const char *paths)
{
    char from[1024];
    const char *to = strchr(paths, '>');
    snprintf(from, sizeof from, "%.*s", (int)(to - paths), paths);
    return result(f(from, to + 1));
}

// try_map maps a descriptor of this process for writing.
static int try_map(int fd)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return result(p == MAP_FAILED ? -1 : munmap(p, 4096));
}

static int try_one(const char *verb, const char *path)
{
    static const struct {
        const char *verb;
        int flags;
    } opens[] = {{"read", O_RDONLY},
                 {"list", O_RDONLY | O_DIRECTORY},
                 {"write", O_WRONLY},
                 {"make", O_WRONLY | O_CREAT | O_EXCL},
                 {"nameless", O_WRONLY | O_TMPFILE},
                 {"cut", O_RDONLY | O_TRUNC}};
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        if (strcmp(verb, opens[i].verb) == 0) {
            return result(open(path, opens[i].flags | O_CLOEXEC, 0600));
        }
    }
    return strcmp(verb, "ask") == 0        ? try_ask(0, path)
           : strcmp(verb, "scratch") == 0  ? try_ask(1, path)
           : strcmp(verb, "map") == 0      ? try_map(atoi(path))
           : strcmp(verb, "mkdir") == 0    ? result(mkdir(path, 0700))
           : strcmp(verb, "rmdir") == 0    ? result(rmdir(path))
           : strcmp(verb, "unlink") == 0   ? result(unlink(path))
           : strcmp(verb, "chmod") == 0    ? result(chmod(path, 0666))
           : strcmp(verb, "truncate") == 0 ? result(truncate(path, 0))
           : strcmp(verb, "rename") == 0   ? try_pair(rename, path)
           : strcmp(verb, "link") == 0     ? try_pair(link, path)
           : strcmp(verb, "symlink") == 0  ? try_pair(symlink, path)
                                           : EINVAL;
}

int seccomp_load(void *filter)
{
    int (*real)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "seccomp_load");
    int rc = real(filter);
    static int loaded;
    if (++loaded < FILTERS) {
        return rc;
    }
    const char *all = getenv("CONFINED_TRY");
    char *copy = strdup(all != NULL ? all : ""), *rest = copy;
    for (char *line = strtok_r(copy, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *path = strchr(line, ' '), text[32];
        *path++ = 0;
        if (strncmp(path, "/proc/PARENT", 12) == 0) {
            char parent[256];
            snprintf(text, sizeof text, "%d", (int)getppid());
            snprintf(parent, sizeof parent, "/proc/%s%s", text, path + 12);
            fprintf(stderr, "confined: %s %s %d\n", line, path, try_one(line, parent));
        } else {
            fprintf(stderr, "confined: %s %s %d\n", line, path, try_one(line, path));
        }
    }
    free(copy);
    return rc;
}
