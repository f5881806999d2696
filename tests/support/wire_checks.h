// SPDX-License-Identifier: Apache-2.0
//
// What must hold for any bytes given to the decoders, said a second time and independently of them. Shared by the unit tests and the fuzz targets: each check_ function returns
// NULL or what is wrong. And the generator of bytes of both.

#ifndef TESTS_WIRE_CHECKS_H
#define TESTS_WIRE_CHECKS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/handshake.h"
#include "core/wire.h"

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// A good offer without providers, for a test to add its own to; `fill` fills the nonce.
static inline struct lieni_offer wire_offer(uint8_t fill)
{
    struct lieni_offer offer = {
        .version_min = 1,
        .version_max = 1,
        .frame_max = 8192,
        .message_credits = 32,
        .control_credits = 33,
        .message_max = UINT64_C(1) << 32,
        .grants_max = 4096,
        .read_depth = 16,
        .dead_ms = 5000,
    };
    memset(offer.nonce, fill, sizeof offer.nonce);
    return offer;
}

// Changes a few bytes, and sometimes the length (0 .. size).
static inline void mutate(uint64_t *random, uint8_t *bytes, size_t *len, size_t size)
{
    static const uint8_t edges[] = {0, 1, 2, 63, 64, 65, 127, 128, 254, 255};
    for (uint64_t n = next_random(random) % 4; n > 0 && *len > 0; n--) {
        const uint64_t r = next_random(random);
        uint8_t *at = bytes + (r >> 16) % *len;
        if (r % 3 == 0)
            *at = edges[(r >> 8) % sizeof edges];
        else if (r % 3 == 1)
            *at ^= (uint8_t)(1u << (r >> 8) % 8);
        else
            *at = (uint8_t)(r >> 8);
    }
    if (next_random(random) % 4 == 0)
        *len = next_random(random) % (size + 1);
}

static inline const char *check_keys(const struct lieni_key *keys, uint32_t n, uint64_t total)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (keys[i].len == 0)
            return "a key of length 0";
        if (keys[i].addr + keys[i].len < keys[i].addr)
            return "a key beyond the address space";
        if (sum + keys[i].len < sum)
            return "the sum overflows";
        sum += keys[i].len;
    }
    return sum == total ? NULL : "the sum is not the total";
}

static inline const char *check_frame_values(const uint8_t *bytes, size_t len,
                                             const struct lieni_wire_limits *limits,
                                             const struct lieni_frame *frame)
{
    if (len > limits->frame_max)
        return "frame longer than frame_max";
    if (frame->n_keys > LIEN_BUFS_MAX || frame->n_names > LIENI_NAMES_MAX)
        return "a count above its limit";
    if (frame->n_read_keys > LIEN_BUFS_MAX || frame->n_probes > LIENI_PROBES_MAX ||
        frame->n_ops > LIEN_OPS_MAX || frame->method_len > LIENI_METHOD_MAX)
        return "a count of a call's above its limit";
    if (frame->kind != LIENI_FRAME_WRITE && frame->total > limits->message_max)
        return "total above message_max";
    if (frame->n_keys > 0 && (frame->name.slot >= limits->grants_max || frame->name.gen == 0))
        return "a body's name out of limits";
    const uint32_t slots = frame->kind == LIENI_FRAME_RELEASE ? limits->own_grants_max
                                                              : limits->grants_max;
    for (uint32_t i = 0; i < frame->n_names; i++)
        if (frame->names[i].slot >= slots || frame->names[i].gen == 0)
            return "a name out of limits";
    if (frame->head_len > 0 && (frame->head < bytes || frame->head_len > len ||
                                (size_t)(frame->head - bytes) != len - frame->head_len))
        return "the head is not the end of the frame";
    const char *fault = check_keys(frame->keys, frame->n_keys, frame->total);
    if (fault == NULL && frame->kind == LIENI_FRAME_CALL)
        fault = check_keys(frame->read_keys, frame->n_read_keys, frame->read_total);
    return fault;
}

