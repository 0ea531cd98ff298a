// SPDX-License-Identifier: Apache-2.0
#include "server/http/tensors/http_base64.h"

#include <openssl/evp.h>

#define BASE64_PIECE 3072 // bytes that are encoded at once: a multiple of 3

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    if (c == '+') {
        return 62;
    }
    return c == '/' ? 63 : -1;
}

bool hth_base64_decode(const char *text, size_t bytes, char *out, size_t *n)
{
    unsigned bits = 0;
    int held = 0, pads = 0, chars = 0;
    *n = 0;
    for (size_t i = 0; i < bytes; i++) {
        int digit = base64_digit(text[i]);
        if (text[i] == '\n' || text[i] == '\r') {
            continue;
        }
        if (text[i] != '=' && (digit < 0 || pads > 0)) {
            return false;
        }
        chars++;
        pads += text[i] == '=';
        bits = digit >= 0 ? bits << 6 | (unsigned)digit : bits;
        held += digit >= 0 ? 6 : 0;
        if (held >= 8) {
            held -= 8;
            out[(*n)++] = (char)(bits >> held);
        }
    }
    return chars % 4 == 0 && pads <= 2 && held == 2 * pads;
}

void hth_base64_encode(hth_text *out, const void *data, size_t bytes)
{
    unsigned char text[BASE64_PIECE / 3 * 4 + 1];
    const unsigned char *p = data;
    for (size_t at = 0; at < bytes; at += BASE64_PIECE) {
        size_t some = bytes - at < BASE64_PIECE ? bytes - at : BASE64_PIECE;
        int n = EVP_EncodeBlock(text, p + at, (int)some);
        hth_text_add(out, (const char *)text, (size_t)n);
    }
}
