// SPDX-License-Identifier: Apache-2.0
// What the commands share: queries to the server made of options and arguments, and documents.
#include "client/cli/cmd.h"

#include "client/atomic_file.h"
#include "client/embed.h"
#include "client/cli/progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const hth_option hth_cmd_no_options[] = {{NULL, HTH_OPTION_FLAG, NULL, NULL}};

int hth_cmd_request_shown(hth_cli *cli, const char *what, json_t *arguments,
                          hearth_progress progress, void *ctx, char **json)
{
    char *text = json_dumps(arguments, JSON_COMPACT);
    json_decref(arguments);
    if (text == NULL) {
        return hth_cli_usage("the arguments are not valid UTF-8");
    }
    hearth_status s = hearth_query(cli->h, what, text, progress, ctx, json);
    free(text);
    return s == HEARTH_OK ? HTH_CLI_OK : HTH_CLI_ERROR;
}

int hth_cmd_request(hth_cli *cli, const char *what, json_t *arguments, hearth_progress progress,
                    char **json)
{
    hth_progress_bar bar;
    int rv = hth_cli_connect(cli);
    *json = NULL;
    if (rv != HTH_CLI_OK) {
        json_decref(arguments);
        return rv;
    }
    hth_progress_init(&bar);
    rv = hth_cmd_request_shown(cli, what, arguments, progress, &bar, json);
    hth_progress_fini(&bar);
    return rv == HTH_CLI_ERROR ? hth_cli_error() : rv;
}

json_t *hth_cmd_arguments(const hth_cli *cli)
{
    json_t *q = json_object();
    if (cli->n_args > 0) {
        json_object_set_new(q, "model", json_string(cli->args[0]));
    }
    for (const hth_option *o = cli->command->options; o->name != NULL; o++) {
        json_t *v = json_object_get(cli->options, o->name);
        if (v != NULL) {
            json_object_set(q, o->name, v);
        }
    }
    return q;
}

json_t *hth_cmd_about(const hth_cli *cli)
{
    return json_pack("{s:s, s:b}", "model", cli->args[0], "keep", 0);
}

int hth_cmd_query(hth_cli *cli, const char *what, json_t *arguments)
{
    char *json;
    int rv = hth_cmd_request(cli, what, arguments, hth_progress_show, &json);
    if (rv == HTH_CLI_OK) {
        rv = hth_cli_print(cli, json);
        hearth_free(json);
    }
    return rv;
}

int hth_cmd_query_itself(hth_cli *cli)
{
    return hth_cmd_query(cli, cli->command->name, hth_cmd_arguments(cli));
}

int hth_cmd_print(const hth_cli *cli, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    int rv = text != NULL ? hth_cli_print(cli, text) : HTH_CLI_ERROR;
    free(text);
    json_decref(doc);
    return rv;
}

// cmd_error prints the last error of this process.
static int cmd_error(void)
{
    fprintf(stderr, "hearth: %s\n", hth_err_detail());
    return HTH_CLI_ERROR;
}

// cmd_put writes a document to a file, which it closes.
static hth_err cmd_put(FILE *file, const char *path, const json_t *doc,
                       void (*write)(FILE *, const json_t *))
{
    errno = 0;
    write(file, doc);
    bool good = !ferror(file);
    int errnum = errno != 0 ? errno : EIO;
    if (fclose(file) != 0) {
        errnum = good ? errno : errnum;
        good = false;
    }
    return good ? HTH_OK : hth_fail_errno(errnum, "cannot write %s", path);
}

int hth_cmd_write(const char *path, const json_t *doc, void (*write)(FILE *, const json_t *))
{
    hth_atomic_file file = {.fd = -1};
    struct stat st;
    // A device, a FIFO or a link, as /dev/stdout is one, is nothing to replace.
    bool whole = lstat(path, &st) != 0 || S_ISREG(st.st_mode);
    if (whole && hth_atomic_file_begin(path, &file) != HTH_OK) {
        return cmd_error();
    }
    int fd = whole ? dup(file.fd) : -1;
    FILE *f = whole ? fdopen(fd, "w") : fopen(path, "w");
    hth_err err =
        f != NULL ? cmd_put(f, path, doc, write) : hth_fail_errno(errno, "cannot write %s", path);
    if (f == NULL && fd >= 0) {
        close(fd);
    }
    hth_err end = whole ? hth_atomic_file_end(&file, err == HTH_OK) : HTH_OK;
    return err == HTH_OK && end == HTH_OK ? HTH_CLI_OK : cmd_error();
}

void hth_cmd_held_out(json_t *doc)
{
    json_t *list = json_object_get(doc, "held_out");
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    json_t *step = json_incref(json_object_get(last, "step"));
    while (json_array_size(list) > 0 &&
           !json_equal(json_object_get(json_array_get(list, 0), "step"), step)) {
        json_array_remove(list, 0);
    }
    json_decref(step);
    if (json_array_size(list) == 0) {
        json_object_del(doc, "held_out");
    }
}

// ---- logs of training

bool hth_cmd_log_asked(const hth_cli *cli)
{
    return hth_cli_text(cli, "log-csv") != NULL || hth_cli_text(cli, "log-tensorboard") != NULL;
}

int hth_cmd_log_open(const hth_cli *cli, hth_train_log **out)
{
    const char *csv = hth_cli_text(cli, "log-csv"), *tb = hth_cli_text(cli, "log-tensorboard");
    return hth_train_log_open(csv, tb, out) == HTH_OK ? HTH_CLI_OK : cmd_error();
}

int hth_cmd_log_end(hth_train_log *log, const char *json)
{
    json_t *doc = json != NULL && log != NULL ? json_loads(json, 0, NULL) : NULL;
    hth_err err = hth_train_log_end(log, doc);
    json_decref(doc);
    return err == HTH_OK ? HTH_CLI_OK : cmd_error();
}
