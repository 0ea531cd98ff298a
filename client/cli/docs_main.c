// SPDX-License-Identifier: Apache-2.0
// hearth-docs: the parts of the manual pages and the shells' completions that the tables of
// commands and settings decide. Used while hearth is built, not installed. usage: hearth-docs
// commands|global|settings|bash|zsh|bash-daemon|zsh-daemon
#include "client/cli/cmd.h"

#include "base/config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

// hearthd's flags that are no settings.
static const hth_option daemon_own[] = {
    {"config", HTH_OPTION_PATH, "FILE", "settings, one NAME = VALUE a line"},
    {"check-config", HTH_OPTION_FLAG, NULL, "print the effective settings"},
    {"set", HTH_OPTION_TEXT, "NAME=VALUE", "a setting by its name"},
    {"help", HTH_OPTION_FLAG, NULL, "list all settings"},
    {"version", HTH_OPTION_FLAG, NULL, "print the version"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

// ---- manual pages (mdoc)

// roff_text prints lines of text so that none of them is taken for a macro, each sentence on its
// own.
static void roff_text(const char *text)
{
    bool begins = true;
    char last = '\n';
    for (; *text != '\0'; text++) {
        if (begins && (*text == '.' || *text == '\'')) {
            printf("\\&");
        }
        begins = *text == '\n' || (*text == ' ' && last == '.' && text[1] >= 'A' && text[1] <= 'Z');
        if (*text == '\\') {
            printf("\\e");
        } else {
            putchar(begins ? '\n' : *text);
        }
        last = *text;
    }
    putchar('\n');
}

// roff_sentence makes a sentence of the first line of a help text; others after it are sentences.
static void roff_sentence(const char *help)
{
    char first[400];
    size_t n = strcspn(help, "\n");
    snprintf(first, sizeof first, "%c%.*s.", toupper((unsigned char)help[0]), (int)n - 1, help + 1);
    roff_text(first);
    if (help[n] != '\0') {
        roff_text(help + n + 1);
    }
}

// roff_word prints a quoted argument of a macro, up to the end of its line.
static void roff_word(const char *text, size_t n)
{
    printf(" \"");
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') {
            printf("\\(dq");
        } else if (text[i] == '\\') {
            printf("\\e");
        } else {
            putchar(text[i]);
        }
    }
    printf("\"");
}

static void roff_options(const hth_option *option)
{
    if (option->name == NULL) {
        return;
    }
    printf(".Pp\n.Bl -tag -width 6n -compact\n");
    for (; option->name != NULL; option++) {
        printf(".It Fl -%s", option->name);
        if (option->value != NULL) {
            printf(" Ar");
            roff_word(option->value, strlen(option->value));
        }
        putchar('\n');
        roff_text(option->help);
    }
    printf(".El\n");
}

static void roff_examples(const char *lines)
{
    if (lines != NULL) {
        printf(".Pp\nExamples:\n.Bd -literal -offset indent -compact\n");
        for (const char *at = lines; *at != '\0'; at += strcspn(at, "\n") + 1) {
            char line[200];
            snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
            roff_text(line);
        }
        printf(".Ed\n");
    }
}

static void docs_commands(void)
{
    printf(".Bl -tag -width 6n\n");
    for (int i = 0; hth_commands[i] != NULL; i++) {
        const hth_command *c = hth_commands[i];
        size_t n = strcspn(c->usage, "\n"); // a second line is another form: the text names it
        printf(".It Ic %s", c->name);
        if (n > 0) {
            printf(" Ar");
            roff_word(c->usage, n);
        }
        putchar('\n');
        roff_sentence(c->help);
        roff_options(c->options);
        roff_examples(c->examples);
    }
    printf(".El\n");
}

static void docs_global(void)
{
    roff_options(hth_cli_global);
}

static void docs_settings(void)
{
    printf(".Bl -tag -width 6n\n");
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const hth_setting_info *t = hth_setting_get_info((hth_setting)i);
        char flag[64], text[HTH_SETTING_TEXT], lo[32], hi[32];
        printf(".It Va %s , Fl -%s\n", t->name,
               hth_config_flag_name((hth_setting)i, flag, sizeof flag));
        roff_sentence(t->help);
        hth_setting_default((hth_setting)i, text, sizeof text);
        if (t->text == NULL) {
            printf("From %s to %s; the default is %s.\n",
                   hth_setting_format(t->kind, t->min, lo, sizeof lo),
                   hth_setting_format(t->kind, t->max, hi, sizeof hi), text);
        } else if (text[0] != '\0') {
            printf("The default is\n.Ql %s .\n", text);
        }
        if (t->change == HTH_CHANGE_LIVE) {
            printf("Can change while hearthd runs.\n");
        }
    }
    printf(".El\n");
}

