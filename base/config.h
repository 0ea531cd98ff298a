// SPDX-License-Identifier: Apache-2.0
// base/config.h - the settings of a configuration file and a command line, merged.
//
// A file has one NAME = VALUE per line; # at the beginning of a line or after a blank starts a
// comment. A setting that is a list may be given several times, each adds to it; any other only
// once. Flags override the file and the file overrides the defaults, in whatever order they were
// read. A renamed setting may be given by its old name, but not by both. One thread at a time.
#ifndef HTH_BASE_CONFIG_H
#define HTH_BASE_CONFIG_H

#include "base/settings.h"

typedef struct hth_config_value {
    char *text;      // NULL: not given
    int line;        // of the file (of a list: the first one); 0: a flag
    const char *was; // the old name by which it was given; NULL: by its name
} hth_config_value;

typedef struct hth_config {
    const char *path; // of the file, borrowed; NULL: there is none
    hth_config_value file[HTH_N_SETTINGS], flag[HTH_N_SETTINGS];
} hth_config;

// Receives one sentence per call: "FILE:LINE: ..".
typedef struct hth_config_report {
    void (*say)(void *ctx, const char *sentence);
    void *ctx;
} hth_config_report;

void hth_config_fini(hth_config *config);
// hth_config_flag keeps `value` for setting `name`, as hth_setting_check allows; of a list it adds.
hth_err hth_config_flag(hth_config *config, const char *name, const char *value);
// hth_config_read takes config->path in place of what was read before. Every wrong line is
// reported; on an error, which is that of the first one, nothing has changed.
hth_err hth_config_read(hth_config *config, const hth_config_report *report);
// hth_config_renamed reports each value given by an old name: "ORIGIN: 'X' is now 'Y'; ..".
void hth_config_renamed(const hth_config *config, const hth_config_report *report);
// hth_config_text returns the value in effect: a flag's, the file's, or NULL for the default.
const char *hth_config_text(const hth_config *config, hth_setting setting);
// hth_config_origin writes where the value is given: "FILE:LINE", "--flag", or "default".
const char *hth_config_origin(const hth_config *config, hth_setting setting, char *out, size_t cap);
// hth_config_apply sets everything.
hth_err hth_config_apply(const hth_config *config);
// hth_config_reload sets what is LIVE, and reports each setting that would need a restart; returns
// how many have changed.
int hth_config_reload(const hth_config *config, const hth_config_report *report);
// hth_config_flag_name writes a setting's flag without its dashes: "limits-rank" of "limits.rank".
const char *hth_config_flag_name(hth_setting setting, char *out, size_t cap);
// hth_config_flag_spelling does so for a name, which may be an old one.
const char *hth_config_flag_spelling(const char *name, char *out, size_t cap);

#endif