// A decoder refuses with a reason and leaves its output alone, or gives values within the limits that encode to the same bytes.
static inline const char *check_frame(const uint8_t *bytes, size_t len,
                                      const struct lieni_wire_limits *limits)
{
    static struct lieni_frame frame, before;
    const char *why = NULL;
    memset(&before, 0xa5, sizeof before);
    memcpy(&frame, &before, sizeof frame);
    const int rc = lieni_frame_decode(bytes, len, limits, &frame, &why);
    if (rc != 0) {
        if (rc != LIEN_EPROTO || why == NULL)
            return "refused without a reason";
        return memcmp(&frame, &before, sizeof frame) == 0 ? NULL : "refused, yet output changed";
    }
    const char *fault = check_frame_values(bytes, len, limits, &frame);
    if (fault != NULL)
        return fault;
    static uint8_t again[65536];
    _Atomic uint64_t copied = 0;
    size_t again_len = 0;
    if (lieni_frame_encode(&frame, again, sizeof again, &copied, &again_len) != 0)
        return "accepted, but cannot be encoded";
    if (copied != frame.head_len)
        return "copied bytes are not counted";
    return again_len == len && memcmp(again, bytes, len) == 0 ? NULL : "encodes to other bytes";
}

static inline const char *check_token(const uint8_t *bytes, size_t len)
{
    static struct lieni_token_data token, before;
    const char *why = NULL;
    memset(&before, 0xa5, sizeof before);
    memcpy(&token, &before, sizeof token);
    const int rc = lieni_token_decode(bytes, len, &token, &why);
    if (rc != 0) {
        if (rc != LIEN_EPROTO || why == NULL)
            return "refused without a reason";
        return memcmp(&token, &before, sizeof token) == 0 ? NULL : "refused, yet output changed";
    }
    if (token.kind != LIENI_TOKEN_HELD && token.kind != LIENI_TOKEN_BORROWED)
        return "unknown kind";
    if (token.n_keys > LIEN_BUFS_MAX)
        return "a count out of limits";
    if (token.conn == 0 || token.name.gen == 0)
        return "a name or connection of 0";
    const char *fault = check_keys(token.keys, token.n_keys, token.total);
    if (fault != NULL)
        return fault;
    static lien_token again;
    lieni_token_encode(&token, &again);
    return again.len == len && memcmp(again.bytes, bytes, len) == 0 ? NULL
                                                                    : "encodes to other bytes";
}

static inline const char *check_provider_names(const struct lieni_offer *offer)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
    for (uint32_t i = 0; i < offer->n_providers; i++) {
        const char *name = offer->providers[i];
        const size_t len = strnlen(name, sizeof offer->providers[i]);
        if (len < 1 || len > 31 || strspn(name, allowed) != len)
            return "a provider's name";
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(name, offer->providers[j]) == 0)
                return "a provider twice";
    }
    return NULL;
}

static inline const char *check_offer_values(const struct lieni_offer *offer)
{
    if (offer->version_min == 0 || offer->version_min > offer->version_max)
        return "version range";
    if (offer->frame_max < 4096 || offer->frame_max > 65536)
        return "frame_max";
    if (offer->message_credits < 1 || offer->message_credits > 4096)
        return "message_credits";
    if (offer->control_credits < 2 || offer->control_credits > 4096)
        return "control_credits";
    if (offer->call_credits > 4096)
        return "call_credits";
    if (offer->message_max > 4294967296u)
        return "message_max";
    if (offer->grants_max < 1 || offer->grants_max > 1048576)
        return "grants_max";
    if (offer->dead_ms != 0 && (offer->dead_ms < 20 || offer->dead_ms > 3600000))
        return "dead_ms";
    if (offer->n_providers < 1 || offer->n_providers > LIENI_PROVIDERS_MAX)
        return "providers";
    return check_provider_names(offer);
}

