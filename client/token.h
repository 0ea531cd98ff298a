// SPDX-License-Identifier: Apache-2.0
// client/token.h - bearer tokens: their roles, how they are made, and the file in which a server
// finds them.
//
// A file has one token a line: NAME ROLE[,ROLE] SHA256, # starts a comment. The token itself stands
// nowhere: only the SHA-256 of its text, in hexadecimal. Any thread.
#ifndef HTH_CLIENT_TOKEN_H
#define HTH_CLIENT_TOKEN_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

// What a token may do; one bit each. What needs which: server/net/auth.h.
typedef enum hth_role {
    HTH_ROLE_INFER = 1,
    HTH_ROLE_MODEL = 2,
    HTH_ROLE_JOB = 4,
    HTH_ROLE_ADMIN = 8, // written "admin": all of them
    HTH_ROLE_ALL = 15
} hth_role;

// What an operation needs of its caller's roles. ANY: a token, whatever its roles (operations
// without consequences). What a command needs stands in its row (runtime/command.h), what a route
// of HTTP needs in its own.
typedef enum hth_need {
    HTH_NEED_NOTHING,
    HTH_NEED_ANY,
    HTH_NEED_INFER,
    HTH_NEED_MODEL,
    HTH_NEED_JOB,
    HTH_NEED_CONTENT, // of a model, or of a job
    HTH_NEED_ADMIN,
} hth_need;

#define HTH_TOKEN_TEXT 128 // bytes of a token's text, its zero included
#define HTH_TOKEN_NAME 65
#define HTH_TOKEN_HASH 32

typedef struct hth_token {
    char name[HTH_TOKEN_NAME];
    unsigned roles;
    uint8_t hash[HTH_TOKEN_HASH];
} hth_token;

typedef struct hth_tokens {
    hth_token *list;
    int n;
} hth_tokens;

// hth_roles_parse reads "infer,job". HTH_EINVAL names the word that is no role.
hth_err hth_roles_parse(const char *text, unsigned *roles);

// hth_tokens_parse reads a file's text. HTH_EINVAL has the line. On success the caller owns *out,
// until hth_tokens_fini; on error it is empty.
hth_err hth_tokens_parse(const char *text, size_t bytes, hth_tokens *out);
// hth_tokens_read reads a file, which only its owner (the caller's user or root) may write and not
// everybody may read: else HTH_EDENIED.
hth_err hth_tokens_read(const char *path, hth_tokens *out);
void hth_tokens_fini(hth_tokens *tokens);
// hth_tokens_find returns the row of a token's text, or NULL. The time it takes does not depend on
// which row, nor on how much of a hash is the same.
const hth_token *hth_tokens_find(const hth_tokens *tokens, const char *token);

// hth_token_new makes a token of 160 random bits, appends its line to the file, which is created
// (mode 0600) when it is absent, and stores its text. HTH_EEXIST: the name has one.
hth_err hth_token_new(const char *path, const char *name, const char *roles,
                      char out[HTH_TOKEN_TEXT]);
// hth_token_load reads a file that holds nothing but a token.
hth_err hth_token_load(const char *path, char out[HTH_TOKEN_TEXT]);

#endif
