// SPDX-License-Identifier: Apache-2.0
// One state per place in a chunk; a body comes in pieces that end anywhere.
#include "server/http/http_chunks.h"

#include <stdbool.h>

#define CHUNKS_MOST (UINT64_MAX >> 4) // one hexadecimal digit more still fits

static int digit_of(char c)
{
    int low = c | 32;
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

static bool is_control(char c)
{
    return ((unsigned char)c < 32 && c != '\t') || c == 127;
}

static const char *take_size(hth_chunks *chunks, char *c)
{
    int digit = chunks->at == HTH_CHUNKS_BLANK ? -1 : digit_of(*c);
    if (digit >= 0) {
        chunks->left = chunks->at == HTH_CHUNKS_FIRST ? 0 : chunks->left;
        chunks->left =
            chunks->left < CHUNKS_MOST ? chunks->left << 4 | (uint64_t)digit : CHUNKS_MOST;
        chunks->at = HTH_CHUNKS_SIZE;
    } else if (chunks->at == HTH_CHUNKS_FIRST) {
        return "a chunk's size is no hexadecimal number";
    } else if (*c == '\r') {
        chunks->at = HTH_CHUNKS_SIZE_END;
    } else if (*c == ';') {
        chunks->at = HTH_CHUNKS_EXTENSION;
        *c = ' ';
    } else if (*c == ' ' || *c == '\t') {
        chunks->at = HTH_CHUNKS_BLANK;
        *c = ' ';
    } else {
        return "a chunk's size is followed by neither an extension nor the end of its line";
    }
    return NULL;
}

static const char *take_extension(hth_chunks *chunks, char *c)
{
    if (*c == '\r') {
        chunks->at = HTH_CHUNKS_SIZE_END;
        return NULL;
    }
    if (is_control(*c)) {
        return "a chunk's extension has a control character";
    }
    *c = ' ';
    return NULL;
}

// take_end takes the '\n' after a '\r'.
static const char *take_end(hth_chunks *chunks, char c)
{
    if (c != '\n') {
        return "a line of a body in chunks does not end in CR LF";
    }
    if (chunks->at == HTH_CHUNKS_DATA_END) {
        chunks->at = HTH_CHUNKS_FIRST;
    } else if (chunks->at == HTH_CHUNKS_END) {
        chunks->at = HTH_CHUNKS_NONE;
    } else {
        bool data = chunks->at == HTH_CHUNKS_SIZE_END && chunks->left > 0;
        chunks->at = data ? HTH_CHUNKS_DATA : HTH_CHUNKS_TRAILER;
    }
    return NULL;
}

static const char *take_trailer(hth_chunks *chunks, char c)
{
    if (c == '\r' && chunks->at != HTH_CHUNKS_NAME) {
        chunks->at = chunks->at == HTH_CHUNKS_TRAILER ? HTH_CHUNKS_END : HTH_CHUNKS_TRAILER_END;
    } else if (chunks->at == HTH_CHUNKS_VALUE ? is_control(c)
                                              : is_control(c) || c == ' ' || c == '\t') {
        return "a trailer after a body in chunks is not well-formed";
    } else if (c == ':' && chunks->at == HTH_CHUNKS_TRAILER) {
        return "a trailer after a body in chunks has no name";
    } else if (chunks->at != HTH_CHUNKS_VALUE) {
        chunks->at = c == ':' ? HTH_CHUNKS_VALUE : HTH_CHUNKS_NAME;
    }
    return NULL;
}

static const char *take_byte(hth_chunks *chunks, char *c)
{
    switch (chunks->at) {
    case HTH_CHUNKS_FIRST:
    case HTH_CHUNKS_SIZE:
    case HTH_CHUNKS_BLANK:
        return take_size(chunks, c);
    case HTH_CHUNKS_EXTENSION:
        return take_extension(chunks, c);
    case HTH_CHUNKS_DATA_CR:
        chunks->at = HTH_CHUNKS_DATA_END;
        return *c == '\r' ? NULL : "a chunk's data is not of the size that was said";
    case HTH_CHUNKS_TRAILER:
    case HTH_CHUNKS_NAME:
    case HTH_CHUNKS_VALUE:
        return take_trailer(chunks, *c);
    default:
        return take_end(chunks, *c);
    }
}

const char *hth_chunks_take(hth_chunks *chunks, char *text, size_t bytes)
{
    const char *wrong = NULL;
    for (size_t i = 0; i < bytes && wrong == NULL && chunks->at != HTH_CHUNKS_NONE;) {
        if (chunks->at != HTH_CHUNKS_DATA) {
            wrong = take_byte(chunks, &text[i++]);
            continue;
        }
        size_t some = bytes - i < chunks->left ? bytes - i : (size_t)chunks->left;
        chunks->left -= some;
        i += some;
        chunks->at = chunks->left == 0 ? HTH_CHUNKS_DATA_CR : HTH_CHUNKS_DATA;
    }
    return wrong;
}
