// SPDX-License-Identifier: Apache-2.0
// Rows are moved as they are, and turned round where they lie, eight bytes from either end at a
// time: what is moved last is in the first cache then.
#include "engine/train/data/augment.h"

#include "kernels/philox.h"

#include <string.h>

#define AUGMENT_KEY 0x6167756Du // dropout and K-means have other keys for the same seed

static int64_t augment_offset(uint32_t word, int64_t crop)
{
    return (int64_t)(((uint64_t)word * (uint64_t)(2 * crop + 1)) >> 32) - crop;
}

hth_augment_draw hth_augment_at(const hth_augment *augment, uint64_t seed, uint64_t epoch,
                                uint64_t sample)
{
    const uint32_t counter[4] = {(uint32_t)sample, (uint32_t)(sample >> 32), (uint32_t)epoch,
                                 (uint32_t)(epoch >> 32)};
    hth_philox words = hth_philox_at(counter, (uint32_t)seed, AUGMENT_KEY ^ (uint32_t)(seed >> 32));
    return (hth_augment_draw){.flip = augment->flip && words.word[0] >> 31 != 0,
                              .down = augment_offset(words.word[1], augment->crop),
                              .right = augment_offset(words.word[2], augment->crop)};
}

// augment_turned is eight bytes with their elements in the opposite order.
static uint64_t augment_turned(uint64_t v, size_t size)
{
    switch (size) {
    case 1:
        return __builtin_bswap64(v);
    case 2:
        v = v >> 32 | v << 32;
        return (v >> 16 & 0x0000FFFF0000FFFFu) | (v & 0x0000FFFF0000FFFFu) << 16;
    case 4:
        return v >> 32 | v << 32;
    default:
        return v;
    }
}

// augment_turn reverses the `n` elements of a row.
static void augment_turn(char *row, size_t n, size_t size)
{
    char *first = row, *last = row + n * size;
    uint64_t a, b;
    for (; last - first >= 16; first += 8, last -= 8) {
        memcpy(&a, first, 8);
        memcpy(&b, last - 8, 8);
        a = augment_turned(a, size);
        b = augment_turned(b, size);
        memcpy(first, &b, 8);
        memcpy(last - 8, &a, 8);
    }
    for (; last - first >= (ptrdiff_t)(2 * size); first += size, last -= size) {
        memcpy(&a, first, size);
        memcpy(first, last - size, size);
        memcpy(last - size, &a, size);
    }
}

// augment_row cuts one row out of the zeros around `in`; in NULL: it lies in them.
static void augment_row(const hth_augment_draw *draw, size_t width, size_t size, const char *in,
                        char *out)
{
    size_t shift = (size_t)(draw->right < 0 ? -draw->right : draw->right);
    size_t kept = (width - shift) * size, zeros = shift * size;
    if (in == NULL) {
        memset(out, 0, width * size);
        return;
    }
    if (draw->right < 0) {
        memmove(out + zeros, in, kept);
        memset(out, 0, zeros);
    } else {
        memmove(out, in + zeros, kept);
        memset(out + kept, 0, zeros);
    }
    if (draw->flip) {
        augment_turn(out, width, size);
    }
}

void hth_augment_image(const hth_augment_draw *draw, const int64_t dim[3], size_t size,
                       const void *in, void *out)
{
    size_t row = (size_t)dim[2] * size;
    for (int64_t c = 0; c < dim[0]; c++) {
        const char *from = (const char *)in + (size_t)(c * dim[1]) * row;
        char *to = (char *)out + (size_t)(c * dim[1]) * row;
        for (int64_t i = 0; i < dim[1]; i++) {
            // where `out` is `in`, a row that is still to be read has not been written
            int64_t y = draw->down < 0 ? dim[1] - 1 - i : i, source = y + draw->down;
            bool there = source >= 0 && source < dim[1];
            augment_row(draw, (size_t)dim[2], size, there ? from + (size_t)source * row : NULL,
                        to + (size_t)y * row);
        }
    }
}
