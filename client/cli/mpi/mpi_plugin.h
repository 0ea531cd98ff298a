// SPDX-License-Identifier: Apache-2.0
// client/cli/mpi/mpi_plugin.h - sums over the ranks of `mpirun`, by the MPI library that a plug-in
// is compiled against: libhearth_mpi.so, opened when it is asked for, so that hearth needs no MPI.
#ifndef HTH_CLIENT_CLI_MPI_MPI_PLUGIN_H
#define HTH_CLIENT_CLI_MPI_MPI_PLUGIN_H

#include "client/hearth.h"

#include <stdbool.h>

#define HTH_MPI_FILE  "libhearth_mpi.so"
#define HTH_MPI_ENTRY "hth_mpi_plugin"
#define HTH_MPI_ABI   2

#define HTH_MPI_WHY 256

// Calls come from one thread, which `begin` made MPI's. Those that return int: 0, or -1 and why.
typedef struct hth_mpi {
    int abi;
    const char *library; // which MPI it was compiled for
    int (*begin)(int *rank, int *ranks, char why[HTH_MPI_WHY]);
    // start begins a part, nonblocking; parts are started in the same order on all ranks. *request
    // is freed by the test that finds it done.
    int (*start)(const hearth_exchange_part *part, void **request, char why[HTH_MPI_WHY]);
    int (*test)(void *request, int *done, char why[HTH_MPI_WHY]);
    void (*end)(void);         // all ranks have come to it
    bool (*meet)(uint64_t ms); // waits until all ranks have come to it; false: not within `ms`
    void (*abort)(int code);   // ends all ranks; does not return
} hth_mpi;

typedef const hth_mpi *hth_mpi_entry(int abi);

#endif