// ---- completions

// The words that an option of that name takes; "@KIND": names that the server is asked for.
static const struct {
    const char *option, *words;
} value_words[] = {{"optimizer", "sgd momentum adam adamw"},
                   {"loss", "softmax-xent mse"},
                   {"policy", "hearth keep vdnn chen checkmate-auto str-auto monet capuchin mo-sos "
                              "optimal"},
                   {"precision", "fp32 tf32 bf16"},
                   {"schedule", "constant cosine linear"},
                   {"roles", "infer model job admin"},
                   {"replan", "on off"},
                   {"accumulate", "auto"},
                   {"on", "@devices"},
                   {"device", "@devices"}};

static const char *words_of(const char *option)
{
    for (size_t i = 0; i < sizeof value_words / sizeof *value_words; i++) {
        if (strcmp(value_words[i].option, option) == 0) {
            return value_words[i].words;
        }
    }
    return NULL;
}

// What the first argument of a command names; NULL: something else.
static const char *names_of(const hth_command *command)
{
    if (strncmp(command->usage, "NAME", 4) == 0) {
        return "models";
    }
    return strncmp(command->usage, "JOB", 3) == 0 ? "jobs" : NULL;
}

static bool takes_value(const hth_option *option)
{
    return option->kind != HTH_OPTION_FLAG && option->kind != HTH_OPTION_SWITCH;
}

static bool takes_file(const hth_option *option)
{
    return option->kind == HTH_OPTION_PATH || option->kind == HTH_OPTION_DATA ||
           (option->kind == HTH_OPTION_LIST && words_of(option->name) == NULL);
}

static void bash_names(const hth_option *option)
{
    for (; option->name != NULL; option++) {
        printf(" --%s", option->name);
    }
}

// bash_takes prints the pattern of an option of `command` (NULL: of any) that takes a value.
static void bash_takes(const char *command, const hth_option *option)
{
    for (; option->name != NULL; option++) {
        if (takes_value(option)) {
            printf("|%s' --%s'", command != NULL ? command : "*", option->name);
        }
    }
}

// bash_values prints what follows an option of `command` (NULL: of any): files, words, names, or
// what is not known.
static void bash_values(const char *command, const hth_option *option)
{
    for (; option->name != NULL; option++) {
        const char *words = words_of(option->name);
        if (option->kind == HTH_OPTION_FLAG) {
            continue;
        }
        printf("    %s' --%s') ", command != NULL ? command : "*", option->name);
        if (takes_file(option)) {
            printf("files=yes ;;\n");
        } else if (words != NULL && words[0] == '@') {
            printf("names=%s ;;\n", words + 1);
        } else {
            printf("words='%s' ;;\n", words != NULL ? words : "");
        }
    }
}

static void bash_settings(void)
{
    char flag[64];
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        printf(" --%s", hth_config_flag_name((hth_setting)i, flag, sizeof flag));
    }
}

// bash_line: words are split at blanks only: bash's own words end at the ':' of a url, too.
static void bash_line(void)
{
    printf("# bash completion for hearth; made from its table of commands\n_hearth() {\n"
           "  local cur prev command= words= names= files= at=0 i where=() "
           "line=(\"${COMP_WORDS[@]}\")\n"
           "  if [[ -n $COMP_LINE ]]; then\n"
           "    read -ra line <<<\"${COMP_LINE:0:COMP_POINT}\"\n"
           "    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && line+=(\"\")\n"
           "  fi\n"
           "  cur=${line[${#line[@]}-1]} prev=${line[${#line[@]}-2]}\n"
           "  for ((i = 1; i < ${#line[@]} - 1; i++)); do\n"
           "    case ${line[i]} in\n"
           "      --server|--store|--token-file|--ca) where+=(\"${line[i]}\" \"${line[i+1]}\") ;;\n"
           "      --server=*|--store=*|--token-file=*|--ca=*) where+=(\"${line[i]}\") ;;\n"
           "    esac\n"
           "    case \"$command ${line[i]}\" in\n      '-'");
    bash_takes(NULL, hth_cli_global);
    for (int i = 0; hth_commands[i] != NULL; i++) {
        bash_takes(hth_commands[i]->name, hth_commands[i]->options);
    }
    printf(") ((i++)) ;;\n      *' -'*) ;;\n"
           "      *) if [[ -z $command ]]; then command=${line[i]}; else ((at++)); fi ;;\n"
           "    esac\n  done\n"
           "  if [[ $cur == --*=* ]]; then prev=${cur%%%%=*} cur=${cur#*=}; fi\n");
}

