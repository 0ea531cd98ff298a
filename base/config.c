// SPDX-License-Identifier: Apache-2.0
// A file is read into a table of its own, which takes the old one's place only when all of it is
// right: a reload with a mistake changes nothing. Values are checked where they are written down,
// so that the sentence has the line, and stored later.
#include "base/config.h"

#include "base/alloc.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_LINE 4096

static void config_clear(hth_config_value *value)
{
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        hth_free(value[i].text);
        value[i] = (hth_config_value){NULL, 0, NULL};
    }
}

void hth_config_fini(hth_config *config)
{
    config_clear(config->file);
    config_clear(config->flag);
}

// config_one_name refuses a setting that is given by its old name `was` (NULL: by its name) if
// `value` has it by the other one.
static hth_err config_one_name(const hth_config_value *value, const char *was, const char *name)
{
    const char *old = was != NULL ? was : value->was;
    char place[40] = "";
    if (value->text == NULL || was == value->was) {
        return HTH_OK;
    }
    if (value->line > 0) {
        snprintf(place, sizeof place, " (line %d has the other)", value->line);
    }
    return hth_fail(HTH_EINVAL, "'%s' is the old name of '%s': give only one of them%s", old, name,
                    place);
}

// config_put keeps `text` in value, or adds it to the list that is there.
static hth_err config_put(hth_config_value *value, const char *name, const char *text, int line)
{
    int i = hth_setting_find(name);
    bool known = i < HTH_N_SETTINGS;
    const hth_setting_info *t = known ? hth_setting_get_info((hth_setting)i) : NULL;
    const char *was = hth_setting_old_name(name);
    if (known) {
        HTH_TRY(config_one_name(&value[i], was, t->name));
    }
    bool more = known && value[i].text != NULL && t->kind == HTH_KIND_LIST;
    if (known && value[i].text != NULL && !more && line > 0) {
        return hth_fail(HTH_EINVAL, "%s is set in line %d already", name, value[i].line);
    }
    char *all = more ? hth_asprintf("%s %s", value[i].text, text) : hth_strdup(text);
    if (all == NULL) {
        return hth_no_memory("settings");
    }
    hth_err err = hth_setting_check(name, all);
    if (err != HTH_OK) {
        hth_free(all);
        return err;
    }
    hth_free(value[i].text);
    value[i].text = all;
    value[i].line = more ? value[i].line : line;
    value[i].was = was;
    return HTH_OK;
}

hth_err hth_config_flag(hth_config *config, const char *name, const char *value)
{
    return config_put(config->flag, name, value, 0);
}

// ---- the file

static char *config_trim(char *s)
{
    while (isspace((unsigned char)*s)) {
        s++;
    }
    for (size_t n = strlen(s); n > 0 && isspace((unsigned char)s[n - 1]); n--) {
        s[n - 1] = '\0';
    }
    return s;
}

static void config_uncomment(char *s)
{
    for (char *p = s; *p != '\0'; p++) {
        if (*p == '#' && (p == s || isspace((unsigned char)p[-1]))) {
            *p = '\0';
            return;
        }
    }
}

static hth_err config_line(hth_config_value *value, char *text, int line)
{
    size_t n = strlen(text);
    if (n == CONFIG_LINE - 1 && text[n - 1] != '\n') {
        return hth_fail(HTH_EINVAL, "the line is longer than %d bytes", CONFIG_LINE - 2);
    }
    config_uncomment(text);
    text = config_trim(text);
    char *equals = strchr(text, '=');
    if (text[0] == '\0') {
        return HTH_OK;
    }
    if (equals == NULL || equals == text) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not NAME = VALUE", text);
    }
    *equals = '\0';
    return config_put(value, config_trim(text), config_trim(equals + 1), line);
}

static void config_say(const hth_config_report *report, const char *sentence)
{
    if (report != NULL) {
        report->say(report->ctx, sentence);
    }
}

static hth_err config_read_lines(FILE *file, const char *path, hth_config_value *value,
                                 const hth_config_report *report)
{
    char text[CONFIG_LINE], first[1024] = "";
    hth_err all = HTH_OK;
    for (int n = 1; fgets(text, sizeof text, file) != NULL; n++) {
        hth_err err = config_line(value, text, n);
        if (err == HTH_OK) {
            continue;
        }
        hth_err_prefix(err, "%s:%d", path, n);
        config_say(report, hth_err_detail());
        if (all == HTH_OK) {
            all = err;
            snprintf(first, sizeof first, "%s", hth_err_detail());
        }
    }
    if (all != HTH_OK) {
        return hth_fail(all, "%s", first);
    }
    if (ferror(file)) {
        all = hth_fail_errno(errno, "cannot read %s", path);
        config_say(report, hth_err_detail());
    }
    return all;
}

