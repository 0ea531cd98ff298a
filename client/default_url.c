// SPDX-License-Identifier: Apache-2.0
// A name in a folder that everybody may write is anybody's: another user who listens there first
// would be given tokens and tensors. Therefore all folders on the way to a socket must be closed to
// others (or sticky, where a file stays its owner's), the socket must be ours or root's, and so
// must be who answers at it, which the kernel tells.
#include "client/default_url.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LOCAL_SYSTEM 2 // so many places are root's: the first ones

const char *hth_default_url_socket(int index, const char *runtime_dir, char *out, size_t cap)
{
    bool own = runtime_dir != NULL && runtime_dir[0] == '/';
    if (index > 1 && !own) {
        index++; // there is no such place
    }
    switch (index) {
    case 0:
        snprintf(out, cap, "/run/hearth.sock");
        return out;
    case 1:
        snprintf(out, cap, "/run/hearth/hearth.sock"); // of the system's service
        return out;
    case 2:
        snprintf(out, cap, "%s/hearth.sock", runtime_dir);
        return out;
    case 3:
        snprintf(out, cap, "/tmp/hearth-%u.sock", (unsigned)getuid());
        return out;
    default:
        return NULL;
    }
}

static bool local_ours(uid_t uid)
{
    return uid == 0 || uid == geteuid();
}

static hth_err local_strange(const char *path, const char *what, uid_t uid)
{
    return hth_fail(HTH_EDENIED, "%s is not trusted: %s user %u, who is neither you nor root", path,
                    what, (unsigned)uid);
}

// local_folder_check wants the folder of a socket, and all folders that it lies in, closed to
// others. system: the innermost may be of whom root gave it to.
static hth_err local_folder_check(const char *path, bool system)
{
    char real[PATH_MAX], folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    size_t n = slash != NULL ? (size_t)(slash - path) : sizeof folder;
    if (n >= sizeof folder) {
        return hth_fail(HTH_EINVAL, "'%s' is not a socket's path", path);
    }
    memcpy(folder, path, n);
    folder[n] = 0;
    if (realpath(n > 0 ? folder : "/", real) == NULL) {
        return hth_fail_errno(errno, "cannot look at %s", path);
    }
    for (bool inner = true; real[1] != 0; inner = false) { // whose "/" is has everything
        if (lstat(real, &st) != 0) {
            return hth_fail_errno(errno, "cannot look at %s", real);
        }
        if (!local_ours(st.st_uid) && !(system && inner)) {
            return local_strange(path, "its folder belongs to", st.st_uid);
        }
        if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (st.st_mode & S_ISVTX) == 0) {
            return hth_fail(HTH_EDENIED, "%s is not trusted: others may write its folder %s", path,
                            real);
        }
        char *last = strrchr(real, '/');
        last[last == real] = 0;
    }
    return HTH_OK;
}

// local_answers asks the kernel who listens; nothing is sent.
static hth_err local_answers(const char *path, uid_t *uid)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct ucred who;
    socklen_t bytes = sizeof who;
    if (strlen(path) >= sizeof a.sun_path) {
        return hth_fail(HTH_EINVAL, "the socket's path is too long: %s", path);
    }
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool there = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
                 getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0;
    bool denied = !there && errno == EACCES;
    if (fd >= 0) {
        close(fd);
    }
    *uid = there ? who.uid : 0;
    if (denied) {
        return hth_fail(HTH_EDENIED, "you may not open %s: its owner and members of its group may",
                        path);
    }
    return there ? HTH_OK : hth_fail(HTH_ENOENT, "no server answers at %s", path);
}

hth_err hth_default_url_trusts(const char *path, bool system)
{
    struct stat st;
    uid_t uid = (uid_t)-1;
    if (lstat(path, &st) != 0) {
        return hth_fail(HTH_ENOENT, "there is no %s", path);
    }
    if (!S_ISSOCK(st.st_mode)) {
        return hth_fail(HTH_EDENIED, "%s is not trusted: it is not a socket", path);
    }
    HTH_TRY(local_folder_check(path, system));
    if (!local_ours(st.st_uid) && !system) {
        return local_strange(path, "it belongs to", st.st_uid);
    }
    HTH_TRY(local_answers(path, &uid));
    return local_ours(uid) || system ? HTH_OK : local_strange(path, "there listens", uid);
}

hth_err hth_default_url_find(const char *runtime_dir, char *url, size_t cap)
{
    char path[256], why[512] = "";
    for (int i = 0; hth_default_url_socket(i, runtime_dir, path, sizeof path) != NULL; i++) {
        hth_err err = hth_default_url_trusts(path, i < LOCAL_SYSTEM);
        if (err == HTH_OK) {
            return (size_t)snprintf(url, cap, "ipc://%s", path) < cap
                       ? HTH_OK
                       : hth_fail(HTH_EINVAL, "the socket's path is too long: %s", path);
        }
        if (err != HTH_ENOENT && why[0] == 0) {
            snprintf(why, sizeof why, "%s", hth_err_detail());
        }
    }
    return why[0] != 0 ? hth_fail(HTH_EDENIED, "no server of yours runs on this machine; %s", why)
                       : hth_fail(HTH_ENOENT, "no server runs on this machine");
}
