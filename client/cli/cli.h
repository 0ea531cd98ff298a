// SPDX-License-Identifier: Apache-2.0
// client/cli/cli.h - the `hearth` command's frame: its commands are rows, their options are rows,
// and reading the command line, help, and corrections of misspelt words are made from them.
//
// A command is `hearth [global options] COMMAND [arguments and options in any order]`. Exit codes:
// 0 done, 1 refused or failed, 2 the command line is wrong. Answers go to stdout, everything else
// to stderr; errors are one sentence.
#ifndef HTH_CLIENT_CLI_CLI_H
#define HTH_CLIENT_CLI_CLI_H

#include "client/hearth.h"

#include <jansson.h>

#include <stdbool.h>

#define HTH_CLI_ARGS 64 // of a command, at most

#define HTH_CLI_OK    0
#define HTH_CLI_ERROR 1
#define HTH_CLI_USAGE 2

typedef enum hth_option_kind {
    HTH_OPTION_FLAG,
    HTH_OPTION_SWITCH, // a text, "on" or "off"; alone it is on
    HTH_OPTION_TEXT,
    HTH_OPTION_PATH, // made absolute: the server has another working directory
    HTH_OPTION_DATA, // likewise, unless it is the name of a stored dataset (hth_passed_data)
    HTH_OPTION_INT,
    HTH_OPTION_REAL,
    HTH_OPTION_LIST, // may be repeated
} hth_option_kind;

typedef struct hth_option {
    const char *name; // NULL ends a table
    hth_option_kind kind;
    const char *value; // what help calls it
    const char *help;
} hth_option;

typedef struct hth_cli hth_cli;

typedef struct hth_command {
    const char *name;
    const char *usage; // arguments, as help prints them
    const char *help;
    int least, most; // arguments
    const hth_option *options;
    int (*run)(hth_cli *cli);
    const char *examples; // command lines, each ends with '\n'; NULL: there are none
    bool helps;       // prints the help of the command that its argument names; run is not called
    bool destroys;    // a misspelt word is never corrected to it
    bool own_budget;  // --budget is a training step's; without it, an embedded device's
    bool makes_store; // --store DIR need not exist
    uint64_t timeout_ms; // of each call to the server; 0: the default
} hth_command;

struct hth_cli {
    const hth_command *const *commands; // all there are, NULL-terminated
    const hth_command *hidden;          // one more, which is in no list; NULL: none
    const hth_command *command;
    const char *args[HTH_CLI_ARGS];
    int n_args;
    json_t *options;         // what was given, global options included, by name
    const char *environment; // $HEARTH_SERVER, or NULL
    const char *token;       // $HEARTH_TOKEN, or NULL
    const char *runtime_dir; // $XDG_RUNTIME_DIR, or NULL
    const char *term;        // $TERM, or NULL
    const char *no_color;    // $NO_COLOR, or NULL
    const char *locale;      // of characters: $LC_ALL, $LC_CTYPE or $LANG, or NULL
    hearth *h;               // hth_cli_connect
};

extern const hth_option hth_cli_global[]; // those that every command has

// hth_cli_run reads the command line, does what it says, and returns the exit code.
int hth_cli_run(hth_cli *cli, int argc, char **argv);

// hth_cli_connect opens cli->h, once, as --server, --store, the environment and the local sockets
// say; threads and budget of the command shape an embedded engine. An exit code; errors are
// printed.
int hth_cli_connect(hth_cli *cli);
int hth_cli_error(void); // prints hearth_error(); HTH_CLI_ERROR
// prints; HTH_CLI_USAGE
int hth_cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

bool hth_cli_json(const hth_cli *cli);                          // --json
const char *hth_cli_text(const hth_cli *cli, const char *name); // NULL when not given
int64_t hth_cli_int(const hth_cli *cli, const char *name, int64_t dflt);
// hth_cli_print writes a document: as it is with --json, else as tables (table.h).
int hth_cli_print(const hth_cli *cli, const char *json);

#endif
