// SPDX-License-Identifier: Apache-2.0
// client/cli/ranks.h - `hearth train --group mpi`: this process is one of those that mpirun or srun
// has started, each of which submits the same job to its own server, and sums with the others what
// the job asks for. A thread of its own does so until the job has ended.
#ifndef HTH_CLIENT_CLI_RANKS_H
#define HTH_CLIENT_CLI_RANKS_H

#include "client/hearth.h"

#include "base/err.h"

#include <stdbool.h>

typedef struct hth_ranks hth_ranks;

// hth_ranks_open begins what `group` names ("mpi"); all ranks have to come to it. HTH_EINVAL: there
// is no such group; HTH_ENOTSUP: no plug-in for it, or it does not begin.
hth_err hth_ranks_open(const char *group, hth_ranks **out);
int hth_ranks_rank(const hth_ranks *ranks);
// hth_ranks_argument is the job's argument "exchange".
const char *hth_ranks_argument(const hth_ranks *ranks);
// hth_ranks_go sums for the job that was submitted, on another thread.
void hth_ranks_go(hth_ranks *ranks);
// hth_ranks_end waits until the job has ended and all ranks are here. good false: this rank has
// failed. Then, and where the job ended here before it was done, all ranks end, this process
// included, with exit code 1; the others have some seconds to say why they do. NULL is allowed.
void hth_ranks_end(hth_ranks *ranks, bool good);

#endif
