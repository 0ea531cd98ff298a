// SPDX-License-Identifier: Apache-2.0
// What the engine's process may open. It is left with the store, without its list of paths that
// users named (modelstore/paths.h) and hearthd's lock; the libraries of its device; and what it is
// sent. Other files are opened by hearthd: a question is {use, path with its zero} in one packet,
// an answer {error, sentence} with the descriptor in its control data. What the child sends is
// believed in nothing; descriptors that come with it are not taken.
#include "engine/process/child_files.h"

#include "base/alloc.h"
#include "base/ipc/fd.h"
#include "base/log.h"
#include "base/settings.h"
#include "device/plugin.h"
#include "engine/process/child_impl.h"
#include "modelstore/hold.h"
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

#define CONFINE_PLACES 64
#define CONFINE_OWN    8 // of the store, and of what the driver compiles

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

// ---- the child's confinement

typedef struct confine_places {
    hth_sandbox_place list[CONFINE_PLACES];
    char *own[CONFINE_PLACES]; // what they point to, to be freed
    int n;
} confine_places;

// A process with a sanitizer looks for leaks at its end by tracing itself, which the filter
// refuses.
bool child_is_confined(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#endif
    char word[HTH_SETTING_TEXT];
    return strcmp(hth_setting_text(HTH_SET_ENGINE_SANDBOX, word), "true") == 0;
}

// place_take adds `path`, which it takes over.
static hth_err place_take(confine_places *places, hth_sandbox_may may, char *path)
{
    if (path == NULL) {
        return hth_no_memory("confining the engine process");
    }
    if (places->n == CONFINE_PLACES) {
        hth_free(path);
        return hth_fail(HTH_EINVAL, "cuda.libs names too many folders: at most %d are possible",
                        CONFINE_PLACES - CONFINE_OWN);
    }
    places->own[places->n] = path;
    places->list[places->n++] = (hth_sandbox_place){path, may};
    return HTH_OK;
}

static hth_err places_store(confine_places *places, const char *store)
{
    static const struct {
        const char *name;
        hth_sandbox_may may;
    } part[] = {{"", HTH_MAY_LIST},         {"format", HTH_MAY_READ}, {"lock", HTH_MAY_USE},
                {"tensors", HTH_MAY_WRITE}, {"tmp", HTH_MAY_WRITE},   {"index", HTH_MAY_WRITE}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        HTH_TRY(place_take(places, part[i].may, hth_asprintf("%s/%s", store, part[i].name)));
    }
    char *holds = hth_asprintf("%s/%s", store, HTH_STORE_HOLDS);
    bool there = holds != NULL && (mkdir(holds, 0777) == 0 || errno == EEXIST);
    if (holds != NULL && !there) { // nothing can be held in a store that may only be read
        hth_free(holds);
        return HTH_OK;
    }
    return place_take(places, HTH_MAY_WRITE, holds);
}

// places_cuda adds the folders of CUDA's libraries, and one for what the driver compiles for this
// device, which it would compile again at each start.
static hth_err places_cuda(confine_places *places, const char *store)
{
    char text[HTH_SETTING_TEXT];
    const char *cache = getenv("CUDA_CACHE_PATH"), *d = hth_setting_text(HTH_SET_CUDA_LIBS, text);
    for (size_t n; *d != 0; d += n + (d[n] == ':')) {
        n = strcspn(d, ":");
        HTH_TRY(n > 0 ? place_take(places, HTH_MAY_READ, hth_asprintf("%.*s", (int)n, d)) : HTH_OK);
    }
    if (cache != NULL) {
        return place_take(places, HTH_MAY_WRITE, hth_asprintf("%s", cache));
    }
    char *own = hth_asprintf("%s/jit", store);
    if (own != NULL && (mkdir(own, 0700) == 0 || errno == EEXIST)) {
        (void)setenv("CUDA_CACHE_PATH", own, 0);
    }
    return place_take(places, HTH_MAY_WRITE, own);
}

static hth_err confine(child *c)
{
    confine_places p = {.n = 0};
    bool gpu = strncmp(c->open.device, "cuda", 4) == 0;
    hth_err err;
    HTH_GOTO(places_store(&p, c->open.store), done);
    if (gpu) {
        HTH_GOTO(places_cuda(&p, c->open.store), done);
    }
    HTH_GOTO(hth_sandbox_files(p.list, p.n, gpu, &c->sandbox), done);
    if (c->sandbox.files && !gpu && access("/dev/nvidiactl", F_OK) == 0) {
        hth_plugin_keep_out("there is a GPU, which the sandbox of another device's process hides; "
                            "`hearthd --device cuda:0` uses it");
    }
done:
    for (int i = 0; i < p.n; i++) {
        hth_free(p.own[i]);
    }
    return err;
}

hth_err child_confine(child *process)
{
    hth_child_files_use(HTH_CHILD_FD_FILES);
    if (!child_is_confined()) {
        return HTH_OK;
    }
    return process->open.loose ? hth_sandbox_files(NULL, 0, false, &process->sandbox)
                               : confine(process);
}
