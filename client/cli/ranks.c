// SPDX-License-Identifier: Apache-2.0
#include "client/cli/ranks.h"

#include "base/alloc.h"
#include "client/cli/mpi/mpi_plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_MOST 4096  // parts that may be under way
#define RANKS_MS   60000 // nothing to do: a look at whether all is well
#define RANKS_MEET 3000  // for the others to say why they end

// Between two calls of MPI while sums are under way. A rank often shares its processor with its
// job's pass, which each call takes time from; what comes meanwhile waits in the kernel's buffers.
#define RANKS_COMPUTES_NS 1000000
#define RANKS_WAITS_NS    100000

struct hth_ranks {
    const hth_mpi *mpi;
    hearth_exchange *exchange;
    int rank, ranks;
    pthread_t thread;
    sem_t begun, go, over; // the thread: MPI has begun; may sum; may end MPI
    bool goes, good;
    hth_err err;
    char why[HTH_MPI_WHY + 100];
};

// ---- the plug-in

// ranks_plugin opens the plug-in from this program's folder, from ../lib, or where the system finds
// libraries.
static void *ranks_plugin(void)
{
    static const char *const form[] = {"%s/" HTH_MPI_FILE, "%s/../lib/" HTH_MPI_FILE};
    char dir[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/');
    if (slash != NULL) {
        *slash = 0;
    }
    for (int i = 0; i < 2 && slash != NULL; i++) {
        snprintf(path, sizeof path, form[i], dir);
        if (access(path, R_OK) == 0) {
            return dlopen(path, RTLD_NOW | RTLD_GLOBAL); // MPI's own plug-ins need its symbols
        }
    }
    return dlopen(HTH_MPI_FILE, RTLD_NOW | RTLD_GLOBAL);
}

static hth_err ranks_load(hth_ranks *ranks)
{
    void *handle = ranks_plugin();
    if (handle == NULL) {
        return hth_fail(HTH_ENOTSUP,
                        "--group mpi needs " HTH_MPI_FILE ", which is built where MPI is (Debian: "
                        "libopenmpi-dev): %s",
                        dlerror());
    }
    hth_mpi_entry *entry;
    *(void **)&entry = dlsym(handle, HTH_MPI_ENTRY);
    ranks->mpi = entry != NULL ? entry(HTH_MPI_ABI) : NULL;
    return ranks->mpi != NULL && ranks->mpi->abi == HTH_MPI_ABI
               ? HTH_OK
               : hth_fail(HTH_ENOTSUP, HTH_MPI_FILE " belongs to another version of hearth");
}

// What has started this process tells how many there are; 1: nothing has, or it tells nothing.
static long ranks_started(void)
{
    static const char *const told[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    long most = 1;
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        const char *text = getenv(told[i]);
        long n = text != NULL ? strtol(text, NULL, 10) : 1;
        most = n > most ? n : most;
    }
    return most;
}

// ranks_known refuses ranks that MPI does not know of, and would have each of them train alone: its
// plug-in is for another MPI than their mpirun.
static bool ranks_known(const hth_ranks *ranks, char why[HTH_MPI_WHY])
{
    long started = ranks_started();
    if (ranks->ranks > 1 || started == 1) {
        return true;
    }
    snprintf(why, HTH_MPI_WHY,
             HTH_MPI_FILE " is built for %s, and what started these %ld ranks belongs to another "
                          "MPI: use its own mpirun, or build for the other one (make MPICC=..)",
             ranks->mpi->library, started);
    return false;
}

// ---- sums

// Parts that are under way, in the order in which they began.
typedef struct underway {
    void *request[RANKS_MOST];
    hearth_exchange_part part[RANKS_MOST];
    int n;
} underway;

static void ranks_fails(hth_ranks *ranks, hth_err err, const char *why)
{
    ranks->err = err;
    snprintf(ranks->why, sizeof ranks->why, "%s", why);
}

// ranks_tests answers what is done. A test of any part moves all of them, so that the rest are not
// tested once one is found that is not done: a hundred tests a time would take the processor from
// the job.
static void ranks_tests(hth_ranks *ranks, underway *parts)
{
    int n = 0;
    for (int done = 1; n < parts->n && done;) {
        char why[HTH_MPI_WHY] = "";
        if (ranks->mpi->test(parts->request[n], &done, why) != 0) {
            hearth_exchange_fail(ranks->exchange, why);
            ranks_fails(ranks, HTH_EIO, why);
            return;
        }
        if (done) {
            (void)hearth_exchange_done(ranks->exchange, &parts->part[n++]);
        }
    }
    parts->n -= n;
    memmove(parts->request, parts->request + n, (size_t)parts->n * sizeof *parts->request);
    memmove(parts->part, parts->part + n, (size_t)parts->n * sizeof *parts->part);
}

// ranks_starts begins what the job asks for next, for which it waits for at most `ms`; false: the
// job has ended.
static bool ranks_starts(hth_ranks *ranks, underway *parts, uint64_t ms)
{
    hearth_exchange_part part;
    char why[HTH_MPI_WHY] = "";
    hearth_status s = hearth_exchange_next(ranks->exchange, ms, &part);
    if (s == HEARTH_ETIMEDOUT) {
        return true;
    }
    if (s != HEARTH_OK) {
        ranks_fails(ranks, s == HEARTH_ENOENT ? HTH_OK : (hth_err)s, hearth_error());
        return false;
    }
    if (ranks->mpi->start(&part, &parts->request[parts->n], why) != 0) {
        hearth_exchange_fail(ranks->exchange, why);
        ranks_fails(ranks, HTH_EIO, why);
        return false;
    }
    parts->part[parts->n++] = part;
    return true;
}

// What was asked last tells whether the job waits: floats are gradients of a pass that goes on.
static uint64_t ranks_moment_ns(const underway *parts)
{
    bool computes = parts->n > 0 && parts->part[parts->n - 1].kind == HEARTH_EXCHANGE_SUM_F32;
    return computes ? RANKS_COMPUTES_NS : RANKS_WAITS_NS;
}

// While sums are under way MPI is called often: it moves data only when it is called. What is under
// way when the job has ended is the lead's last plan, which the others wait for.
static void ranks_sum(hth_ranks *ranks)
{
    underway *parts = hth_calloc(1, sizeof *parts);
    if (parts == NULL) {
        ranks_fails(ranks, HTH_ENOMEM, "out of memory");
        return;
    }
    struct pollfd p = {.fd = hearth_exchange_fd(ranks->exchange), .events = POLLIN};
    for (bool more = true; (more || parts->n > 0) && ranks->err == HTH_OK;) {
        const struct timespec moment = {0, ranks_moment_ns(parts)};
        bool there = parts->n == 0 || ppoll(&p, more ? 1 : 0, &moment, NULL) > 0;
        if (there && parts->n < RANKS_MOST) {
            more = ranks_starts(ranks, parts, RANKS_MS);
        }
        ranks_tests(ranks, parts);
    }
    hth_free(parts);
}

// ranks_tell prints why this rank's sums ended too early. If its job did, rank 0 says more.
static void ranks_tell(const hth_ranks *ranks)
{
    if (ranks->err != HTH_OK && (ranks->rank > 0 || ranks->err != HTH_ECANCELED)) {
        fprintf(stderr, "hearth: rank %d of %d: %s\n", ranks->rank, ranks->ranks, ranks->why);
    }
}

// All of MPI is this thread's.
static void *ranks_thread(void *arg)
{
    hth_ranks *ranks = arg;
    char why[HTH_MPI_WHY] = "";
    if (ranks->mpi->begin(&ranks->rank, &ranks->ranks, why) != 0) {
        ranks_fails(ranks, HTH_ENOTSUP, why);
        sem_post(&ranks->begun);
        return NULL;
    }
    if (!ranks_known(ranks, why)) {
        ranks->mpi->end();
        ranks_fails(ranks, HTH_ENOTSUP, why);
        sem_post(&ranks->begun);
        return NULL;
    }
    sem_post(&ranks->begun);
    sem_wait(&ranks->go);
    if (ranks->goes) {
        ranks_sum(ranks);
    }
    ranks_tell(ranks);
    sem_wait(&ranks->over);
    if (ranks->good && ranks->err == HTH_OK) {
        ranks->mpi->end();
    } else {
        if (ranks->mpi->meet(RANKS_MEET) && ranks->rank > 0) {
            sleep(1); // rank 0 ends all
        }
        ranks->mpi->abort(1);
    }
    return NULL;
}

// ---- calls

static void ranks_free(hth_ranks *ranks)
{
    hearth_exchange_close(ranks->exchange);
    sem_destroy(&ranks->begun);
    sem_destroy(&ranks->go);
    sem_destroy(&ranks->over);
    hth_free(ranks);
}

static hth_err ranks_begin(hth_ranks *ranks)
{
    HTH_TRY(ranks_load(ranks));
    if (pthread_create(&ranks->thread, NULL, ranks_thread, ranks) != 0) {
        return hth_fail(HTH_ENOMEM, "no thread for MPI");
    }
    sem_wait(&ranks->begun);
    if (ranks->err != HTH_OK) {
        pthread_join(ranks->thread, NULL);
        return hth_fail(ranks->err, "MPI: %s", ranks->why);
    }
    hth_err err = (hth_err)hearth_exchange_open(ranks->rank, ranks->ranks, &ranks->exchange);
    if (err != HTH_OK) {
        fprintf(stderr, "hearth: %s\n", hearth_error());
        sem_post(&ranks->go);
        sem_post(&ranks->over);
        pthread_join(ranks->thread, NULL); // ends the process
    }
    return err;
}

hth_err hth_ranks_open(const char *group, hth_ranks **out)
{
    *out = NULL;
    if (strcmp(group, "mpi") != 0) {
        return hth_fail(HTH_EINVAL, "there is no group '%.40s': mpi", group);
    }
    hth_ranks *ranks = hth_calloc(1, sizeof *ranks);
    if (ranks == NULL) {
        return hth_no_memory("ranks");
    }
    sem_init(&ranks->begun, 0, 0);
    sem_init(&ranks->go, 0, 0);
    sem_init(&ranks->over, 0, 0);
    hth_err err = ranks_begin(ranks);
    if (err != HTH_OK) {
        ranks_free(ranks);
        return err;
    }
    *out = ranks;
    return HTH_OK;
}

int hth_ranks_rank(const hth_ranks *ranks)
{
    return ranks->rank;
}

const char *hth_ranks_argument(const hth_ranks *ranks)
{
    return hearth_exchange_argument(ranks->exchange);
}

void hth_ranks_go(hth_ranks *ranks)
{
    ranks->goes = true;
    sem_post(&ranks->go);
}

void hth_ranks_end(hth_ranks *ranks, bool good)
{
    if (ranks == NULL) {
        return;
    }
    ranks->good = good;
    if (!ranks->goes) {
        sem_post(&ranks->go);
    }
    sem_post(&ranks->over);
    pthread_join(ranks->thread, NULL);
    ranks_free(ranks);
}