hth_err hth_config_read(hth_config *config, const hth_config_report *report)
{
    hth_config_value fresh[HTH_N_SETTINGS] = {{NULL, 0, NULL}};
    FILE *f = fopen(config->path, "re");
    if (f == NULL) {
        hth_err err = hth_fail_errno(errno, "cannot read %s", config->path);
        config_say(report, hth_err_detail());
        return err;
    }
    hth_err err = config_read_lines(f, config->path, fresh, report);
    fclose(f);
    if (err != HTH_OK) {
        config_clear(fresh);
        return err;
    }
    config_clear(config->file);
    memcpy(config->file, fresh, sizeof fresh);
    return HTH_OK;
}

// ---- what holds

const char *hth_config_text(const hth_config *config, hth_setting setting)
{
    return config->flag[setting].text != NULL ? config->flag[setting].text
                                              : config->file[setting].text;
}

const char *hth_config_flag_spelling(const char *name, char *out, size_t cap)
{
    snprintf(out, cap, "%s", name);
    for (char *p = out; *p != '\0'; p++) {
        *p = *p == '.' || *p == '_' ? '-' : *p;
    }
    return out;
}

const char *hth_config_flag_name(hth_setting setting, char *out, size_t cap)
{
    return hth_config_flag_spelling(hth_setting_get_info(setting)->name, out, cap);
}

// config_flag writes the flag by which a setting was given.
static void config_flag(const hth_config *config, hth_setting setting, char *out, size_t cap)
{
    char flag[64];
    const char *was = config->flag[setting].was;
    snprintf(out, cap, "--%s",
             was != NULL ? hth_config_flag_spelling(was, flag, sizeof flag)
                         : hth_config_flag_name(setting, flag, sizeof flag));
}

const char *hth_config_origin(const hth_config *config, hth_setting setting, char *out, size_t cap)
{
    if (config->flag[setting].text != NULL) {
        config_flag(config, setting, out, cap);
    } else if (config->file[setting].text != NULL) {
        snprintf(out, cap, "%s:%d", config->path, config->file[setting].line);
    } else {
        snprintf(out, cap, "default");
    }
    return out;
}

// config_report_rename reports `value` of setting `setting` if it was given by an old name.
static void config_report_rename(const hth_config_value *value, hth_setting setting,
                                 const char *origin, const hth_config_report *report)
{
    char sentence[600];
    if (value->was != NULL) {
        snprintf(sentence, sizeof sentence,
                 "%s: '%s' is now '%s'; the old name will be removed in the next version", origin,
                 value->was, hth_setting_get_info(setting)->name);
        config_say(report, sentence);
    }
}

void hth_config_renamed(const hth_config *config, const hth_config_report *report)
{
    char origin[300];
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        snprintf(origin, sizeof origin, "%s:%d", config->path != NULL ? config->path : "",
                 config->file[i].line);
        config_report_rename(&config->file[i], (hth_setting)i, origin, report);
        config_flag(config, (hth_setting)i, origin, sizeof origin);
        config_report_rename(&config->flag[i], (hth_setting)i, origin, report);
    }
}

static const char *config_wanted(const hth_config *config, hth_setting setting, char *out,
                                 size_t cap)
{
    const char *text = hth_config_text(config, setting);
    return text != NULL ? text : hth_setting_default(setting, out, cap);
}

hth_err hth_config_apply(const hth_config *config)
{
    char dflt[HTH_SETTING_TEXT];
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const char *name = hth_setting_get_info((hth_setting)i)->name;
        if (hth_config_text(config, (hth_setting)i) != NULL) {
            HTH_TRY(
                hth_setting_set(name, config_wanted(config, (hth_setting)i, dflt, sizeof dflt)));
        }
    }
    return HTH_OK;
}

// A setting that neither file nor flags mention any more goes back to its default, unless the
// program has set it by itself.
static bool config_differs(const hth_config *config, hth_setting setting, const char *wanted)
{
    bool own = hth_setting_get_info(setting)->change == HTH_CHANGE_FIXED &&
               hth_config_text(config, setting) == NULL;
    return !own && !hth_setting_is(setting, wanted);
}

int hth_config_reload(const hth_config *config, const hth_config_report *report)
{
    char dflt[HTH_SETTING_TEXT], now[HTH_SETTING_TEXT], origin[300];
    int changed = 0;
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const hth_setting_info *t = hth_setting_get_info((hth_setting)i);
        const char *wanted = config_wanted(config, (hth_setting)i, dflt, sizeof dflt);
        if (!config_differs(config, (hth_setting)i, wanted)) {
            continue;
        }
        if (t->change == HTH_CHANGE_LIVE) {
            changed += hth_setting_set(t->name, wanted) == HTH_OK;
            continue;
        }
        hth_setting_get(t->name, now, sizeof now);
        hth_fail(HTH_EINVAL, "%s: %s stays '%.200s': '%.200s' needs a restart",
                 hth_config_origin(config, (hth_setting)i, origin, sizeof origin), t->name, now,
                 wanted);
        config_say(report, hth_err_detail());
    }
    return changed;
}
