// SPDX-License-Identifier: Apache-2.0
// client/cli/jobs.h - training jobs for people: a table of them, which one a misspelt name means,
// and queries about one.
#ifndef HTH_CLIENT_CLI_JOBS_H
#define HTH_CLIENT_CLI_JOBS_H

#include "client/cli/cli.h"

// hth_jobs_table makes of a list of jobs the rows of a table: times as ages at `now_ns` since 1970,
// columns of which no row has anything left out. The caller owns them.
json_t *hth_jobs_table(const json_t *rows, uint64_t now_ns);
// hth_jobs_print prints the answer to "jobs", as it is with --json. An exit code.
int hth_jobs_print(const hth_cli *cli, const char *json);
// hth_jobs_nearest is the name in a list of jobs that `name` is most likely meant to be, NULL: none
// is like it. It is the list's.
const char *hth_jobs_nearest(const json_t *rows, const char *name);
// hth_jobs_suggest says which job may be meant, on stderr, after a command has failed: if there is
// no job `name`, and one that is called nearly so.
void hth_jobs_suggest(hth_cli *cli, const char *name);

// hth_jobs_ask sends the query `what` about the job that the command's argument names, with the
// budget that it was given. *json is freed by hearth_free. An exit code; errors are printed, and
// which job may be meant.
int hth_jobs_ask(hth_cli *cli, const char *what, char **json);
// hth_jobs_plain drops what a job's row says twice, for people.
void hth_jobs_plain(json_t *row);
// hth_jobs_change is what `hearth pause`, `resume` and `cancel` run: the query of the command's
// name; prints the job's row as it is then.
int hth_jobs_change(hth_cli *cli);

#endif