static inline const char *check_offer(const uint8_t *bytes, size_t len)
{
    static struct lieni_offer offer, before;
    const char *why = NULL;
    memset(&before, 0xa5, sizeof before);
    memcpy(&offer, &before, sizeof offer);
    const int rc = lieni_offer_decode(bytes, len, &offer, &why);
    if (rc != 0) {
        if (rc != LIEN_EPROTO || why == NULL)
            return "refused without a reason";
        return memcmp(&offer, &before, sizeof offer) == 0 ? NULL : "refused, yet output changed";
    }
    const char *fault = check_offer_values(&offer);
    if (fault != NULL)
        return fault;
    uint8_t again[LIENI_OFFER_MAX];
    size_t again_len = 0;
    if (lieni_offer_encode(&offer, again, sizeof again, &again_len) != 0)
        return "accepted, but cannot be encoded";
    // Only a peer that knows a later version may have said more.
    if (again_len > len || (again_len < len && offer.version_max <= LIENI_WIRE_VERSION))
        return "bytes after the offer";
    return memcmp(again, bytes, again_len) == 0 ? NULL : "encodes to other bytes";
}

// Invariants of a handshake at any moment.
static inline const char *check_handshake(const struct lieni_handshake *hs)
{
    if (hs->in_len > sizeof hs->in || hs->out_len > sizeof hs->out)
        return "buffers overrun";
    const size_t text = strnlen(hs->text, sizeof hs->text);
    if (text == sizeof hs->text)
        return "text without end";
    for (size_t i = 0; i < text; i++)
        if (hs->text[i] < 0x20 || hs->text[i] > 0x7e)
            return "text is not printable";
    if ((hs->state == LIENI_HS_FAILED) != (hs->status < 0))
        return "status and state differ";
    if (hs->state == LIENI_HS_FAILED && text == 0)
        return "failed without a text";
    if (hs->state == LIENI_HS_FOREIGN && (!hs->server || hs->in_len == 0))
        return "foreign without bytes";
    if (hs->state == LIENI_HS_READY || hs->state == LIENI_HS_SERVER_PLACE) {
        if (hs->conn_id == 0 || hs->provider[0] == 0)
            return "ready without session or provider";
        if (hs->state == LIENI_HS_READY && hs->port == 0)
            return "ready without a port";
        return check_offer_values(&hs->peer);
    }
    return NULL;
}

// The same bytes, whole and in pieces (`piece`: 1 ..), must lead to the same end.
static inline const char *check_handshake_input(bool server, const struct lieni_offer *local,
                                                const struct lieni_keyring *keys,
                                                const uint8_t *bytes, size_t len, size_t piece,
                                                bool end)
{
    static const uint8_t seed[LIENI_SESSION] = {7, 7, 7};
    static struct lieni_handshake whole, parts;
    if (lieni_hs_start(&whole, server, local, seed, keys) != 0 ||
        lieni_hs_start(&parts, server, local, seed, keys) != 0)
        return "does not start";
    const size_t used = len == 0 ? 0 : lieni_hs_input(&whole, bytes, len);
    size_t at = 0, took = 1;
    for (; at < len && took > 0; at += took) {
        const size_t n = len - at < piece ? len - at : piece;
        took = lieni_hs_input(&parts, bytes + at, n);
        if (took > n)
            return "used more than it got";
    }
    if (end) {
        lieni_hs_input(&whole, bytes, 0);
        lieni_hs_input(&parts, bytes, 0);
    }
    const char *fault = check_handshake(&whole);
    if (fault == NULL)
        fault = check_handshake(&parts);
    if (fault != NULL)
        return fault;
    if (used > len)
        return "used more than it got";
    if (whole.state != parts.state || whole.status != parts.status)
        return "pieces lead to another end";
    if (whole.state == LIENI_HS_FOREIGN)
        return NULL; // how much was taken depends on the pieces
    if (whole.state != LIENI_HS_FAILED && used != at)
        return "pieces use another number of bytes";
    if (whole.out_len != parts.out_len || memcmp(whole.out, parts.out, whole.out_len) != 0)
        return "pieces lead to another answer";
    return NULL;
}

#endif
