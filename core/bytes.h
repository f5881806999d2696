// SPDX-License-Identifier: Apache-2.0
//
// Little-endian integers and runs of zeros in bytes of any alignment. The caller has checked that the bytes are there.

#ifndef LIENI_BYTES_H
#define LIENI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline void lieni_put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void lieni_put32(uint8_t *p, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static inline void lieni_put64(uint8_t *p, uint64_t v)
{
    for (unsigned i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static inline uint16_t lieni_get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t lieni_get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t lieni_get64(const uint8_t *p)
{
    return (uint64_t)lieni_get32(p) | (uint64_t)lieni_get32(p + 4) << 32;
}

static inline bool lieni_all_zero(const uint8_t *p, size_t len)
{
    uint8_t any = 0;
    for (size_t i = 0; i < len; i++)
        any |= p[i];
    return any == 0;
}

#endif
