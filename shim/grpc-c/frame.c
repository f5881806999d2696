// SPDX-License-Identifier: Apache-2.0
//
// See frame.h.

#include "frame.h"

#include <inttypes.h>
#include <lien/lien.h>
#include <stdio.h>
#include <string.h>

static const uint8_t magic[MAGIC_BYTES] = {7, 'L', 'I', 'E', 'N', 'R', 'P', 'C'};

static void put_u32(uint8_t *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_u32(const uint8_t *bytes)
{
    uint32_t value = 0;
    for (int i = 3; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

void frame_put_u64(uint8_t *out, uint64_t value)
{
    put_u32(out, (uint32_t)value);
    put_u32(out + 4, (uint32_t)(value >> 32));
}

uint64_t frame_get_u64(const uint8_t *bytes)
{
    return get_u32(bytes) | (uint64_t)get_u32(bytes + 4) << 32;
}

bool frame_magic(const uint8_t *bytes, size_t len)
{
    return len >= MAGIC_BYTES && memcmp(bytes, magic, MAGIC_BYTES) == 0;
}

void frame_put_head(const struct head *head, uint8_t out[HEAD_BYTES])
{
    memset(out, 0, HEAD_BYTES);
    memcpy(out, magic, MAGIC_BYTES);
    out[8] = FRAME_VERSION;
    out[9] = (uint8_t)head->kind;
    out[10] = head->from_server;
    put_u32(out + 12, head->index);
    memcpy(out + 16, head->nonce.bytes, NONCE_BYTES);
    frame_put_u64(out + 32, head->call);
    frame_put_u64(out + 40, head->len);
    put_u32(out + 48, head->token_len);
}

struct head frame_get_head(const uint8_t bytes[HEAD_BYTES], uint64_t total)
{
    struct head none = {.kind = HEAD_NONE}, head = none;
    if (!frame_magic(bytes, HEAD_BYTES) || total < HEAD_BYTES || bytes[8] != FRAME_VERSION ||
        bytes[10] > 1 || bytes[11] || get_u32(bytes + 52))
        return none;
    head.from_server = bytes[10];
    head.index = get_u32(bytes + 12);
    memcpy(head.nonce.bytes, bytes + 16, NONCE_BYTES);
    head.call = frame_get_u64(bytes + 32);
    head.len = frame_get_u64(bytes + 40);
    head.token_len = get_u32(bytes + 48);
    bool token = head.token_len > 0 && head.token_len <= LIEN_TOKEN_MAX;
    if (bytes[9] == HEAD_DESCRIPTOR && token && head.len > 0 &&
        total == HEAD_BYTES + head.token_len)
        head.kind = HEAD_DESCRIPTOR;
    else if (bytes[9] == HEAD_ESCAPED && head.token_len == 0 && total - HEAD_BYTES == head.len)
        head.kind = HEAD_ESCAPED;
    return head.kind == HEAD_NONE ? none : head;
}

// -- Metadata: text --------------------------------------------------------------------------------------------------------------------

size_t frame_put_call(const struct call_entry *entry, char out[CALL_ENTRY_MAX])
{
    if (!entry->linked)
        return (size_t)snprintf(out, CALL_ENTRY_MAX, "1");
    char hex[2 * NONCE_BYTES + 1];
    for (size_t i = 0; i < NONCE_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", entry->nonce.bytes[i]);
    return (size_t)snprintf(out, CALL_ENTRY_MAX, "1 %s %" PRIx64, hex, entry->limit);
}

// One hexadecimal number of at most `digits` digits, ended by a space or the text's end; moves *at behind both.
static bool get_hex(const char *text, size_t len, size_t *at, size_t digits, uint64_t *value)
{
    size_t i = *at, from = i;
    *value = 0;
    for (; i < len && text[i] != ' '; i++) {
        const char *all = "0123456789abcdef", *digit = memchr(all, text[i], 16);
        if (!digit || i - from >= digits)
            return false;
        *value = *value << 4 | (uint64_t)(digit - all);
    }
    if (i == from)
        return false;
    *at = i < len ? i + 1 : i;
    return true;
}

static bool get_nonce(const char *text, size_t len, size_t *at, struct nonce *nonce)
{
    if (len - *at < 2 * NONCE_BYTES + 1 || text[*at + 2 * NONCE_BYTES] != ' ')
        return false;
    for (size_t i = 0; i < NONCE_BYTES; i++) {
        size_t from = 0;
        uint64_t byte;
        if (!get_hex(text + *at + 2 * i, 2, &from, 2, &byte) || from != 2)
            return false;
        nonce->bytes[i] = (uint8_t)byte;
    }
    *at += 2 * NONCE_BYTES + 1;
    return true;
}

bool frame_get_call(const char *text, size_t len, struct call_entry *entry)
{
    *entry = (struct call_entry){.linked = false};
    if (len == 1 && text[0] == '1')
        return true;
    size_t at = 2;
    struct call_entry got = {.linked = true};
    if (len < 2 || text[0] != '1' || text[1] != ' ' || !get_nonce(text, len, &at, &got.nonce) ||
        !get_hex(text, len, &at, 16, &got.limit) || at != len)
        return false;
    *entry = got;
    return true;
}

size_t frame_put_offer(const struct offer_entry *entry, char out[OFFER_ENTRY_MAX])
{
    if (entry->linked)
        return (size_t)snprintf(out, OFFER_ENTRY_MAX, "1 %" PRIx64 " =%" PRIx64, entry->instance,
                                entry->call);
    return (size_t)snprintf(out, OFFER_ENTRY_MAX, "1 %" PRIx64 "%s%s", entry->instance,
                            entry->address[0] ? " " : "", entry->address);
}

bool frame_get_offer(const char *text, size_t len, struct offer_entry *entry)
{
    size_t at = 2;
    *entry = (struct offer_entry){.instance = 0};
    if (len < 3 || text[0] != '1' || text[1] != ' ' ||
        !get_hex(text, len, &at, 16, &entry->instance) || len - at >= sizeof entry->address)
        return false;
    if (at < len && text[at] == '=') {
        entry->linked = true;
        at++;
        return get_hex(text, len, &at, 16, &entry->call) && at == len;
    }
    memcpy(entry->address, text + at, len - at);
    return memchr(entry->address, 0, len - at) == NULL;
}

// -- Over Lien -------------------------------------------------------------------------------------------------------------------------

void frame_put_link(const struct nonce *nonce, uint8_t out[LINK_BYTES])
{
    memset(out, 0, LINK_BYTES);
    put_u32(out, FRAME_VERSION);
    memcpy(out + 8, nonce->bytes, NONCE_BYTES);
}

bool frame_get_link(const uint8_t *bytes, size_t len, struct nonce *nonce)
{
    if (len != LINK_BYTES || get_u32(bytes) != FRAME_VERSION || get_u32(bytes + 4) != 0)
        return false;
    memcpy(nonce->bytes, bytes + 8, NONCE_BYTES);
    return true;
}