static void bash_choose(void)
{
    printf("  case \"$command $prev\" in\n");
    bash_values(NULL, hth_cli_global);
    for (int i = 0; hth_commands[i] != NULL; i++) {
        bash_values(hth_commands[i]->name, hth_commands[i]->options);
    }
    printf("    *)\n      case $command in\n        '') words='");
    for (int i = 0; hth_commands[i] != NULL; i++) {
        printf("%s ", hth_commands[i]->name);
    }
    printf("' ;;\n        help) words='");
    for (int i = 0; hth_commands[i] != NULL; i++) {
        printf("%s ", hth_commands[i]->name);
    }
    printf("' ;;\n");
    for (int i = 0; hth_commands[i] != NULL; i++) {
        const hth_command *c = hth_commands[i];
        if (names_of(c) != NULL) {
            printf("        %s) [[ $at -gt 0 ]] || names=%s ;;\n", c->name, names_of(c));
        }
    }
    printf("      esac\n      [[ $cur != -* ]] || names= words=\n"
           "      [[ -n $names || -n $words ]] || files=yes\n      if [[ $cur == -* ]]; then\n"
           "        case $command in\n");
    for (int i = 0; hth_commands[i] != NULL; i++) {
        printf("          %s) words='", hth_commands[i]->name);
        bash_names(hth_commands[i]->options);
        printf("' ;;\n");
    }
    printf("        esac\n        words+='");
    bash_names(hth_cli_global);
    printf("' files=\n      fi ;;\n  esac\n");
}

static void docs_bash(void)
{
    bash_line();
    bash_choose();
    printf("  COMPREPLY=()\n  if [[ -n $files ]]; then\n"
           "    COMPREPLY=($(compgen -f -- \"${cur##*=}\"))\n    return\n  fi\n"
           "  compopt +o filenames 2>/dev/null\n"
           "  if [[ -n $names ]]; then # what a server says is never expanded\n"
           "    while read -r i; do\n"
           "      [[ $i != \"$cur\"* ]] || COMPREPLY+=(\"$(printf %%q \"$i\")\")\n"
           "    done < <(timeout 2 \"${line[0]}\" \"${where[@]}\" __complete $names </dev/null "
           "2>/dev/null)\n"
           "  else\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n  fi\n"
           "  if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then # bash has the rest already\n"
           "    COMPREPLY=(\"${COMPREPLY[@]#\"${cur%%\"${cur##*:}\"}\"}\")\n  fi\n}\n"
           "complete -o filenames -F _hearth hearth\n");
}

static void docs_bash_daemon(void)
{
    printf(
        "# bash completion for hearthd; made from its table of settings\n_hearthd() {\n"
        "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
        "  case $prev in\n    --config|--store) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
        "    --check-config|--help|--version) ;;\n    --*) return ;;\n  esac\n"
        "  COMPREPLY=($(compgen -W \"");
    bash_names(daemon_own);
    bash_settings();
    printf("\" -- \"$cur\"))\n}\ncomplete -o filenames -F _hearthd hearthd\n");
}

// zsh_text prints help inside a quoted [..] of _arguments.
static void zsh_text(const char *text)
{
    for (; *text != '\0' && *text != '\n'; text++) {
        if (*text == '\'') {
            printf("'\\''");
        } else if (strchr("[]:\\", *text) != NULL) {
            printf("\\%c", *text);
        } else {
            putchar(*text);
        }
    }
}

