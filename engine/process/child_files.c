// SPDX-License-Identifier: Apache-2.0
// Files that hearthd opens for the engine's process (child_confine.c): a question is {use, path
// with its zero} in one packet, an answer {error, sentence} with the descriptor in its control
// data. What the child sends is believed in nothing; descriptors that come with it are not taken.
#include "engine/process/child_files.h"

#include "base/alloc.h"
#include "base/ipc/fd.h"
#include "base/log.h"
#include "base/settings.h"
#include "modelstore/paths.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct files_question {
    uint32_t use;
    char path[PATH_MAX];
} files_question;

typedef struct files_answer {
    int32_t err;
    char detail[700];
} files_answer;

// ---- the child asks

static struct {
    int socket;
    pthread_mutex_t lock; // one question at a time
} files = {.socket = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

static hth_err files_ask(void *ctx, hth_open_use use, const char *path, int *fd)
{
    files_question q = {.use = (uint32_t)use};
    files_answer a;
    *fd = -1;
    size_t bytes = strlen(path) + 1;
    if (bytes > sizeof q.path) {
        return hth_fail(HTH_EINVAL, "a path of %zu bytes is too long: at most %zu", bytes - 1,
                        sizeof q.path - 1);
    }
    memcpy(q.path, path, bytes);
    size_t all = offsetof(files_question, path) + bytes;
    pthread_mutex_lock(&files.lock);
    bool answered = send(files.socket, &q, all, MSG_NOSIGNAL) == (ssize_t)all &&
                    hth_fd_receive(files.socket, &a, sizeof a, fd, 0);
    pthread_mutex_unlock(&files.lock);
    if (!answered) {
        return hth_fail(HTH_EIO, "cannot open '%s': hearthd does not answer", path);
    }
    if (a.err != HTH_OK) {
        return hth_fail((hth_err)a.err, "%s", a.detail);
    }
    return *fd >= 0 ? HTH_OK : hth_fail(HTH_EIO, "'%s' did not arrive", path);
}

void hth_child_files_use(int socket)
{
    files.socket = socket;
    hth_opener_set(files_ask, NULL);
}

// ---- hearthd answers

static hth_err files_open(const char *store, hth_open_use use, const char *path, int *fd)
{
    hth_store *s;
    char tenants[HTH_SETTING_TEXT];
    HTH_TRY(hth_store_open(store, false, false, &s)); // it is open already: one more holds it
    bool named =
        hth_paths_kept(s, (hth_named_path){use, path}) ||
        (use == HTH_OPEN_DATA && strcmp(path, hth_setting_text(HTH_SET_TENANT_FILE, tenants)) == 0);
    hth_store_close(s);
    if (!named) {
        hth_log(WARN, SERVER, "engine-file",
                "the engine process requested '%s', which no user named", path);
        return hth_fail(HTH_EDENIED,
                        "'%s' was not named by a user of this server; `hearth train --resume` "
                        "with --data FILE (and --eval) continues",
                        path);
    }
    return hth_open_here(use, path, fd);
}

void hth_child_files_serve(int socket, const char *store)
{
    files_question q;
    bool open = true;
    while (open) {
        ssize_t n = recv(socket, &q, sizeof q, MSG_TRUNC);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        const size_t head = offsetof(files_question, path);
        size_t bytes = n > (ssize_t)head ? (size_t)n - head : 0;
        if (bytes == 0 || bytes > sizeof q.path || q.path[bytes - 1] != 0 ||
            q.use >= HTH_N_OPEN_USES) {
            break; // gone, or it says nonsense: nothing is opened for it any more
        }
        int fd = -1;
        files_answer a = {.err = HTH_OK};
        a.err = (int32_t)files_open(store, (hth_open_use)q.use, q.path, &fd);
        if (a.err != HTH_OK) {
            snprintf(a.detail, sizeof a.detail, "%s", hth_err_detail());
        }
        open = hth_fd_send(socket, &a, sizeof a, fd, 0);
        if (fd >= 0) {
            close(fd);
        }
    }
}
