// SPDX-License-Identifier: Apache-2.0
// Source: MPI 3.1, chapters 5.12 (nonblocking collective operations) and 8.3 (error handling).
#include "client/cli/mpi/mpi_plugin.h"

#include <mpi.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined OPEN_MPI
#define MPI_LIBRARY "Open MPI"
#elif defined MPICH_VERSION
#define MPI_LIBRARY "MPICH" // and those that descend from it
#else
#define MPI_LIBRARY "its MPI"
#endif

#define MPI_PIECE ((uint64_t)1 << 30) // elements of one call: its count is an int

static MPI_Comm mpi_last; // where ranks meet before the end, whatever sums are under way

static int mpi_fails(int code, const char *what, char why[HTH_MPI_WHY])
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code == MPI_SUCCESS) {
        return 0;
    }
    MPI_Error_string(code, text, &n);
    snprintf(why, HTH_MPI_WHY, "%s: %.180s", what, text);
    return -1;
}

// In place, Open MPI reduces to one rank and sends the sum back: over a link that takes twice as
// long as Rabenseifner's algorithm, which moves each byte once each way.
static void mpi_prefer(void)
{
    (void)setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "3", 0);
}

static int mpi_begin(int *rank, int *ranks, char why[HTH_MPI_WHY])
{
    int level, flag = 0;
    mpi_prefer();
    if (MPI_Initialized(&flag) != MPI_SUCCESS || flag) {
        snprintf(why, HTH_MPI_WHY, "MPI was begun before");
        return -1;
    }
    if (mpi_fails(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread",
                  why) != 0) {
        return -1;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, ranks);
    return mpi_fails(MPI_Comm_dup(MPI_COMM_WORLD, &mpi_last), "MPI_Comm_dup", why);
}

// What does not fit one call is sent in several, all but the last of which are waited for.
static int start_piece(const hearth_exchange_part *part, uint64_t at, int n, MPI_Request *request)
{
    switch (part->kind) {
    case HEARTH_EXCHANGE_SUM_F32:
        return MPI_Iallreduce(MPI_IN_PLACE, (float *)part->data + at, n, MPI_FLOAT, MPI_SUM,
                              MPI_COMM_WORLD, request);
    case HEARTH_EXCHANGE_SUM_F64:
        return MPI_Iallreduce(MPI_IN_PLACE, (double *)part->data + at, n, MPI_DOUBLE, MPI_SUM,
                              MPI_COMM_WORLD, request);
    default:
        return MPI_Ibcast((char *)part->data + at, n, MPI_BYTE, part->root, MPI_COMM_WORLD,
                          request);
    }
}

static int mpi_start(const hearth_exchange_part *part, void **out, char why[HTH_MPI_WHY])
{
    MPI_Request *request = malloc(sizeof *request);
    int code = MPI_SUCCESS;
    *out = request;
    if (request == NULL) {
        snprintf(why, HTH_MPI_WHY, "out of memory");
        return -1;
    }
    *request = MPI_REQUEST_NULL;
    for (uint64_t at = 0; at < part->count && code == MPI_SUCCESS;) {
        uint64_t left = part->count - at, n = left < MPI_PIECE ? left : MPI_PIECE;
        code = start_piece(part, at, (int)n, request);
        at += n;
        if (code == MPI_SUCCESS && at < part->count) {
            code = MPI_Wait(request, MPI_STATUS_IGNORE);
        }
    }
    if (code != MPI_SUCCESS) {
        free(request);
        *out = NULL;
    }
    return mpi_fails(code, "a sum over all ranks", why);
}

static int mpi_test(void *request, int *done, char why[HTH_MPI_WHY])
{
    *done = 0;
    int code = MPI_Test(request, done, MPI_STATUS_IGNORE);
    if (*done || code != MPI_SUCCESS) {
        free(request);
    }
    return mpi_fails(code, "a sum over all ranks", why);
}

static bool mpi_meet(uint64_t ms)
{
    const struct timespec pause = {0, 1000000};
    MPI_Request request;
    int done = 0, code = MPI_Ibarrier(mpi_last, &request);
    for (uint64_t i = 0; i < ms && !done && code == MPI_SUCCESS; i++) {
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        nanosleep(&pause, NULL);
    }
    return done && code == MPI_SUCCESS;
}

static void mpi_end(void)
{
    MPI_Comm_free(&mpi_last);
    MPI_Finalize();
}

static void mpi_abort(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
    _Exit(code);
}

hth_mpi_entry hth_mpi_plugin;

HEARTH_API const hth_mpi *hth_mpi_plugin(int abi)
{
    static const hth_mpi plugin = {.abi = HTH_MPI_ABI,
                                   .library = MPI_LIBRARY,
                                   .begin = mpi_begin,
                                   .start = mpi_start,
                                   .test = mpi_test,
                                   .end = mpi_end,
                                   .meet = mpi_meet,
                                   .abort = mpi_abort};
    return abi == HTH_MPI_ABI ? &plugin : NULL;
}