// zsh_option prints what an option is, and what its value may be. A switch may stand alone.
static void zsh_option(const hth_option *option)
{
    const char *words = words_of(option->name);
    printf("    '%s--%s[", option->kind == HTH_OPTION_LIST ? "*" : "", option->name);
    zsh_text(option->help);
    putchar(']');
    if (takes_value(option)) {
        putchar(':');
        zsh_text(option->value);
        putchar(':');
        if (takes_file(option)) {
            printf("_files");
        } else if (words != NULL && words[0] == '@') {
            printf(" _hearth_names %s", words + 1); // the blank: no arguments of zsh's in front
        } else if (words != NULL) {
            printf("(%s)", words);
        }
    }
    printf("'\n");
}

static void zsh_options(const hth_option *option)
{
    for (; option->name != NULL; option++) {
        zsh_option(option);
    }
}

static void docs_zsh(void)
{
    printf("#compdef hearth\n# made from hearth's table of commands\n_hearth_names() {\n"
           "  local i\n  local -a names where\n  for ((i = 2; i < CURRENT; i++)); do\n"
           "    case ${words[i]} in\n"
           "      --server|--store|--token-file|--ca) where+=(${words[i]} ${(Q)words[i+1]}) ;;\n"
           "      --server=*|--store=*|--token-file=*|--ca=*) where+=(${(Q)words[i]}) ;;\n"
           "    esac\n  done\n"
           "  names=(${(f)\"$(timeout 2 ${(Q)words[1]} $where __complete $1 </dev/null "
           "2>/dev/null)\"})\n"
           "  compadd -a names\n}\n_hearth() {\n"
           "  local command word first=_files\n  local -a commands options\n  commands=(\n");
    for (int i = 0; hth_commands[i] != NULL; i++) {
        printf("    '%s:", hth_commands[i]->name);
        zsh_text(hth_commands[i]->help);
        printf("'\n");
    }
    printf("  )\n  for word in ${words[2,CURRENT-1]}; do\n"
           "    if [[ -n ${(M)commands:#$word:*} ]]; then command=$word; break; fi\n  done\n"
           "  options=(\n");
    zsh_options(hth_cli_global);
    printf("  )\n  case $command in\n");
    for (int i = 0; hth_commands[i] != NULL; i++) {
        const char *names = names_of(hth_commands[i]);
        printf("  %s) ", hth_commands[i]->name);
        if (names != NULL) {
            printf("first=' _hearth_names %s' ", names);
        } else if (strcmp(hth_commands[i]->name, "help") == 0) {
            printf("first=\"(${(j: :)${(@)commands%%%%:*}})\" ");
        }
        printf("options+=(\n");
        zsh_options(hth_commands[i]->options);
        printf("  ) ;;\n");
    }
    printf("  esac\n  if [[ -z $command && $words[CURRENT] != -* ]]; then\n"
           "    _describe command commands\n  else\n    _arguments $options '1:command:' "
           "\"2:name:$first\" "
           "'*:argument:_files'\n  fi\n}\n"
           "_hearth \"$@\"\n");
}

static void docs_zsh_daemon(void)
{
    char flag[64];
    printf("#compdef hearthd\n# made from hearthd's table of settings\n_arguments \\\n");
    for (const hth_option *o = daemon_own; o->name != NULL; o++) {
        printf("    '--%s[", o->name);
        zsh_text(o->help);
        printf(o->value != NULL ? "]:value:_files' \\\n" : "]' \\\n");
    }
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const hth_setting_info *t = hth_setting_get_info((hth_setting)i);
        printf("    '%s--%s[", t->kind == HTH_KIND_LIST ? "*" : "",
               hth_config_flag_name((hth_setting)i, flag, sizeof flag));
        zsh_text(t->help);
        printf("]:value:_files'%s\n", i + 1 < HTH_N_SETTINGS ? " \\" : "");
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } parts[] = {{"commands", docs_commands},
                 {"global", docs_global},
                 {"settings", docs_settings},
                 {"bash", docs_bash},
                 {"zsh", docs_zsh},
                 {"bash-daemon", docs_bash_daemon},
                 {"zsh-daemon", docs_zsh_daemon}};
    for (size_t i = 0; argc == 2 && i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(argv[1], parts[i].name) == 0) {
            parts[i].print();
            return 0;
        }
    }
    fprintf(stderr,
            "usage: hearth-docs commands|global|settings|bash|zsh|bash-daemon|zsh-daemon\n");
    return 2;
}
