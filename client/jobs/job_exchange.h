// SPDX-License-Identifier: Apache-2.0
// client/jobs/job_exchange.h - the exchange of a job that is one rank of several (hearth.h).
#ifndef HTH_CLIENT_JOBS_JOB_EXCHANGE_H
#define HTH_CLIENT_JOBS_JOB_EXCHANGE_H

#include "client/hearth.h"

#include <stdbool.h>

// hth_exchange_follows: the job is a rank whose number is that of another one's job. NULL: it is
// none.
bool hth_exchange_follows(const hearth_exchange *exchange);

#endif
